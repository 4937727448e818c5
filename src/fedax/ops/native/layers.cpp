// Layers of convolutional and recurrent networks, the order of examples and sums over clients for the CPU, called by XLA.
// One call is one thread: clients keep the cores busy.
//
// The loops stand once in kernels.h and are compiled for several instruction sets, each in a namespace and a file of its own; the best
// one that the processor has is chosen at the first call. They use vector types of the compiler, so that any processor can have
// them. No templates of the standard library stand in there: the linker would keep one copy for all instruction sets.
#include <new>

#include "frame.h"
#include "sets.h"

namespace native {

enum Level { PLAIN, AVX2, AVX512 };

static Level detected() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq"))
    return AVX512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return AVX2;
#endif
  return PLAIN;
}

static Level level = detected();

template <class T>
const Kernels<T>& chosen();
template <>
const Kernels<float>& chosen<float>() {
#if defined(__x86_64__)
  if (level == AVX512) return avx512_32::kernels;
  if (level == AVX2) return avx2_32::kernels;
#endif
  return plain32::kernels;
}
template <>
const Kernels<double>& chosen<double>() {
#if defined(__x86_64__)
  if (level == AVX512) return avx512_64::kernels;
  if (level == AVX2) return avx2_64::kernels;
#endif
  return plain64::kernels;
}

// ---- the arguments of a call ----

static const int64_t* attribute(const frame::Call* call) {
  return static_cast<const frame::Array*>(call->attributes.items[0])->data;  // there is one: an array of whole numbers
}

// Images of group g. Their shape is (group, example, row, column, channel), in memory (group, channel, row, column, example).
template <class T>
static Images<T> images(const frame::Buffer* buffer, long g) {
  const int64_t* d = buffer->dims;
  return {static_cast<T*>(buffer->data) + g * d[1] * d[2] * d[3] * d[4], d[4], d[2], d[3], d[1]};
}

// What group g has of an array whose first axis is the group.
template <class T>
static T* item(const frame::Buffer* buffer, long g) {
  int64_t each = 1;
  for (int64_t k = 1; k < buffer->rank; k++) each *= buffer->dims[k];
  return static_cast<T*>(buffer->data) + g * each;
}

enum Product { FORWARD, GRADIENT_OF_IMAGE, GRADIENT_OF_KERNEL };

// With pooling there is a third operand, the bias or the winners, and its window and the outputs' size follow among the numbers.
template <class T>
static void convolve(const frame::Call* call) {
  frame::Buffer** in = call->arguments.items;
  const frame::Buffer *a = in[0], *b = in[1], *out = call->results.items[0];
  const int64_t* geometry = attribute(call);
  const int64_t product = geometry[0];
  const int64_t* kernel = (product == GRADIENT_OF_KERNEL ? out : b)->dims;
  const bool pooled = call->arguments.count == 3;
  Window window{kernel[1], kernel[2], geometry[1], geometry[2], geometry[3], geometry[4]};
  const Kernels<T>& run = chosen<T>();
  for (long g = 0; g < out->dims[0]; g++) {
    const uint8_t* winner = pooled && product != FORWARD ? item<uint8_t>(in[2], g) : nullptr;
    if (product == FORWARD && pooled)
      run.convolve_pooled(images<const T>(a, g), item<T>(b, g), window, item<T>(in[2], g), geometry[5], geometry[6], images<T>(out, g),
                          item<uint8_t>(call->results.items[1], g));
    if (product == FORWARD && !pooled) run.forward(images<const T>(a, g), item<T>(b, g), window, images<T>(out, g));
    if (product == GRADIENT_OF_IMAGE && !pooled)
      run.gradient_of_image(images<const T>(a, g), item<T>(b, g), window, images<T>(out, g));
    if (product == GRADIENT_OF_IMAGE && pooled)
      run.pooled_gradient_of_image(images<const T>(a, g), winner, geometry[5], geometry[6], geometry[7], geometry[8], item<T>(b, g),
                                   window, images<T>(out, g));
    if (product == GRADIENT_OF_KERNEL && !pooled)
      run.gradient_of_kernel(images<const T>(a, g), images<const T>(b, g), window, item<T>(out, g));
    if (product == GRADIENT_OF_KERNEL && pooled)
      run.pooled_gradient_of_kernel(images<const T>(a, g), images<const T>(b, g), winner, geometry[5], geometry[6], geometry[7],
                                    geometry[8], window, item<T>(out, g));
  }
}

template <class T>
static void lay(const frame::Call* call) {
  const frame::Buffer *in = call->arguments.items[0], *out = call->results.items[0];
  for (long g = 0; g < out->dims[0]; g++) chosen<T>().lay(item<const T>(in, g), images<T>(out, g));
}

enum LayerProduct { OUTPUTS, KERNEL_GRADIENT, INPUTS };

template <class T>
static void affine(const frame::Call* call) {
  const frame::Buffer *a = call->arguments.items[0], *b = call->arguments.items[1], *out = call->results.items[0];
  const int64_t product = attribute(call)[0];
  const Layer layer{a->dims[1], (product == INPUTS ? b->dims[1] : a->dims[2]), b->dims[2]};
  const Kernels<T>& run = chosen<T>();
  auto function = product == OUTPUTS ? run.layer_outputs : product == INPUTS ? run.layer_inputs : run.layer_gradient;
  for (long g = 0; g < out->dims[0]; g++) function(item<const T>(a, g), item<const T>(b, g), layer, item<T>(out, g));
}

enum Pooling { POOL, POOL_GRADIENT, POOL_TANGENT, BIAS_GRADIENT };

template <class T>
static void pool(const frame::Call* call) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* geometry = attribute(call);
  long height = geometry[1], width = geometry[2];
  const Kernels<T>& run = chosen<T>();
  for (long g = 0; g < out[0]->dims[0]; g++) {
    if (geometry[0] == POOL)
      run.pool(images<const T>(in[0], g), item<T>(in[1], g), height, width, geometry[3] != 0, images<T>(out[0], g),
               item<uint8_t>(out[1], g));
    if (geometry[0] == POOL_GRADIENT)
      run.pool_gradient(images<const T>(in[0], g), item<uint8_t>(in[1], g), height, width, images<T>(out[0], g), item<T>(out[1], g));
    if (geometry[0] == POOL_TANGENT)
      run.pool_tangent(images<const T>(in[0], g), item<T>(in[1], g), item<uint8_t>(in[2], g), height, width,
                       images<T>(out[0], g));
    if (geometry[0] == BIAS_GRADIENT) run.bias_gradient(images<const T>(in[0], g), item<uint8_t>(in[1], g), item<T>(out[0], g));
  }
}

enum Normalisation { NORM, NORM_GRADIENT };

template <class T>
static void norm(const frame::Call* call) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* numbers = attribute(call);
  const long groups = numbers[1];
  const Kernels<T>& run = chosen<T>();
  for (long g = 0; g < out[0]->dims[0]; g++) {
    if (numbers[0] == NORM)
      run.norm(images<const T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), groups, T(1e-5), images<T>(out[0], g),
               item<T>(out[1], g), item<T>(out[2], g));
    if (numbers[0] == NORM_GRADIENT)
      run.norm_gradient(images<const T>(in[4], g), images<const T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), item<T>(in[3], g),
                        groups, images<T>(out[0], g), item<T>(out[1], g), item<T>(out[2], g));
  }
}

enum Joining { JOIN, JOIN_GRADIENT };

template <class T>
static void join(const frame::Call* call) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* geometry = attribute(call);
  const Kernels<T>& run = chosen<T>();
  for (long g = 0; g < out[0]->dims[0]; g++) {
    if (geometry[0] == JOIN) run.join(images<const T>(in[0], g), images<const T>(in[1], g), geometry[1], images<T>(out[0], g));
    if (geometry[0] == JOIN_GRADIENT)
      run.join_gradient(images<const T>(in[0], g), images<const T>(in[1], g), geometry[1], images<T>(out[0], g),
                     images<T>(out[1], g));
  }
}

enum Recurrence { RECUR, RECUR_GRADIENT };

template <class T>
static void recur(const frame::Call* call) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* geometry = attribute(call);
  const int64_t* states = (geometry[0] == RECUR ? out[0] : in[0])->dims;  // (group, step, example, unit)
  const Sizes size{states[1], states[2], states[3]};
  const Kernels<T>& run = chosen<T>();
  for (long g = 0; g < states[0]; g++) {
    const T* peep = geometry[1] ? item<T>(in[call->arguments.count - 1], g) : nullptr;
    if (geometry[0] == RECUR)
      run.recur(item<T>(in[0], g), item<T>(in[1], g), peep, size, item<T>(out[0], g), item<T>(out[1], g), item<T>(out[2], g));
    if (geometry[0] == RECUR_GRADIENT)
      run.recur_gradient(item<T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), item<T>(in[3], g), peep, size,
                         item<T>(out[0], g));
  }
}

static void shuffle(const frame::Call* call) {
  const frame::Buffer *key = call->arguments.items[0], *size = call->arguments.items[1], *order = call->results.items[0];
  const long width = order->dims[1];
  for (long g = 0; g < order->dims[0]; g++)
    chosen<float>().shuffle(item<const uint32_t>(key, g), most(0, least(*item<const int32_t>(size, g), width)), width,
                            item<int32_t>(order, g));
}

static long numbers_of(const frame::Buffer* buffer) {
  long all = 1;
  for (int64_t k = 0; k < buffer->rank; k++) all *= buffer->dims[k];
  return all;
}

// Arrays of any shape, one member of a batch after the other; there is a weight for each.
template <class T>
static void accumulate(const frame::Call* call) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const long members = numbers_of(in[3]), count = members ? numbers_of(in[0]) / members : 0;
  auto at = [&](const frame::Buffer* buffer, long member) { return static_cast<T*>(buffer->data) + member * count; };
  for (long m = 0; m < members; m++)
    chosen<T>().accumulate(at(in[0], m), at(in[1], m), at(in[2], m), static_cast<const T*>(in[3]->data)[m], count, at(out[0], m),
                           at(out[1], m));
}

// The same; there is a flag for each.
template <class T>
static void finite(const frame::Call* call) {
  const frame::Buffer *in = call->arguments.items[0], *out = call->results.items[0];
  const long members = numbers_of(out), count = members ? numbers_of(in) / members : 0;
  for (long m = 0; m < members; m++)
    static_cast<int32_t*>(out->data)[m] = chosen<T>().finite(static_cast<const T*>(in->data) + m * count, count);
}

// Answers a question for the interface's version, or runs the call for its number type.
static void* answer(frame::Call* call, void (*single)(const frame::Call*), void (*twice)(const frame::Call*)) {
  if (call->extension != nullptr && call->extension->type == frame::METADATA) {
    frame::Metadata* metadata = reinterpret_cast<frame::MetadataExtension*>(call->extension)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = 1;
    return nullptr;
  }
  if (call->stage != frame::EXECUTE) return nullptr;
  try {
    (call->arguments.items[0]->type == frame::FLOAT32 ? single : twice)(call);
    return nullptr;
  } catch (const std::bad_alloc&) {
    frame::ErrorRequest request{sizeof(frame::ErrorRequest), nullptr, "fedax: no memory for a native layer", 8};
    return call->api->error(&request);
  }
}

}  // namespace native

extern "C" {
void* fedax_convolve(frame::Call* call) { return native::answer(call, native::convolve<float>, native::convolve<double>); }
void* fedax_affine(frame::Call* call) { return native::answer(call, native::affine<float>, native::affine<double>); }
void* fedax_lay(frame::Call* call) { return native::answer(call, native::lay<float>, native::lay<double>); }
void* fedax_pool(frame::Call* call) { return native::answer(call, native::pool<float>, native::pool<double>); }
void* fedax_norm(frame::Call* call) { return native::answer(call, native::norm<float>, native::norm<double>); }
void* fedax_recur(frame::Call* call) { return native::answer(call, native::recur<float>, native::recur<double>); }
void* fedax_shuffle(frame::Call* call) { return native::answer(call, native::shuffle, native::shuffle); }
void* fedax_accumulate(frame::Call* call) { return native::answer(call, native::accumulate<float>, native::accumulate<double>); }
void* fedax_finite(frame::Call* call) { return native::answer(call, native::finite<float>, native::finite<double>); }
void* fedax_join(frame::Call* call) { return native::answer(call, native::join<float>, native::join<double>); }

// The instruction set in use: 0 the compiler's default, 1 AVX2, 2 AVX-512. A smaller one may be asked for, -1 asks for nothing.
int fedax_level(int wanted) {
  int best = native::detected();
  if (wanted >= 0) native::level = static_cast<native::Level>(wanted < best ? wanted : best);
  return native::level;
}
}
