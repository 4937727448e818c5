// Convolutions of stride 1 with fewer multiplications, for one number type REAL; included like convolution.h.
//
// Outputs come in tiles of M x M. A tile is a polynomial product along each axis, found by its values at POINTS = M + taps - 1
// points (Winograd's minimal filtering: Lavin and Gray, arXiv:1509.09308): of the image's tile, of the kernel, and their product
// for each pair of points, a sum over channels. With six points, 3 x 3 kernels take 2.25 multiplications for an output in place
// of 9, and 5 x 5 kernels 9 in place of 25. The points 0, 1, -1, 1/2, -2 and infinity keep the rounding near that of plain sums.

constexpr int POINTS = 6;
constexpr long TILES_BYTES = 700000;     // values of images that are kept at hand, a part of the second cache
constexpr long PRODUCTS_BYTES = 150000;  // and of products

// ---- the values at all points, along one axis ----

// Of six numbers of an image: x_0 + x_1 p + ... times what makes a product of polynomials a correlation.
static inline __attribute__((always_inline)) void values_of_image(const Vector (&x)[POINTS], Vector (&at)[POINTS]) {
  const Vector even = x[4] - x[2], odd = x[3] - x[1], one = even + x[3] * REAL(1.5), two = odd + x[2] * REAL(1.5);
  at[0] = x[0] - x[2] + even + odd * REAL(1.5);
  at[1] = one + two;
  at[2] = one - two;
  at[3] = even + odd * REAL(2);
  at[4] = even - odd * REAL(0.5);
  at[5] = x[5] - x[3] + even * REAL(1.5) - odd;
}

constexpr double POWERS[POINTS - 1][5] = {
    {1, 0, 0, 0, 0}, {1, 1, 1, 1, 1}, {1, -1, 1, -1, 1}, {1, 0.5, 0.25, 0.125, 0.0625}, {1, -2, 4, -8, 16}};
constexpr double RATES[POINTS - 1] = {1, 1 / 3., -1 / 3., -16 / 15., 1 / 15.};  // one over products of differences of points

// M outputs from products at all points.
template <int M>
static inline __attribute__((always_inline)) void outputs_from(const Vector (&at)[POINTS], Vector (&y)[M]) {
  const Vector even = at[1] + at[2], odd = at[1] - at[2];
#pragma GCC unroll 4
  for (int m = 0; m < M; m++) {
    y[m] = (m % 2 ? odd : even) + at[3] * REAL(POWERS[3][m]) + at[4] * REAL(POWERS[4][m]);
    if (m == 0) y[m] += at[0];
    if (m == M - 1) y[m] += at[POINTS - 1];
  }
}

// Its transpose: the values of M gradients.
template <int M>
static inline __attribute__((always_inline)) void values_of_gradient(const Vector (&y)[M], Vector (&at)[POINTS]) {
  Vector even = y[0], odd = y[1], half = y[0], two = y[0];
#pragma GCC unroll 4
  for (int m = 1; m < M; m++) {
    if (m > 1) (m % 2 ? odd : even) += y[m];
    half += y[m] * REAL(POWERS[3][m]);
    two += y[m] * REAL(POWERS[4][m]);
  }
  at[0] = y[0];
  at[1] = even + odd;
  at[2] = even - odd;
  at[3] = half;
  at[4] = two;
  at[5] = y[M - 1];
}

// What tap t of a kernel adds to the value at point p.
static inline REAL of_tap(int p, int t, int taps) {
  return p == POINTS - 1 ? t == taps - 1 : REAL(RATES[p] * POWERS[p][t]);
}

// ---- tiles ----

// LANES neighbouring examples, or, where the batch has fewer, all of them.
template <bool WHOLE>
struct Lane {
  long count;

  Vector get(const REAL* from) const {
    if constexpr (WHOLE) return load(from);
    return first(from);
  }
  void put(REAL* to, Vector values) const {
    if constexpr (WHOLE) return store(to, values);
    put_first(to, values);
  }

 private:
#if BYTES == 64
  Vector first(const REAL* from) const {
    if constexpr (sizeof(REAL) == 4) return (Vector)_mm512_maskz_loadu_ps((1 << count) - 1, from);
    if constexpr (sizeof(REAL) == 8) return (Vector)_mm512_maskz_loadu_pd((1 << count) - 1, from);
  }
  void put_first(REAL* to, Vector values) const {
    if constexpr (sizeof(REAL) == 4) _mm512_mask_storeu_ps(to, (1 << count) - 1, (__m512)values);
    if constexpr (sizeof(REAL) == 8) _mm512_mask_storeu_pd(to, (1 << count) - 1, (__m512d)values);
  }
#else
  Vector first(const REAL* from) const {
    Vector out{};
    for (long e = 0; e < count; e++) out[e] = from[e];
    return out;
  }
  void put_first(REAL* to, Vector values) const {
    for (long e = 0; e < count; e++) to[e] = values[e];
  }
#endif
};

// `run` gets the lanes of a batch one after the other, and where they begin; the last ones begin earlier where the batch is no
// multiple of LANES.
template <class Function>
static inline __attribute__((always_inline)) void over_lanes(long batch, Function run) {
  if (batch < LANES) return run(Lane<false>{batch}, 0);
  for (long e = 0; e < batch; e += LANES) run(Lane<true>{LANES}, least(e, batch - LANES));
}

// SIZE x SIZE numbers of an image, channel after channel; those outside are zeros.
template <int SIZE>
struct Patch {
  const REAL* at[SIZE][SIZE];
  long next[SIZE][SIZE];

  Patch(Images<const REAL> image, long row, long column, long example, const REAL* zeros) {
    for (long i = 0; i < SIZE; i++)
      for (long j = 0; j < SIZE; j++) {
        bool inside = row + i >= 0 && row + i < image.rows && column + j >= 0 && column + j < image.columns;
        at[i][j] = inside ? image.at(0, row + i) + (column + j) * image.examples + example : zeros;
        next[i][j] = inside ? image.rows * image.columns * image.examples : 0;
      }
  }
  void move() {
    for (long i = 0; i < SIZE; i++)
      for (long j = 0; j < SIZE; j++) at[i][j] += next[i][j];
  }
};

static inline __attribute__((always_inline)) void values_along(const Vector (&x)[POINTS], Vector (&at)[POINTS]) {
  values_of_image(x, at);
}
template <int M>
static inline __attribute__((always_inline)) void values_along(const Vector (&y)[M], Vector (&at)[POINTS]) {
  values_of_gradient(y, at);
}

// The values of a patch at COUNT rows of points, `apart` from one point to the next.
template <int FIRST, int COUNT, int SIZE, bool WHOLE>
static inline void values_of(const Patch<SIZE>& patch, Lane<WHOLE> lane, long example, REAL* to, long apart) {
  Vector half[COUNT][SIZE];
#pragma GCC unroll 6
  for (int j = 0; j < SIZE; j++) {
    Vector x[SIZE], at[POINTS];
#pragma GCC unroll 6
    for (int i = 0; i < SIZE; i++) x[i] = lane.get(patch.at[i][j] + example);
    values_along(x, at);
#pragma GCC unroll 6
    for (int r = 0; r < COUNT; r++) half[r][j] = at[FIRST + r];
  }
#pragma GCC unroll 6
  for (int r = 0; r < COUNT; r++) {
    Vector at[POINTS];
    values_along(half[r], at);
#pragma GCC unroll 6
    for (int b = 0; b < POINTS; b++) store(to + (r * POINTS + b) * apart + example, at[b]);
  }
}

// Tiles and examples in parts whose values fit the cache: `run` gets the part's first tile and example, and how many of them.
struct Parts {
  long down, across, batch, tiles, examples;
  long pitch, channel;  // distances of points, and of channels; odd numbers of cache lines

  // For the rows and columns of outputs, the examples, the size of a tile, the points of each, and all channels.
  Parts(long rows, long columns, long batch, long size, long points, long channels)
      : down(divide_up(rows, size)), across(divide_up(columns, size)), batch(batch), examples(batch <= WHOLE ? batch : BLOCK) {
    tiles = most(1, least(down * across, TILES_BYTES / (examples * points * channels * long(sizeof(REAL)))));
    tiles = divide_up(down * across, divide_up(down * across, tiles));
    pitch = odd_lines(tiles * examples + LANES);
    channel = odd_lines(points * pitch);
  }
  template <class Function>
  void over(Function run) const {
    for (long example = 0; example < batch; example += examples)
      for (long tile = 0; tile < down * across; tile += tiles)
        run(tile, least(tiles, down * across - tile), example, least(examples, batch - example));
  }
};

// The values of all channels for the tiles of a part, in the order channel, point, tile, example. What lies past the end is zeros.
template <int FIRST, int COUNT, int SIZE>
static void values_of_part(Images<const REAL> image, const Parts& parts, long step, long top, long left, long tile, long tiles,
                           long example, long examples, const REAL* zeros, REAL* to) {
  const long last = (divide_up(tiles * examples, LANES) - 1) * LANES;
  for (long c = 0; c < image.channels; c++)
    for (long p = 0; p < COUNT * POINTS; p++) store(to + c * parts.channel + p * parts.pitch + last, Vector{});
  Patch<SIZE>* patches = static_cast<Patch<SIZE>*>(memory::buffer(memory::PLACES, tiles * sizeof(Patch<SIZE>)));
  for (long t = 0; t < tiles; t++) {
    long row = (tile + t) / parts.across * step - top, column = (tile + t) % parts.across * step - left;
    new (patches + t) Patch<SIZE>(image, row, column, example, zeros);
  }
  for (long c = 0; c < image.channels; c++)  // channel by channel: neighbouring tiles read neighbouring memory
    for (long t = 0; t < tiles; patches[t++].move())
      over_lanes(examples, [&](auto lane, long e) {
        values_of<FIRST, COUNT>(patches[t], lane, e, to + c * parts.channel + t * examples, parts.pitch);
      });
}

static const REAL* zeros_for(long count) {
  void* zeros = memory::buffer(memory::ZEROS, count * sizeof(REAL));
  return static_cast<REAL*>(std::memset(zeros, 0, count * sizeof(REAL)));
}

// ---- outputs ----

// The values of a kernel in the order in which tiles meet them: point, tile of outputs, channel, output.
template <int TAPS>
static void values_of_kernel(Kernel<REAL> kernel, long channels, long outputs, long tiles, REAL* to) {
  long all = channels * outputs;
  int* place = static_cast<int*>(memory::buffer(memory::OFFSETS, (all + LANES) * sizeof(int)));
  for (long k = 0, n = 0; k < tiles; k++)
    for (long c = 0; c < channels; c++)
      for (long o = part(outputs, tiles, k); o < part(outputs, tiles, k + 1); o++)
        place[n++] = c * kernel.by_input + o * kernel.by_output;
  for (long e = 0; e < LANES; e++) place[all + e] = 0;
  REAL factor[POINTS][TAPS];
  for (int p = 0; p < POINTS; p++)
    for (int t = 0; t < TAPS; t++) factor[p][t] = of_tap(p, t, TAPS);
  for (long n = 0; n < all; n += LANES) {
    Vector half[POINTS][TAPS] = {};
    for (int i = 0; i < TAPS; i++)
      for (int j = 0; j < TAPS; j++) {
        REAL taps[LANES];
        for (long e = 0; e < LANES; e++) taps[e] = kernel.data[i * kernel.by_row + j * kernel.by_column + place[n + e]];
        for (int p = 0; p < POINTS; p++) half[p][j] += load(taps) * factor[p][i];
      }
    for (int p = 0; p < POINTS; p++)
      for (int q = 0; q < POINTS; q++) {
        Vector value{};
        for (int j = 0; j < TAPS; j++) value += half[p][j] * factor[q][j];
        REAL* here = to + (p * POINTS + q) * all + n;
        all - n >= LANES ? store(here, value) : (void)std::memcpy(here, &value, (all - n) * sizeof(REAL));
      }
  }
}

// A tile of outputs from products at all points, `apart` from one to the next; `rows` x `columns` of it are there.
template <int M, bool WHOLE>
static inline void put_outputs(const REAL* from, long apart, Lane<WHOLE> lane, REAL* to, long by_row, long by_column, long rows, long columns) {
  Vector half[M][POINTS];
#pragma GCC unroll 6
  for (int b = 0; b < POINTS; b++) {
    Vector at[POINTS], y[M];
#pragma GCC unroll 6
    for (int a = 0; a < POINTS; a++) at[a] = load(from + (a * POINTS + b) * apart);
    outputs_from(at, y);
#pragma GCC unroll 4
    for (int r = 0; r < M; r++) half[r][b] = y[r];
  }
#pragma GCC unroll 4
  for (int r = 0; r < M; r++) {
    if (r >= rows) return;
    Vector y[M];
    outputs_from(half[r], y);
#pragma GCC unroll 4
    for (int q = 0; q < M; q++)
      if (q < columns) lane.put(to + r * by_row + q * by_column, y[q]);
  }
}

template <int M>
static void winograd_correlate(Images<const REAL> image, const Window& window, Kernel<REAL> kernel, Target<REAL> target) {
  constexpr long ALL = POINTS * POINTS;
  long channels = image.channels, outputs = target.channels, tiles = divide_up(outputs, MOST_OUTPUTS);
  Parts parts(target.rows, target.columns, image.examples, M, ALL, channels);
  long together = most(1, least(tiles, PRODUCTS_BYTES / long(MOST_OUTPUTS * parts.channel * sizeof(REAL))));
  REAL* weights = static_cast<REAL*>(memory::buffer(memory::WEIGHTS, ALL * channels * outputs * sizeof(REAL)));
  REAL* values = static_cast<REAL*>(memory::buffer(memory::RING, channels * parts.channel * sizeof(REAL)));
  REAL* products = static_cast<REAL*>(memory::buffer(memory::SUMS, together * MOST_OUTPUTS * parts.channel * sizeof(REAL)));
  const REAL* zeros = zeros_for(parts.examples);
  values_of_kernel<POINTS + 1 - M>(kernel, channels, outputs, tiles, weights);
  int* offset = static_cast<int*>(memory::buffer(memory::OFFSETS, channels * sizeof(int)));
  for (long c = 0; c < channels; c++) offset[c] = c * parts.channel;
  parts.over([&](long tile, long many, long example, long examples) {
    values_of_part<0, POINTS, POINTS>(image, parts, M, window.top, window.left, tile, many, example, examples, zeros, values);
    for (long k = 0; k < tiles; k += together) {
      long first = part(outputs, tiles, k), last = part(outputs, tiles, least(tiles, k + together));
      for (long p = 0; p < ALL; p++)
        for (long n = k; n < least(tiles, k + together); n++) {
          long o = part(outputs, tiles, n), count = part(outputs, tiles, n + 1) - o, wide = vectors_for(count);
          long vectors = divide_up(many * examples, LANES), spans = divide_up(vectors, wide);
          for (long s = 0; s < spans; s++) {
            long v = part(vectors, spans, s), along = part(vectors, spans, s + 1) - v;
            const long at = p * parts.pitch + v * LANES;
            tile_for(count, along)(values + at, offset, channels, weights + (p * outputs + o) * channels,
                                   products + (o - first) * parts.channel + at, parts.channel, false);
          }
        }
      for (long o = first; o < last; o++)
        for (long t = 0; t < many; t++) {
          long row = (tile + t) / parts.across * M, column = (tile + t) % parts.across * M;
          REAL* to = target.data + o * target.by_channel + row * target.by_row + column * target.by_column + example;
          over_lanes(examples, [&](auto lane, long e) {
            put_outputs<M>(products + (o - first) * parts.channel + t * examples + e, parts.pitch, lane, to + e,
                           target.by_row, target.by_column, target.rows - row, target.columns - column);
          });
        }
    }
  });
}

// ---- gradient of the kernel: for each pair of points the sum of products over tiles and examples ----

constexpr int TALL = 4, BROAD = ROOMY ? 4 : 2, BLOCK_SUMS = TALL * BROAD;

// The sums of neighbouring lanes, of a in the lower half.
static inline Vector paired(Vector a, Vector b) {
#if defined(__clang__)
  Vector even, odd;
#pragma GCC unroll 16
  for (int e = 0; e < LANES; e++) {
    even[e] = e < LANES / 2 ? a[2 * e] : b[2 * e - LANES];
    odd[e] = e < LANES / 2 ? a[2 * e + 1] : b[2 * e + 1 - LANES];
  }
  return even + odd;
#else
  Mask even, odd;
#pragma GCC unroll 16
  for (int e = 0; e < LANES; e++) even[e] = 2 * e, odd[e] = 2 * e + 1;
  return __builtin_shuffle(a, b, even) + __builtin_shuffle(a, b, odd);
#endif
}

// The sum over the lanes of each of LANES vectors.
template <int COUNT>
static inline __attribute__((always_inline)) Vector totals(Vector* sums) {
  if constexpr (COUNT > 1) {
#pragma GCC unroll 8
    for (int k = 0; k < COUNT / 2; k++) sums[k] = paired(sums[2 * k], sums[2 * k + 1]);
    return totals<COUNT / 2>(sums);
  }
  return sums[0];
}

// Adds to `to` what TALL channels of the image and BROAD of the gradient have in common. Where there are fewer, the last one
// stands in.
static void add_block(const REAL* image, long channels, const REAL* gradient, long outputs, long pitch, long vectors, REAL* to) {
  Vector sum[BLOCK_SUMS] = {};
  const REAL *left[TALL], *right[BROAD];
#pragma GCC unroll 4
  for (int c = 0; c < TALL; c++) left[c] = image + least(c, channels - 1) * pitch;
#pragma GCC unroll 4
  for (int o = 0; o < BROAD; o++) right[o] = gradient + least(o, outputs - 1) * pitch;
  for (long v = 0; v < vectors * LANES; v += LANES) {
    Vector x[TALL];
#pragma GCC unroll 4
    for (int c = 0; c < TALL; c++) x[c] = load(left[c] + v);
#pragma GCC unroll 4
    for (int o = 0; o < BROAD; o++) {
      Vector y = load(right[o] + v);
#pragma GCC unroll 4
      for (int c = 0; c < TALL; c++) sum[c * BROAD + o] += x[c] * y;
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < BLOCK_SUMS; k += LANES) store(to + k, load(to + k) + totals<LANES>(sum + k));
}

// The sums at ROWS rows of points from the first one given.
template <int M, int FIRST, int ROWS>
static void add_sums(Images<const REAL> image, Images<const REAL> gradient, const Window& window, const Parts& parts, REAL* sums) {
  constexpr long ALL = ROWS * POINTS;
  long channels = image.channels, outputs = gradient.channels;
  REAL* values = static_cast<REAL*>(memory::buffer(memory::RING, channels * parts.channel * sizeof(REAL)));
  REAL* others = static_cast<REAL*>(memory::buffer(memory::ROW, outputs * parts.channel * sizeof(REAL)));
  const REAL* zeros = zeros_for(parts.examples);
  parts.over([&](long tile, long many, long example, long examples) {
    values_of_part<FIRST, ROWS, POINTS>(image, parts, M, window.top, window.left, tile, many, example, examples, zeros, values);
    values_of_part<FIRST, ROWS, M>(gradient, parts, M, 0, 0, tile, many, example, examples, zeros, others);
    REAL* to = sums;
    for (long p = 0; p < ALL; p++)
      for (long c = 0; c < channels; c += TALL)
        for (long o = 0; o < outputs; o += BROAD, to += BLOCK_SUMS)
          add_block(values + c * parts.channel + p * parts.pitch, channels - c, others + o * parts.channel + p * parts.pitch,
                    outputs - o, parts.channel, divide_up(many * examples, LANES), to);
  });
}

template <int M>
static void winograd_gradient_of_kernel(Images<const REAL> image, Images<const REAL> gradient, const Window& window, REAL* kernel) {
  constexpr int TAPS = POINTS + 1 - M, ROWS = 2;
  long channels = image.channels, outputs = gradient.channels;
  long blocks = divide_up(channels, TALL) * divide_up(outputs, BROAD), each = blocks * BLOCK_SUMS;
  Parts parts(gradient.rows, gradient.columns, image.examples, M, ROWS * POINTS, channels + outputs);
  REAL* sums = static_cast<REAL*>(memory::buffer(memory::SUMS, POINTS * POINTS * each * sizeof(REAL)));
  std::memset(sums, 0, POINTS * POINTS * each * sizeof(REAL));
  add_sums<M, 0, ROWS>(image, gradient, window, parts, sums);
  add_sums<M, 2, ROWS>(image, gradient, window, parts, sums + 2 * POINTS * each);
  add_sums<M, 4, ROWS>(image, gradient, window, parts, sums + 4 * POINTS * each);
  REAL factor[TAPS][POINTS];
  for (int t = 0; t < TAPS; t++)
    for (int p = 0; p < POINTS; p++) factor[t][p] = of_tap(p, t, TAPS);
  for (long n = 0; n < each; n += LANES) {
    Vector half[TAPS][POINTS] = {};
    for (int p = 0; p < POINTS; p++)
      for (int q = 0; q < POINTS; q++)
        for (int i = 0; i < TAPS; i++) half[i][q] += load(sums + (p * POINTS + q) * each + n) * factor[i][p];
    for (int i = 0; i < TAPS; i++)
      for (int j = 0; j < TAPS; j++) {
        Vector total{};
        for (int q = 0; q < POINTS; q++) total += half[i][q] * factor[j][q];
        for (long e = 0; e < LANES; e++) {
          long block = (n + e) / BLOCK_SUMS, across = divide_up(outputs, BROAD), place = (n + e) % BLOCK_SUMS;
          long c = block / across * TALL + place / BROAD, o = block % across * BROAD + place % BROAD;
          if (c < channels && o < outputs) kernel[((i * TAPS + j) * channels + c) * outputs + o] = total[e];
        }
      }
  }
}

// ---- where this is faster ----

// Times as measured with AVX-512, of a vector; that of a multiplication in plain sums is 1.
struct Work {
  double sums, product, image, outputs, kernel;  // plain sums; a product; values of a channel and of an output; of the kernel, once
};
constexpr Work OF_OUTPUTS{1, 1.15, 450, 250, 20}, OF_TAPS{1.4, 1.2, 700, 700, 20};

// Rows of a kernel that meet rows of the image, summed over the rows of outputs; plain sums skip the others.
static double rows_met(Images<const REAL> image, long rows, const Window& window) {
  long met = 0;
  for (long r = 0; r < rows; r++) {
    long begin = r * window.down - window.top;
    met += most(0, least(window.height, image.rows - begin) - most(0, -begin));
  }
  return met;
}

// Time of these forms in that of plain sums, for images, rows and columns of outputs, and a window; 2 where they cannot be had.
static double winograd_share(Images<const REAL> image, long outputs, long rows, long columns, const Window& window, const Work& work) {
  const long channels = image.channels, examples = image.examples;
  long taps = window.height, size = POINTS + 1 - taps;
  if (window.width != taps || window.down != 1 || window.right != 1 || taps < 3 || taps > 5) return 2;
  if (examples < LANES && BYTES < 64) return 2;  // they would be read one by one
  long tiles = divide_up(rows, size) * divide_up(columns, size);
  double pairs = double(channels) * outputs, met = rows_met(image, rows, window);
  double plain = work.sums * taps * pairs * met * divide_up(columns * examples, LANES);
  double products = work.product * POINTS * POINTS * pairs * divide_up(tiles * examples, LANES);
  double values = (work.image * channels + work.outputs * outputs) * tiles * divide_up(examples, LANES);
  return (products + values + work.kernel * pairs) / plain;
}

constexpr double GAIN = 0.9;  // less would not be worth the rounding

template <int M>
struct Tiled {
  static constexpr int SIZE = M;
};

// `run` gets the size of the tiles that suit so many taps, for which there is a share of the time.
template <class Function>
static void with_tiles(long taps, Function run) {
  if (taps == 3) return run(Tiled<4>{});
  if (taps == 4) return run(Tiled<3>{});
  run(Tiled<2>{});
}
