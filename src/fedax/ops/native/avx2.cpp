// All loops for AVX2.
#include "sets.h"

#if defined(__x86_64__)
TARGET("avx2,fma")
#define BYTES 32
#define ROOMY false
namespace native {
namespace avx2_32 {
#define REAL float
#include "kernels.h"
#undef REAL
}  // namespace avx2_32
namespace avx2_64 {
#define REAL double
#include "kernels.h"
#undef REAL
}  // namespace avx2_64
}  // namespace native
#undef BYTES
#undef ROOMY
TARGET_END
#endif
