// All loops for AVX-512.
#include "sets.h"

#if defined(__x86_64__)
TARGET("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")
#define BYTES 64
#define ROOMY true
namespace native {
namespace avx512_32 {
#define REAL float
#include "kernels.h"
#undef REAL
}  // namespace avx512_32
namespace avx512_64 {
#define REAL double
#include "kernels.h"
#undef REAL
}  // namespace avx512_64
}  // namespace native
#undef BYTES
#undef ROOMY
TARGET_END
#endif
