// All loops for one number type and one instruction set; see layers.cpp, which includes this for each of them.
#include "convolution.h"
#include "pointwise.h"

const Kernels<REAL> kernels = {forward,    slope_of_image, slope_of_kernel, pool, pool_slope, pool_tangent, norm,
                               norm_slope, join,           join_slope};
