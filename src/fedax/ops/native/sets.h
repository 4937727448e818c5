// What one instruction set has, declared for the file that chooses among them and for the files that compile the loops for each: they
// are compiled at the same time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "memory.h"
#include "shapes.h"

namespace native {

// For one number type.
template <class T>
struct Kernels {
  void (*lay)(const T* rows, Images<T> out);
  void (*forward)(Images<const T> image, const T* kernel, const Window&, Images<T> out);
  void (*convolve_pooled)(Images<const T> image, const T* kernel, const Window&, const T* bias, long height, long width, Images<T> out,
                          uint8_t* winner);
  void (*gradient_of_image)(Images<const T> gradient, const T* kernel, const Window&, Images<T> image);
  void (*gradient_of_kernel)(Images<const T> image, Images<const T> gradient, const Window&, T* kernel);
  void (*pooled_gradient_of_image)(Images<const T> gradient, const uint8_t* winner, long height, long width, long rows, long columns,
                                   const T* kernel, const Window&, Images<T> image);
  void (*pooled_gradient_of_kernel)(Images<const T> image, Images<const T> gradient, const uint8_t* winner, long height, long width,
                                    long rows, long columns, const Window&, T* kernel);
  void (*layer_outputs)(const T* x, const T* weights, const Layer&, T* out);
  void (*layer_gradient)(const T* x, const T* gradient, const Layer&, T* out);
  void (*layer_inputs)(const T* gradient, const T* weights, const Layer&, T* out);
  void (*bias_gradient)(Images<const T> gradient, const uint8_t* winner, T* bias);
  void (*norm)(Images<const T> image, const T* scale, const T* offset, long groups, T epsilon, Images<T> out, T* mean, T* rate);
  void (*norm_gradient)(Images<const T> gradient, Images<const T> image, const T* mean, const T* rate, const T* scale, long groups,
                        Images<T> out, T* scale_gradient, T* offset_gradient);
  void (*recur)(const T* projected, const T* kernel, const T* peep, const Sizes&, T* hs, T* cs, T* gates);
  void (*recur_gradient)(const T* gradient, const T* gates, const T* cs, const T* kernel, const T* peep, const Sizes&, T* out);
  void (*shuffle)(const uint32_t* key, long size, long width, int32_t* order);
};

#define DECLARE(single, twice)           \
  namespace single {                     \
  extern const Kernels<float> kernels;   \
  }                                      \
  namespace twice {                      \
  extern const Kernels<double> kernels;  \
  }
DECLARE(plain32, plain64)
DECLARE(avx2_32, avx2_64)
DECLARE(avx512_32, avx512_64)
#undef DECLARE

}  // namespace native

#if defined(__clang__)
#define TEXT(x) #x
#define TARGET(options) _Pragma(TEXT(clang attribute push(__attribute__((target(options))), apply_to = function)))
#define TARGET_END _Pragma("clang attribute pop")
#else
#define TEXT(x) #x
#define TARGET(options) _Pragma("GCC push_options") _Pragma(TEXT(GCC target(options)))
#define TARGET_END _Pragma("GCC pop_options")
#endif
