// Layers of convolutional and recurrent networks and the order of examples for the CPU, called by XLA.
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

// One group of the arrays of a call: each `vmap` around it puts an axis before those that the operation knows.
struct Group {
  long number, count;
};

// The last sizes of an array, those of its group.
static const int64_t* sizes(const frame::Buffer* buffer, long axes) { return buffer->dims + buffer->rank - axes; }

template <class T>
static T* item(const frame::Buffer* buffer, Group group) {
  int64_t all = 1;
  for (int64_t k = 0; k < buffer->rank; k++) all *= buffer->dims[k];
  return static_cast<T*>(buffer->data) + all / group.count * group.number;
}

// Their shape is (example, row, column, channel), in memory (channel, row, column, example).
template <class T>
static Images<T> images(const frame::Buffer* buffer, Group group) {
  const int64_t* d = sizes(buffer, 4);
  return {item<T>(buffer, group), d[3], d[1], d[2], d[0]};
}

enum Product { FORWARD, GRADIENT_OF_IMAGE, GRADIENT_OF_KERNEL };

// With pooling there is a third operand, the bias or the winners, and its window and the outputs' size follow among the numbers.
template <class T>
static void convolve(const frame::Call* call, Group g) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* geometry = attribute(call);
  const int64_t product = geometry[0];
  const int64_t* kernel = sizes(product == GRADIENT_OF_KERNEL ? out[0] : in[1], 4);
  const bool pooled = call->arguments.count == 3;
  Window window{kernel[0], kernel[1], geometry[1], geometry[2], geometry[3], geometry[4]};
  const Kernels<T>& run = chosen<T>();
  if (product == FORWARD && !pooled) run.forward(images<const T>(in[0], g), item<T>(in[1], g), window, images<T>(out[0], g));
  if (product == FORWARD && pooled)
    run.convolve_pooled(images<const T>(in[0], g), item<T>(in[1], g), window, item<T>(in[2], g), geometry[5], geometry[6],
                        images<T>(out[0], g), item<uint8_t>(out[1], g));
  if (product == GRADIENT_OF_IMAGE && !pooled)
    run.gradient_of_image(images<const T>(in[0], g), item<T>(in[1], g), window, images<T>(out[0], g));
  if (product == GRADIENT_OF_IMAGE && pooled)
    run.pooled_gradient_of_image(images<const T>(in[0], g), item<uint8_t>(in[2], g), geometry[5], geometry[6], geometry[7], geometry[8],
                                 item<T>(in[1], g), window, images<T>(out[0], g));
  if (product == GRADIENT_OF_KERNEL && !pooled)
    run.gradient_of_kernel(images<const T>(in[0], g), images<const T>(in[1], g), window, item<T>(out[0], g));
  if (product == GRADIENT_OF_KERNEL && pooled) {
    run.pooled_gradient_of_kernel(images<const T>(in[0], g), images<const T>(in[1], g), item<uint8_t>(in[2], g), geometry[5], geometry[6],
                                  geometry[7], geometry[8], window, item<T>(out[0], g));
    run.bias_gradient(images<const T>(in[1], g), item<uint8_t>(in[2], g), item<T>(out[1], g));
  }
}

template <class T>
static void lay(const frame::Call* call, Group g) {
  chosen<T>().lay(item<const T>(call->arguments.items[0], g), images<T>(call->results.items[0], g));
}

enum LayerProduct { OUTPUTS, KERNEL_GRADIENT, INPUTS };

template <class T>
static void affine(const frame::Call* call, Group g) {
  const frame::Buffer *a = call->arguments.items[0], *b = call->arguments.items[1], *out = call->results.items[0];
  const int64_t product = attribute(call)[0], *left = sizes(a, 2), *right = sizes(b, 2);
  const Layer layer{left[0], product == INPUTS ? right[0] : left[1], right[1]};
  const Kernels<T>& run = chosen<T>();
  auto function = product == OUTPUTS ? run.layer_outputs : product == INPUTS ? run.layer_inputs : run.layer_gradient;
  function(item<const T>(a, g), item<const T>(b, g), layer, item<T>(out, g));
}

enum Normalisation { NORM, NORM_GRADIENT };

template <class T>
static void norm(const frame::Call* call, Group g) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* numbers = attribute(call);
  const Kernels<T>& run = chosen<T>();
  if (numbers[0] == NORM)
    run.norm(images<const T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), numbers[1], T(1e-5), images<T>(out[0], g),
             item<T>(out[1], g), item<T>(out[2], g));
  if (numbers[0] == NORM_GRADIENT)
    run.norm_gradient(images<const T>(in[4], g), images<const T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), item<T>(in[3], g),
                      numbers[1], images<T>(out[0], g), item<T>(out[1], g), item<T>(out[2], g));
}

enum Recurrence { RECUR, RECUR_GRADIENT };

template <class T>
static void recur(const frame::Call* call, Group g) {
  frame::Buffer **in = call->arguments.items, **out = call->results.items;
  const int64_t* numbers = attribute(call);
  const int64_t* states = sizes(numbers[0] == RECUR ? out[0] : in[0], 3);  // step, example, unit
  const Sizes size{states[0], states[1], states[2]};
  const Kernels<T>& run = chosen<T>();
  const T* peep = numbers[1] ? item<T>(in[call->arguments.count - 1], g) : nullptr;
  if (numbers[0] == RECUR)
    run.recur(item<T>(in[0], g), item<T>(in[1], g), peep, size, item<T>(out[0], g), item<T>(out[1], g), item<T>(out[2], g));
  if (numbers[0] == RECUR_GRADIENT)
    run.recur_gradient(item<T>(in[0], g), item<T>(in[1], g), item<T>(in[2], g), item<T>(in[3], g), peep, size, item<T>(out[0], g));
}

using Function = void (*)(const frame::Call*, Group);

static void shuffle(const frame::Call* call, Group g) {
  const frame::Buffer *key = call->arguments.items[0], *size = call->arguments.items[1], *order = call->results.items[0];
  const long width = sizes(order, 1)[0];
  const long count = most(0, least(*item<const int32_t>(size, g), width));
  chosen<float>().shuffle(item<const uint32_t>(key, g), count, width, item<int32_t>(order, g));
}

// Answers a question for the interface's version, or runs the call for its number type, group by group. `axes` are those of the
// first operand without its groups.
static void* answer(frame::Call* call, long axes, Function single, Function twice) {
  if (call->extension != nullptr && call->extension->type == frame::METADATA) {
    frame::Metadata* metadata = reinterpret_cast<frame::MetadataExtension*>(call->extension)->metadata;
    metadata->version.major = 0;
    metadata->version.minor = 1;
    return nullptr;
  }
  if (call->stage != frame::EXECUTE) return nullptr;
  try {
    const frame::Buffer* first = call->arguments.items[0];
    Group group{0, 1};
    for (long k = 0; k < first->rank - axes; k++) group.count *= first->dims[k];
    for (; group.number < group.count; group.number++) (first->type == frame::FLOAT32 ? single : twice)(call, group);
    return nullptr;
  } catch (const std::bad_alloc&) {
    frame::ErrorRequest request{sizeof(frame::ErrorRequest), nullptr, "fedax: no memory for a native layer", 8};
    return call->api->error(&request);
  }
}

}  // namespace native

extern "C" {
void* fedax_convolve(frame::Call* call) { return native::answer(call, 4, native::convolve<float>, native::convolve<double>); }
void* fedax_affine(frame::Call* call) { return native::answer(call, 2, native::affine<float>, native::affine<double>); }
void* fedax_lay(frame::Call* call) { return native::answer(call, 4, native::lay<float>, native::lay<double>); }
void* fedax_norm(frame::Call* call) { return native::answer(call, 4, native::norm<float>, native::norm<double>); }
void* fedax_recur(frame::Call* call) { return native::answer(call, 3, native::recur<float>, native::recur<double>); }
void* fedax_shuffle(frame::Call* call) { return native::answer(call, 1, native::shuffle, native::shuffle); }

// The instruction set in use: 0 the compiler's default, 1 AVX2, 2 AVX-512. A smaller one may be asked for, -1 asks for nothing.
int fedax_level(int wanted) {
  int best = native::detected();
  if (wanted >= 0) native::level = static_cast<native::Level>(wanted < best ? wanted : best);
  return native::level;
}
}
