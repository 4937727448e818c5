// Convolutions as plain sums, for one number type REAL and vectors of BYTES bytes, ROOMY where there are 32 vector
// registers. Included once for each of them, in a namespace of its own.
//
// The example is the innermost axis of all images. So a row of outputs is one contiguous span of columns x examples, whatever
// the number of channels, and a tap of the kernel moves that span by a fixed distance: one loop serves every kernel, stride
// and padding, and the batch needs no round size.

typedef REAL Vector __attribute__((vector_size(BYTES)));
typedef REAL Loose __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));  // at any address

constexpr long LANES = BYTES / sizeof(REAL);
constexpr long LINE = memory::LINE / sizeof(REAL);
constexpr long WHOLE = 128;          // batches up to here stay whole
constexpr long BLOCK = 64;           // larger ones are cut into so many examples
constexpr long RING_BYTES = 400000;  // what of the image is kept at hand, a part of the second cache
constexpr long SUMS_BYTES = 400000;

typedef decltype(Vector{} < Vector{}) Mask;  // -1 where true, 0 elsewhere

static inline Vector load(const REAL* p) { return *reinterpret_cast<const Loose*>(p); }
static inline void store(REAL* p, Vector v) { *reinterpret_cast<Loose*>(p) = v; }

// Few numbers: for a size that it knows to be small, the compiler puts slow string instructions in the place of memcpy.
static inline void copy_few(const REAL* from, REAL* to, long count) {
  if (count < LANES) {
    for (long e = 0; e < count; e++) to[e] = from[e];
    return;
  }
  for (long e = 0; e < count; e += LANES) {
    long at = least(e, count - LANES);
    store(to + at, load(from + at));
  }
}

static inline Vector masked(Vector v, Mask counts) { return (Vector)((Mask)v & counts); }

// An odd number of cache lines: rows at powers of two would fall on the same few sets of the cache.
static long odd_lines(long numbers) {
  return (divide_up(numbers, LINE) | 1) * LINE;
}

// The rows of an image that a window meets, padded, for some channels and examples. A row is kept in slot (row mod slots);
// with stride s, columns lie in s runs by their place modulo s, so that neighbouring outputs read neighbouring columns.
struct Ring {
  REAL* data;
  long slots, channels, examples, width, run, pitch, next;

  Ring(long slots, long channels, long examples, long width, long right)
      : slots(slots), channels(channels), examples(examples), width(width), run(divide_up(width, right) * examples), next(0) {
    // tiles read past the end of a row, by no more than a tile's width
    pitch = odd_lines(right * run + 8 * LANES);
    long count = (slots * channels + 1) * pitch;
    data = static_cast<REAL*>(memory::buffer(memory::RING, count * sizeof(REAL)));
    // zeros: the padding, the row outside the image, and what is read past an end, which must be no strange number
    std::memset(data, 0, count * sizeof(REAL));
  }

  long outside() const { return slots * channels * pitch; }
  long place(long channel, long row) const { return ((row % slots) * channels + channel) * pitch; }

  long column(long place, long right) const { return place % right * run + place / right * examples; }

  // Rows up to `end` of the image, for the channels and examples that begin at those given.
  void fill(Images<const REAL> image, const Window& window, long channel, long example, long begin, long end) {
    for (long row = most(next, begin); row < end; row++) {
      for (long c = 0; c < channels; c++) copy(image.at(channel + c, row) + example, image, window, data + place(c, row));
    }
    next = most(next, end);
  }

  void copy(const REAL* from, Images<const REAL> image, const Window& window, REAL* to) const {
    long first = most(window.left, 0), last = least(window.left + image.columns, width);
    if (window.right == 1 && examples == image.examples) {
      if (last > first)
        std::memcpy(to + first * examples, from + (first - window.left) * examples, (last - first) * examples * sizeof(REAL));
      return;
    }
    for (long column = first; column < last; column++) {
      REAL* place = to + (column % window.right) * run + column / window.right * examples;
      copy_few(from + (column - window.left) * image.examples, place, examples);
    }
  }
};

// ---- outputs: every tap adds its weight times a span of the image ----

constexpr int MOST_OUTPUTS = ROOMY ? 8 : 6, MOST_VECTORS = 6;
constexpr int vectors_for(int outputs) {
  int room = (ROOMY ? 24 : 12) / outputs;
  return room < MOST_VECTORS ? room : MOST_VECTORS;
}

constexpr int fewer(int a, int b) { return a < b ? a : b; }

typedef void Tile(const REAL*, const int*, long, const REAL*, REAL*, long, bool);

// OUTPUTS x VECTORS sums stay in registers over all taps.
template <int OUTPUTS, int VECTORS>
static void tile(const REAL* base, const int* offset, long taps, const REAL* weight, REAL* out, long pitch, bool add) {
  Vector sum[OUTPUTS][VECTORS];
#pragma GCC unroll 8
  for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) sum[o][n] = add ? load(out + o * pitch + n * LANES) : Vector{};
  for (long t = 0; t < taps; t++, weight += OUTPUTS) {
    const REAL* from = base + offset[t];
    Vector image[VECTORS];
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) image[n] = load(from + n * LANES);
#pragma GCC unroll 8
    for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 8
      for (int n = 0; n < VECTORS; n++) sum[o][n] += image[n] * weight[o];
  }
#pragma GCC unroll 8
  for (int o = 0; o < OUTPUTS; o++)
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) store(out + o * pitch + n * LANES, sum[o][n]);
}

template <int OUTPUTS>
static Tile* tile_of(long vectors) {
  switch (vectors) {
    case 1: return tile<OUTPUTS, 1>;
    case 2: return tile<OUTPUTS, fewer(2, vectors_for(OUTPUTS))>;
    case 3: return tile<OUTPUTS, fewer(3, vectors_for(OUTPUTS))>;
    case 4: return tile<OUTPUTS, fewer(4, vectors_for(OUTPUTS))>;
    case 5: return tile<OUTPUTS, fewer(5, vectors_for(OUTPUTS))>;
    default: return tile<OUTPUTS, vectors_for(OUTPUTS)>;
  }
}

static Tile* tile_for(long outputs, long vectors) {
  switch (outputs) {
    case 1: return tile_of<1>(vectors);
    case 2: return tile_of<2>(vectors);
    case 3: return tile_of<3>(vectors);
    case 4: return tile_of<4>(vectors);
    case 5: return tile_of<5>(vectors);
    case 6: return tile_of<6>(vectors);
    case 7: return tile_of<fewer(7, MOST_OUTPUTS)>(vectors);
    default: return tile_of<MOST_OUTPUTS>(vectors);
  }
}

// Weights in the order in which tiles meet them: tile of outputs, kernel row, channel, kernel column, output.
static void pack(Kernel<REAL> kernel, const Window& window, long channel, long channels, long outputs, long tiles, REAL* to) {
  for (long k = 0; k < tiles; k++) {
    long first = part(outputs, tiles, k), last = part(outputs, tiles, k + 1);
    for (long i = 0; i < window.height; i++)
      for (long c = channel; c < channel + channels; c++)
        for (long j = 0; j < window.width; j++)
          for (long o = first; o < last; o++)
            *to++ = kernel.data[i * kernel.by_row + c * kernel.by_input + j * kernel.by_column + o * kernel.by_output];
  }
}

// The taps that lie in the image for one row of outputs: the first of them among all taps, and how many there are.
struct Taps {
  const int* offset;
  long first, count, all;
};

// One row of outputs, `length` numbers for each channel, `pitch` apart.
static void row_of_outputs(const REAL* base, Taps taps, const REAL* weights, REAL* out, long pitch, long length, long outputs,
                           long tiles, bool add) {
  long wide = vectors_for(divide_up(outputs, tiles)), vectors = divide_up(length, LANES), spans = divide_up(vectors, wide);
  for (long s = 0; s < spans; s++) {
    long v = part(vectors, spans, s), n = part(vectors, spans, s + 1) - v, left = length - v * LANES;
    for (long k = 0; k < tiles; k++) {
      long o = part(outputs, tiles, k), many = part(outputs, tiles, k + 1) - o;
      const REAL *from = base + v * LANES, *weight = weights + o * taps.all + many * taps.first;
      REAL* to = out + o * pitch + v * LANES;
      Tile* run = tile_for(many, n);
      if (left >= n * LANES) {
        run(from, taps.offset, taps.count, weight, to, pitch, add);
        continue;
      }
      // the end of a row: a full tile beside it, of which only what belongs to the row is taken over
      REAL edge[MOST_OUTPUTS * MOST_VECTORS * LANES];
      for (long q = 0; q < many; q++)
        for (long e = 0; e < n * LANES; e++) edge[q * n * LANES + e] = add && e < left ? to[q * pitch + e] : 0;
      run(from, taps.offset, taps.count, weight, edge, n * LANES, true);
      for (long q = 0; q < many; q++) std::memcpy(to + q * pitch, edge + q * n * LANES, left * sizeof(REAL));
    }
  }
}

static void columns(Target<REAL> target, long row, long example, long examples, REAL* line, long pitch, bool read) {
  for (long o = 0; o < target.channels; o++)
    for (long q = 0; q < target.columns; q++) {
      REAL* here = target.data + o * target.by_channel + row * target.by_row + q * target.by_column + example;
      REAL* there = line + o * pitch + q * examples;
      copy_few(read ? here : there, read ? there : here, examples);
    }
}

static void dense_correlate(Images<const REAL> image, const Window& window, Kernel<REAL> kernel, Target<REAL> target) {
  long tiles = divide_up(target.channels, MOST_OUTPUTS), batch = image.examples;
  long width = (target.columns - 1) * window.right + window.width;
  for (long example = 0; example < batch;) {
    long examples = batch <= WHOLE ? batch : least(BLOCK, batch - example), length = target.columns * examples;
    long row_bytes = odd_lines(width * examples) * sizeof(REAL);
    long most_channels = most(1, least(image.channels, RING_BYTES / (row_bytes * window.height)));
    long blocks = divide_up(image.channels, most_channels);
    bool direct = examples == batch && target.by_column == batch;  // a row of outputs is one span where it belongs
    long pitch = direct ? target.by_channel : odd_lines(length);
    REAL* line = direct ? nullptr
                        : static_cast<REAL*>(memory::buffer(memory::ROW, target.channels * pitch * sizeof(REAL)));
    for (long block = 0; block < blocks; block++) {
      long channel = part(image.channels, blocks, block), channels = part(image.channels, blocks, block + 1) - channel;
      long each = channels * window.width, all = window.height * each;
      REAL* weights = static_cast<REAL*>(memory::buffer(memory::WEIGHTS, target.channels * all * sizeof(REAL)));
      int* offset = static_cast<int*>(memory::buffer(memory::OFFSETS, (all + window.width) * sizeof(int)));
      int* along = offset + all;
      pack(kernel, window, channel, channels, target.channels, tiles, weights);
      Ring ring(window.height, channels, examples, width, window.right);
      for (long j = 0; j < window.width; j++) along[j] = ring.column(j, window.right);
      for (long row = 0; row < target.rows; row++) {
        long begin = row * window.down - window.top;
        long first = most(0, -begin), last = most(first, least(window.height, image.rows - begin));
        ring.fill(image, window, channel, example, begin + first, begin + last);
        int* next = offset;
        for (long i = first; i < last; i++) {
          long place = ring.place(0, begin + i);
          for (long c = 0; c < channels; c++, place += ring.pitch)
            for (long j = 0; j < window.width; j++) *next++ = place + along[j];
        }
        Taps taps{offset, first * each, (last - first) * each, all};
        REAL* out = direct ? target.data + row * target.by_row : line;
        if (!direct && block > 0) columns(target, row, example, examples, line, pitch, true);
        row_of_outputs(ring.data, taps, weights, out, pitch, length, target.channels, tiles, block > 0);
        if (!direct) columns(target, row, example, examples, line, pitch, false);
      }
    }
    example += examples;
  }
}

// ---- gradient of the kernel: for every tap and output channel the sum of products over all pixels and examples ----

constexpr int MOST_GRADIENTS = ROOMY ? 6 : 3, MOST_TAPS = 8;
constexpr int taps_for(int gradients) {
  int room = (ROOMY ? 24 : 12) / gradients;
  return room < MOST_TAPS ? room : MOST_TAPS;
}

// Some rows of gradients: `pitch` between channels, `line` between rows, `length` numbers in each.
struct Gradients {
  const REAL* data;
  long pitch, line, length;
};

typedef void Products(Gradients, const REAL*, const int*, long, Vector*);

template <int GRADIENTS, int TAPS>
static inline __attribute__((always_inline)) void add_products(Vector (&sum)[GRADIENTS][TAPS], const Vector (&right)[GRADIENTS],
                                                               const REAL* const (&from)[TAPS], long place) {
#pragma GCC unroll 8
  for (int t = 0; t < TAPS; t++) {
    Vector left = load(from[t] + place);
#pragma GCC unroll 8
    for (int o = 0; o < GRADIENTS; o++) sum[o][t] += left * right[o];
  }
}

// GRADIENTS x TAPS sums stay in registers over some rows of outputs; lanes are added up at the very end.
template <int GRADIENTS, int TAPS>
static void products(Gradients gradients, const REAL* base, const int* offset, long rows, Vector* sums) {
  Vector sum[GRADIENTS][TAPS], right[GRADIENTS];
#pragma GCC unroll 8
  for (int o = 0; o < GRADIENTS; o++)
#pragma GCC unroll 8
    for (int t = 0; t < TAPS; t++) sum[o][t] = sums[o * TAPS + t];
  long whole = gradients.length / LANES * LANES, rest = gradients.length - LANES;
  Mask counts;  // of the last vector of a row, which begins before the end of the others
  for (long e = 0; e < LANES; e++) counts[e] = rest + e >= whole ? -1 : 0;
  for (long r = 0; r < rows; r++, gradients.data += gradients.line, offset += TAPS) {
    const REAL* from[TAPS];
#pragma GCC unroll 8
    for (int t = 0; t < TAPS; t++) from[t] = base + offset[t];
    for (long v = 0; v < whole; v += LANES) {
#pragma GCC unroll 8
      for (int o = 0; o < GRADIENTS; o++) right[o] = load(gradients.data + o * gradients.pitch + v);
      add_products<GRADIENTS, TAPS>(sum, right, from, v);
    }
    if (whole == gradients.length) continue;
#pragma GCC unroll 8
    for (int o = 0; o < GRADIENTS; o++) right[o] = masked(load(gradients.data + o * gradients.pitch + rest), counts);
    add_products<GRADIENTS, TAPS>(sum, right, from, rest);
  }
#pragma GCC unroll 8
  for (int o = 0; o < GRADIENTS; o++)
#pragma GCC unroll 8
    for (int t = 0; t < TAPS; t++) sums[o * TAPS + t] = sum[o][t];
}

template <int GRADIENTS>
static Products* products_of(long taps) {
  switch (taps) {
    case 1: return products<GRADIENTS, 1>;
    case 2: return products<GRADIENTS, fewer(2, taps_for(GRADIENTS))>;
    case 3: return products<GRADIENTS, fewer(3, taps_for(GRADIENTS))>;
    case 4: return products<GRADIENTS, fewer(4, taps_for(GRADIENTS))>;
    case 5: return products<GRADIENTS, fewer(5, taps_for(GRADIENTS))>;
    case 6: return products<GRADIENTS, fewer(6, taps_for(GRADIENTS))>;
    case 7: return products<GRADIENTS, fewer(7, taps_for(GRADIENTS))>;
    default: return products<GRADIENTS, taps_for(GRADIENTS)>;
  }
}

static Products* products_for(long gradients, long taps) {
  switch (gradients) {
    case 1: return products_of<1>(taps);
    case 2: return products_of<2>(taps);
    case 3: return products_of<3>(taps);
    case 4: return products_of<fewer(4, MOST_GRADIENTS)>(taps);
    case 5: return products_of<fewer(5, MOST_GRADIENTS)>(taps);
    default: return products_of<MOST_GRADIENTS>(taps);
  }
}

// Output channels and taps in tiles of nearly equal size, as many sums as there are registers for.
struct Tiling {
  long gradients, taps, down, across;

  Tiling(long gradients, long taps) : gradients(gradients), taps(taps) {
    int high = gradients % 6 == 0 || gradients < 4 ? MOST_GRADIENTS : fewer(4, MOST_GRADIENTS);
    down = divide_up(gradients, high);
    across = divide_up(taps, taps_for(divide_up(gradients, down)));
  }
  long gradient(long k) const { return part(gradients, down, k); }
  long tap(long k) const { return part(taps, across, k); }
};

// Some rows of gradients side by side, where they are no whole spans or too short for a vector; short ones are filled with zeros.
static Gradients gathered(Images<const REAL> gradient, long row, long rows, long example, long examples) {
  long length = gradient.columns * examples, line = most(length, LANES);
  REAL* data = static_cast<REAL*>(memory::buffer(memory::ROW, gradient.channels * rows * line * sizeof(REAL)));
  REAL* to = data;
  for (long o = 0; o < gradient.channels; o++)
    for (long r = 0; r < rows; r++, to += line) {
      const REAL* from = gradient.at(o, row + r) + example;
      for (long q = 0; q < gradient.columns; q++)
        std::memcpy(to + q * examples, from + q * gradient.examples, examples * sizeof(REAL));
      std::memset(to + length, 0, (line - length) * sizeof(REAL));
    }
  return {data, rows * line, line, line};
}

// Where each tap lies for each of some rows of outputs, in the order in which tiles meet them: tile, row, tap.
static void find(const Ring& ring, const Window& window, const Tiling& tiling, long begin, long rows, long image_rows, int* to) {
  long k = 0, first = 0, end = tiling.tap(1), t = 0;
  for (long i = 0; i < window.height; i++)
    for (long c = 0; c < ring.channels; c++)
      for (long j = 0; j < window.width; j++, t++) {
        if (t == end) first = end, end = tiling.tap(++k + 1);
        long along = c * ring.pitch + ring.column(j, window.right);
        int* place = to + first * rows + t - first;
        for (long r = 0; r < rows; r++, place += end - first) {
          long at = begin + r * window.down + i;
          *place = at < 0 || at >= image_rows ? ring.outside() : ring.place(0, at) + along;
        }
      }
}

static void dense_gradient_of_kernel(Images<const REAL> image, Images<const REAL> gradient, const Window& window, REAL* kernel) {
  long outputs = gradient.channels, batch = image.examples, width = (gradient.columns - 1) * window.right + window.width;
  long most_examples = batch <= WHOLE ? batch : BLOCK, length = gradient.columns * most_examples;
  // so many rows at a time that sums are not fetched and put back more often than they are added to
  long together = least(gradient.rows, divide_up(64, divide_up(length, LANES)));
  long slots = (together - 1) * window.down + window.height, place = window.height * window.width;
  long row_bytes = odd_lines(width * most_examples) * sizeof(REAL);
  long most_channels = least(RING_BYTES / (row_bytes * slots), SUMS_BYTES / (outputs * place * BYTES));
  long blocks = divide_up(image.channels, most(1, least(image.channels, most_channels)));
  for (long block = 0; block < blocks; block++) {
    long channel = part(image.channels, blocks, block), channels = part(image.channels, blocks, block + 1) - channel;
    long all = channels * place;
    Tiling tiling(outputs, all);
    Vector* sums = static_cast<Vector*>(memory::buffer(memory::SUMS, outputs * all * sizeof(Vector)));
    std::memset(sums, 0, outputs * all * sizeof(Vector));
    int* offsets = static_cast<int*>(memory::buffer(memory::OFFSETS, all * together * sizeof(int)));
    for (long example = 0; example < batch;) {
      long examples = batch <= WHOLE ? batch : least(BLOCK, batch - example);
      Ring ring(slots, channels, examples, width, window.right);
      bool direct = examples == batch && gradient.columns * batch >= LANES;
      for (long row = 0; row < gradient.rows; row += together) {
        long rows = least(together, gradient.rows - row), begin = row * window.down - window.top;
        long end = least(image.rows, begin + (rows - 1) * window.down + window.height);
        ring.fill(image, window, channel, example, most(0, begin), end);
        find(ring, window, tiling, begin, rows, image.rows, offsets);
        long line = gradient.columns * batch;
        Gradients some = direct ? Gradients{gradient.at(0, row), gradient.rows * line, line, line}
                             : gathered(gradient, row, rows, example, examples);
        for (long d = 0; d < tiling.down; d++) {
          long o = tiling.gradient(d), many = tiling.gradient(d + 1) - o;
          Gradients mine{some.data + o * some.pitch, some.pitch, some.line, some.length};
          for (long k = 0; k < tiling.across; k++) {
            long tap = tiling.tap(k), taps = tiling.tap(k + 1) - tap;
            products_for(many, taps)(mine, ring.data, offsets + tap * rows, rows, sums + o * all + tap * many);
          }
        }
      }
      example += examples;
    }
    for (long d = 0; d < tiling.down; d++) {
      long o = tiling.gradient(d), many = tiling.gradient(d + 1) - o;
      for (long k = 0; k < tiling.across; k++) {
        long tap = tiling.tap(k), taps = tiling.tap(k + 1) - tap;
        const Vector* sum = sums + o * all + tap * many;
        for (long q = 0; q < many; q++)
          for (long t = tap; t < tap + taps; t++, sum++) {
            REAL total = 0;
            for (long e = 0; e < LANES; e++) total += (*sum)[e];
            long i = t / (channels * window.width), c = t / window.width % channels, j = t % window.width;
            kernel[((i * window.width + j) * image.channels + channel + c) * outputs + o + q] = total;
          }
      }
    }
  }
}
