// A convolution with a bias, ReLU and pooling behind it, and its two gradients, for one number type REAL; included like convolution.h.
//
// Outputs are pooled some rows at a time, while they are in the cache, and those that fill no window are not computed.
// The gradient of the outputs has one number for each window, at the pixel that won it. The lists are made from those numbers and
// their winners; the gradient of all outputs is written only where lists do not pay.

constexpr long BAND_BYTES = 420000;

static void convolve_pooled(Images<const REAL> image, const REAL* kernel, const Window& window, const REAL* bias, long height, long width,
                            Images<REAL> out, uint8_t* winner) {
  const long columns = out.columns * width, line = out.channels * columns * out.examples;
  // tiles have values of the kernel, which each band would compute anew
  const bool tiles = Shares(image, out.channels, out.rows * height, columns, window).take_tiles();
  const long rows = tiles ? out.rows : most(1, least(out.rows, BAND_BYTES / most(1, line * height * long(sizeof(REAL)))));
  REAL* data = static_cast<REAL*>(memory::buffer(memory::SPREAD, (line * rows * height + LANES) * sizeof(REAL)));
  for (long first = 0; first < out.rows; first += rows) {
    const long many = least(rows, out.rows - first) * height;
    const Window below{window.height, window.width, window.down, window.right, window.top - first * height * window.down, window.left};
    forward(image, kernel, below, {data, out.channels, many, columns, out.examples});
    pool_rows({data, out.channels, many, columns, out.examples}, bias, height, width, out, winner, first);
  }
}

// ---- gradients ----

typedef int Ints __attribute__((vector_size(LANES * sizeof(int))));
typedef int LooseInts __attribute__((vector_size(LANES * sizeof(int)), aligned(4), may_alias));

typedef decltype(0 + Mask{}[0]) Place;  // a whole number as wide as REAL

struct Pooled {
  static constexpr int STEP = 2;  // where places have regions, a window has 2 x 2 pixels
  Images<const REAL> gradient, all;  // of windows; and as all outputs, whose numbers are nowhere
  const uint8_t* winner;
  long height, width;  // of a window
  Images<const REAL> outputs() const { return all; }
  long rows() const { return gradient.rows; }
  long columns() const { return gradient.columns; }

  void begin(const Steps&, long, int*) const {}
  long places_apart(long whole) const { return whole; }

  void lines(long channel, const Some& some, const Steps& steps, REAL* values, int* places, long whole) const {
    const REAL* from = gradient.at(channel, 0) + some.begin;
    const uint8_t* won = winner + (from - gradient.data);
    const long pixels = rows() * columns(), last = least(LANES, gradient.examples - some.begin);
    const Place inverse = 65536 / width + 1, across = width, by_row = steps.row, by_column = steps.column;
    long row = 0, column = 0;
    for (long p = 0; p < whole; p += LANES) {
      Vector value[LANES], place[LANES];
      for (long n = 0; n < LANES; n++) {
        value[n] = place[n] = Vector{};
        if (p + n >= pixels) continue;
        const long here = (p + n) * gradient.examples;
        const Place corner = row * height * steps.row + column * width * steps.column;
        uint8_t few[LANES] = {};
        if (last < LANES) std::memcpy(few, won + here, last);
        Mask k = wide(last < LANES ? few : won + here), down = k * inverse >> 16;  // k / width
        value[n] = masked(last < LANES ? some.get(from - some.begin + here) : load(from + here), k != NONE);
        place[n] = (Vector)(corner + down * by_row + (k - down * across) * by_column);
        if (++column == columns()) column = 0, row++;
      }
      turn<LANES>(value);
      turn<LANES>(place);
      for (long e = some.first; e < some.count; e++) {
        store(values + e * whole + p, value[e]);
        *reinterpret_cast<LooseInts*>(places + e * whole + p) = __builtin_convertvector((Mask)place[e], Ints);
      }
    }
  }

  Vector at(long channel, long place, const Some& some, Mask& pixel) const {
    const REAL* from = gradient.at(channel, 0) + place * gradient.examples;
    const uint8_t* won = winner + (from - gradient.data) + some.begin;
    uint8_t few[LANES] = {};
    if (some.count < LANES) std::memcpy(few, won, some.count);
    pixel = wide(some.count < LANES ? few : won);
    return some.get(from);
  }
};

// Which share of the windows has a winner: of some of them, evenly spread.
static double share_of_winners(const Pooled& pooled) {
  long all = pooled.gradient.channels * pooled.rows() * pooled.columns() * pooled.gradient.examples;
  long spans = least(SAMPLES, divide_up(all, LINE)), won = 0, seen = 0;
  for (long s = 0; s < spans; s++) {
    long begin = part(all, spans, s), end = least(all, begin + LINE);
    for (long n = begin; n < end; n++) won += pooled.winner[n] != NONE;
    seen += end - begin;
  }
  return seen ? double(won) / seen : 1;
}

constexpr double SPREAD = 0.9;  // writing a number of the gradient of all outputs, in the unit of Cost

static bool pooled_is_faster(const Pooled& pooled, const Spans& spans, const Cost& cost, double share) {
  const Images<const REAL> outputs = pooled.outputs();
  double windows = double(pooled.rows() * pooled.columns()) / most(1, outputs.rows * outputs.columns);
  return sparse_is_faster(spans, outputs, cost, share, windows * share_of_winners(pooled), windows, SPREAD);
}

static Images<REAL> spread_out(const Pooled& pooled) {
  const Images<const REAL> outputs = pooled.outputs();
  Images<REAL> out{nullptr, outputs.channels, outputs.rows, outputs.columns, outputs.examples};
  out.data = static_cast<REAL*>(memory::buffer(memory::SPREAD, (out.channels * out.rows * out.columns * out.examples + LANES) * sizeof(REAL)));
  spread(pooled.gradient, pooled.winner, pooled.height, pooled.width, out);
  return out;
}

static Images<const REAL> fixed(Images<REAL> images) { return {images.data, images.channels, images.rows, images.columns, images.examples}; }

static void pooled_gradient_of_image(Images<const REAL> gradient, const uint8_t* winner, long height, long width, long rows, long columns,
                                     const REAL* kernel, const Window& window, Images<REAL> image) {
  Pooled pooled{gradient, {nullptr, gradient.channels, rows, columns, gradient.examples}, winner, height, width};
  Spans spans(image.channels, pooled.outputs(), window);
  if (height == 2 && width == 2 && has_regions(spans, window, 2) &&
      pooled_is_faster(pooled, spans, OF_IMAGE, share_for_image(pooled.outputs(), window, image)))
    return sparse_gradient_of_image(pooled, kernel, window, spans, image);
  gradient_of_image(fixed(spread_out(pooled)), kernel, window, image);
}

static void pooled_gradient_of_kernel(Images<const REAL> image, Images<const REAL> gradient, const uint8_t* winner, long height, long width,
                                      long rows, long columns, const Window& window, REAL* kernel) {
  Pooled pooled{gradient, {nullptr, gradient.channels, rows, columns, gradient.examples}, winner, height, width};
  Spans spans(image.channels, pooled.outputs(), window);
  double share = share_for_kernel(image, pooled.outputs(), window);
  if (pooled_is_faster(pooled, spans, OF_KERNEL, share)) return sparse_gradient_of_kernel(image, pooled, window, spans, kernel);
  gradient_of_kernel_without_lists(image, fixed(spread_out(pooled)), window, share, kernel);
}
