// All loops for one number type and one instruction set; see the files that include this for each of them.
#include "convolution.h"
#include "winograd.h"
#include "lines.h"
#include "outputs.h"
#include "pointwise.h"
#include "sparse.h"
#include "regions.h"
#include "pooled.h"
#include "norm.h"
#include "recurrent.h"
#include "shuffle.h"
#include "dense.h"

const Kernels<REAL> kernels = {lay,           forward,       convolve_pooled, gradient_of_image, gradient_of_kernel,
                               pooled_gradient_of_image,     pooled_gradient_of_kernel,    layer_outputs,     layer_gradient,     layer_inputs,
                               bias_gradient, norm,          norm_gradient,   recur,             recur_gradient, shuffle};
