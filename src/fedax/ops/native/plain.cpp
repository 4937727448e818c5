// All loops for the instructions that every processor of the kind has.
#include "sets.h"

#define BYTES 16
#if defined(__x86_64__)
#define ROOMY false
#else
#define ROOMY true  // 32 registers, as ARM has them
#endif
namespace native {
namespace plain32 {
#define REAL float
#include "kernels.h"
#undef REAL
}  // namespace plain32
namespace plain64 {
#define REAL double
#include "kernels.h"
#undef REAL
}  // namespace plain64
}  // namespace native
#undef BYTES
#undef ROOMY
