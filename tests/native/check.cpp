// The extension's loops against plain ones, from several threads, on buffers of exactly the right size; for sanitizers.
// Built and run by tests/native/sanitize.sh.
#include <cstdio>
#include <random>
#include <thread>
#include <vector>

#include "../../src/fedax/ops/native/avx2.cpp"
#include "../../src/fedax/ops/native/avx512.cpp"
#include "../../src/fedax/ops/native/layers.cpp"
#include "../../src/fedax/ops/native/plain.cpp"

using native::Images;
using native::Window;
typedef std::mt19937 Random;

static long draw(Random& random, long low, long high) { return low + long(random() % (high - low + 1)); }

template <class T>
static std::vector<T> numbers(Random& random, long count) {
  std::normal_distribution<double> normal;
  std::vector<T> made(count);
  for (T& value : made) value = T(normal(random));
  return made;
}

template <class T>
static void compare(const char* what, const std::vector<T>& own, const std::vector<double>& plain) {
  double scale = 1, worst = 0;  // operands have variance 1, so sums that happen to be small are not more exact
  for (double value : plain) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < own.size(); i++) worst = std::max(worst, std::abs(own[i] - plain[i]));
  if (!(worst <= scale * (sizeof(T) == 4 ? 1e-5 : 1e-12))) {
    std::printf("%s differs by %g of %g\n", what, worst, scale);
    std::exit(1);
  }
}

// With `many` channels the forms with fewer multiplications are chosen, and of images' gradients regions.
template <class T>
static void convolution(Random& random, bool many) {
  long height = draw(random, 1, 5), width = draw(random, 1, 5), down = draw(random, 1, 4), right = draw(random, 1, 4);
  if (many) height = width = draw(random, 3, 5), down = right = 1;
  if (!many && draw(random, 0, 2) == 0) width = draw(random, 3, 5), right = 1;  // rows of outputs are, from some channels on
  long top = draw(random, 0, 3), left = draw(random, 0, 3), bottom = draw(random, 0, 3), after = draw(random, 0, 3);
  long rows = draw(random, std::max(1L, height - top - bottom), 9), columns = draw(random, std::max(1L, width - left - after), 9);
  long inputs = !many ? draw(random, 1, 34) : draw(random, 0, 2) ? draw(random, 28, 40) : draw(random, 4, 14), outputs = many ? draw(random, 28, 40) : draw(random, 1, 18);
  long batches[] = {1, 2, 7, 16, 17, 50, 64, 129, 200}, batch = many ? draw(random, 16, 20) : batches[random() % 9];
  long tall = (rows + top + bottom - height) / down + 1, wide = (columns + left + after - width) / right + 1;
  auto x = numbers<T>(random, inputs * rows * columns * batch), k = numbers<T>(random, height * width * inputs * outputs);
  auto y = numbers<T>(random, outputs * tall * wide * batch);
  const long zeros = draw(random, 0, 2) * 45;  // percent; with many, the gradients are computed from lists of the others
  for (T& value : y) value = draw(random, 0, 99) < zeros ? T(0) : value;
  // behind pooling, one number of each window at most is not zero
  const bool square = many && draw(random, 0, 1);
  const long h = square ? 2 : draw(random, 1, 3), w = square ? 2 : draw(random, 1, 3), high = tall / h, across = wide / w;
  auto kept = numbers<T>(random, outputs * high * across * batch);
  std::vector<uint8_t> winner(kept.size());
  const bool pooled = draw(random, 0, 1) && !kept.empty();
  if (pooled) std::fill(y.begin(), y.end(), T(0));
  for (size_t i = 0; pooled && i < kept.size(); i++) {
    const long n = i % batch, q = i / batch % across, r = i / batch / across % high, o = i / batch / across / high;
    winner[i] = draw(random, 0, 99) < zeros ? 255 : draw(random, 0, h * w - 1);
    if (winner[i] != 255) y[((o * tall + r * h + winner[i] / w) * wide + q * w + winner[i] % w) * batch + n] = kept[i];
  }
  std::vector<double> dy(y.size()), dx(x.size()), dk(k.size());
  for (long o = 0; o < outputs; o++)
    for (long r = 0; r < tall; r++)
      for (long q = 0; q < wide; q++)
        for (long i = 0; i < height; i++)
          for (long j = 0; j < width; j++) {
            long row = r * down + i - top, column = q * right + j - left;
            if (row < 0 || row >= rows || column < 0 || column >= columns) continue;
            for (long c = 0; c < inputs; c++)
              for (long n = 0; n < batch; n++) {
                long a = ((c * rows + row) * columns + column) * batch + n, b = ((i * width + j) * inputs + c) * outputs + o;
                long d = ((o * tall + r) * wide + q) * batch + n;
                dy[d] += double(x[a]) * k[b];
                dx[a] += double(y[d]) * k[b];
                dk[b] += double(x[a]) * y[d];
              }
          }
  Window window{height, width, down, right, top, left};
  Images<const T> image{x.data(), inputs, rows, columns, batch}, gradient{y.data(), outputs, tall, wide, batch};
  std::vector<T> out(y.size()), image_gradient(x.size()), kernel_gradient(k.size());
  const native::Kernels<T>& run = native::chosen<T>();
  run.forward(image, k.data(), window, {out.data(), outputs, tall, wide, batch});
  run.gradient_of_image(gradient, k.data(), window, {image_gradient.data(), inputs, rows, columns, batch});
  run.gradient_of_kernel(image, gradient, window, kernel_gradient.data());
  compare("outputs", out, dy);
  compare("gradient of the image", image_gradient, dx);
  compare("gradient of the kernel", kernel_gradient, dk);
  if (!pooled) return;
  std::vector<T> bias(outputs);
  std::vector<double> plain(outputs);
  for (size_t i = 0; i < y.size(); i++) plain[i / (tall * wide * batch)] += y[i];
  Images<const T> few{kept.data(), outputs, high, across, batch};
  auto offset = numbers<T>(random, outputs);
  std::vector<T> joint(kept.size());
  std::vector<double> alone(kept.size());
  std::vector<uint8_t> joint_winner(kept.size());
  Images<T> target{joint.data(), outputs, high, across, batch};
  run.convolve_pooled(image, k.data(), window, offset.data(), h, w, target, joint_winner.data());
  for (size_t i = 0; i < alone.size(); i++) {
    const long n = i % batch, q = i / batch % across, r = i / batch / across % high, o = i / batch / across / high;
    double largest = -INFINITY;
    for (long p = 0; p < h * w; p++) largest = std::max(largest, double(out[((o * tall + r * h + p / w) * wide + q * w + p % w) * batch + n]));
    alone[i] = std::max(0.0, largest + offset[o]);
  }
  compare("outputs behind pooling", joint, alone);
  run.pooled_gradient_of_image(few, winner.data(), h, w, tall, wide, k.data(), window, {image_gradient.data(), inputs, rows, columns, batch});
  run.pooled_gradient_of_kernel(image, few, winner.data(), h, w, tall, wide, window, kernel_gradient.data());
  run.bias_gradient(few, winner.data(), bias.data());
  compare("gradient of the image behind pooling", image_gradient, dx);
  compare("gradient of the kernel behind pooling", kernel_gradient, dk);
  compare("gradient of the bias", bias, plain);
}

template <class T>
static void order_of_images(Random& random) {
  long channels = draw(random, 1, 5), rows = draw(random, 1, 6), columns = draw(random, 1, 6), batch = draw(random, 1, 40);
  long each = channels * rows * columns;
  auto x = numbers<T>(random, each * batch);
  std::vector<T> own(x.size());
  std::vector<double> plain(x.size());
  for (long n = 0; n < batch; n++)
    for (long p = 0; p < rows * columns; p++)
      for (long c = 0; c < channels; c++) plain[(c * rows * columns + p) * batch + n] = x[n * each + p * channels + c];
  native::chosen<T>().lay(x.data(), {own.data(), channels, rows, columns, batch});
  compare("images laid out", own, plain);
}

template <class T>
static void layer(Random& random) {
  native::Layer size{draw(random, 1, 70), draw(random, 16, 150), draw(random, 16, 300)};
  auto x = numbers<T>(random, size.examples * size.inputs), w = numbers<T>(random, size.inputs * size.outputs);
  auto y = numbers<T>(random, size.examples * size.outputs);
  const long zeros = draw(random, 0, 2) * 45;
  for (T& value : x) value = draw(random, 0, 99) < zeros ? T(0) : value;
  std::vector<double> out(y.size()), gradient(w.size()), inputs(x.size());
  for (long n = 0; n < size.examples; n++)
    for (long k = 0; k < size.inputs; k++)
      for (long o = 0; o < size.outputs; o++) {
        out[n * size.outputs + o] += double(x[n * size.inputs + k]) * w[k * size.outputs + o];
        gradient[k * size.outputs + o] += double(x[n * size.inputs + k]) * y[n * size.outputs + o];
        inputs[n * size.inputs + k] += double(y[n * size.outputs + o]) * w[k * size.outputs + o];
      }
  std::vector<T> own(y.size()), own_gradient(w.size()), own_inputs(x.size());
  const native::Kernels<T>& run = native::chosen<T>();
  run.layer_outputs(x.data(), w.data(), size, own.data());
  run.layer_gradient(x.data(), y.data(), size, own_gradient.data());
  compare("outputs of a layer", own, out);
  run.layer_inputs(y.data(), w.data(), size, own_inputs.data());
  compare("gradient of a layer", own_gradient, gradient);
  compare("gradient of a layer's inputs", own_inputs, inputs);
}

// Group normalisation and its gradient.
template <class T>
static void normalisation(Random& random) {
  long groups = draw(random, 1, 3), channels = groups * draw(random, 1, 3), rows = draw(random, 1, 7), columns = draw(random, 1, 7);
  long batch = draw(random, 1, 70), pixels = rows * columns, size = channels * pixels * batch, count = size / groups / batch;
  auto x = numbers<T>(random, size), scale = numbers<T>(random, channels), offset = numbers<T>(random, channels);
  auto gradient = numbers<T>(random, size);
  std::vector<T> out(size), mean(groups * batch), rate(groups * batch), dx(size), dscale(channels), doffset(channels);
  auto images = [&](std::vector<T>& data) { return Images<T>{data.data(), channels, rows, columns, batch}; };
  auto given = [&](const std::vector<T>& data) { return Images<const T>{data.data(), channels, rows, columns, batch}; };
  const native::Kernels<T>& run = native::chosen<T>();
  run.norm(given(x), scale.data(), offset.data(), groups, T(1e-5), images(out), mean.data(), rate.data());
  run.norm_gradient(given(gradient), given(x), mean.data(), rate.data(), scale.data(), groups, images(dx), dscale.data(),
                    doffset.data());
  std::vector<double> y(size), image(size), factor(channels), shift(channels);
  for (long g = 0; g < groups; g++)
    for (long n = 0; n < batch; n++) {
      auto over = [&](auto run) {
        for (long c = g * channels / groups; c < (g + 1) * channels / groups; c++)
          for (long p = 0; p < pixels; p++) run(c, (c * pixels + p) * batch + n);
      };
      double middle = 0, spread = 0, straight = 0, crossed = 0;
      over([&](long, long i) { middle += double(x[i]) / count; });
      over([&](long, long i) { spread += (x[i] - middle) * (x[i] - middle) / count; });
      const double fast = 1 / std::sqrt(spread + 1e-5);
      over([&](long c, long i) {
        const double z = (x[i] - middle) * fast, d = gradient[i];
        y[i] = z * scale[c] + offset[c];
        straight += d * scale[c] / count;
        crossed += d * scale[c] * z / count;
        factor[c] += d * z;
        shift[c] += d;
      });
      over([&](long c, long i) { image[i] = fast * (gradient[i] * scale[c] - straight - (x[i] - middle) * fast * crossed); });
    }
  compare("normalised", out, y);
  if (count < 4) return;  // of two numbers the gradient is a difference of nearly the same ones
  compare("gradient by the image of a norm", dx, image);
  compare("gradient by the scale", dscale, factor);
  compare("gradient by the offset", doffset, shift);
}

// Only that it stays within its buffers; its values are checked in Python.
template <class T>
static void recurrence(Random& random) {
  native::Sizes sizes{draw(random, 1, 4), draw(random, 1, 30), draw(random, 16, 70)};
  long states = sizes.steps * sizes.batch * sizes.hidden;
  auto projected = numbers<T>(random, 4 * states), weights = numbers<T>(random, 4 * sizes.hidden * sizes.hidden);
  auto peep = numbers<T>(random, 3 * sizes.hidden);
  std::vector<T> hidden(states), cells(states), gates(4 * states);
  const T* with = draw(random, 0, 1) ? peep.data() : nullptr;
  const native::Kernels<T>& run = native::chosen<T>();
  run.recur(projected.data(), weights.data(), with, sizes, hidden.data(), cells.data(), gates.data());
  run.recur_gradient(hidden.data(), gates.data(), cells.data(), weights.data(), with, sizes, projected.data());
}

int main(int, char** arguments) {
  long trials = std::atol(arguments[1]);
  for (int wanted = native::detected(); wanted >= 0; wanted--) {
    fedax_level(wanted);
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 3; seed++)
      threads.emplace_back([=] {
        Random random(seed);
        for (long trial = 0; trial < trials; trial++) {
          convolution<float>(random, trial % 20 == 0);
          convolution<double>(random, trial % 20 == 0);
          order_of_images<float>(random);
          order_of_images<double>(random);
          layer<float>(random);
          layer<double>(random);
          normalisation<float>(random);
          normalisation<double>(random);
          recurrence<float>(random);
          recurrence<double>(random);
        }
      });
    for (std::thread& thread : threads) thread.join();
    std::printf("instruction set %d: %ld trials in each of 3 threads\n", fedax_level(-1), trials);
  }
}
