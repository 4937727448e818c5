// The gradient of a convolution's kernel where most of the outputs' gradient is zeros, for one number type REAL; included like
// convolution.h. Behind the pooling of four pixels three of four numbers are zero, and behind ReLU those where it is flat.
//
// Of each example and output channel the numbers that are not zero are listed with their places. Images lie example by example
// here, with the channel innermost: what the taps of one row of the kernel meet is one contiguous span. Each number of the list
// moves the whole kernel once, `vectors` of it for each row.

constexpr int FEW_ROWS = 3, SOME_ROWS = 5, SPAN_VECTORS = 8, SPARSE_SUMS = ROOMY ? 25 : 12;
constexpr int span_for(int rows) { return fewer(SPARSE_SUMS / rows, SPAN_VECTORS); }
constexpr size_t LISTS_BYTES = 64000000;
constexpr long SAMPLES = 64;  // spans of LINE numbers that are looked at for how many are zero

// Sizes of a padded image and of kernels as they lie here, in numbers. Of many channels there are LANES at a time, the last of
// them zeros perhaps, so that an image stays in the first cache.
struct Spans {
  long all, channels, blocks;                // channels of the image, and of a block
  long outputs, width;                       // of the kernel
  long height, length, vectors, line, each;  // of it for a block: rows, numbers and vectors in a row, distances of rows and outputs
  long pitch, image;                         // between rows of a padded image, and between images

  Spans(long all, Images<const REAL> gradient, const Window& window)
      : all(all), channels(least(all, LANES)), outputs(gradient.channels), width(window.width), height(window.height) {
    blocks = divide_up(all, channels);
    length = width * channels;
    vectors = divide_up(length, LANES);
    line = vectors * LANES;
    each = height * line;
    pitch = odd_lines(((gradient.columns - 1) * window.right + width) * channels);
    image = odd_lines(((gradient.rows - 1) * window.down + height) * pitch + line + LANES);
  }
  long kernels() const { return blocks * outputs * each; }

  // For every number of all kernels its place here and in their array.
  template <class Function>
  void over_kernels(Function run) const {
    for (long i = 0; i < height; i++)
      for (long j = 0; j < width; j++)
        for (long c = 0; c < all; c++)
          for (long o = 0; o < outputs; o++)
            run((c / channels * outputs + o) * each + i * line + j * channels + c % channels, ((i * width + j) * all + c) * outputs + o);
  }
};

// Which share of the numbers is not zero: of some of them, evenly spread.
static double share_of_others(Images<const REAL> gradient) {
  long all = gradient.channels * gradient.rows * gradient.columns * gradient.examples, spans = least(SAMPLES, divide_up(all, LINE));
  long others = 0, seen = 0;
  for (long s = 0; s < spans; s++) {
    long begin = part(all, spans, s), end = least(all, begin + LINE);
    for (long n = begin; n < end; n++) others += gradient.data[n] != 0;
    seen += end - begin;
  }
  return seen ? double(others) / seen : 1;
}

// Times of one vector of the kernel for one number, as measured with AVX-512; that of a gradient of the kernel without lists is 1.
struct Cost {
  double dense, whole, loose;  // without lists; with them, where vectors lie at whole cache lines, and elsewhere
};
constexpr Cost OF_KERNEL{1, 1.1, 2.2};
constexpr double READ = BYTES == 64 ? 1.5 : 7, LISTED = 4;  // of every number, and of one that is not zero; without AVX-512 one by one

// Whether lists are faster, by the share of numbers that are not zero and that of numbers that are read; `share` is the time
// without lists in that of plain sums, where it is below 1, and `ahead` what has to be done before.
static bool sparse_is_faster(const Spans& spans, Images<const REAL> gradient, const Cost& cost, double share, double others, double read,
                             double ahead) {
  double numbers = double(spans.outputs) * gradient.rows * gradient.columns;
  if (gradient.examples < 4 || numbers * (sizeof(REAL) + sizeof(int)) * LANES > LISTS_BYTES) return false;
  double dense = double(spans.height * spans.width * spans.all) / LANES * cost.dense * (share < GAIN ? share : 1) + ahead;
  double vector = spans.channels == LANES ? cost.whole : cost.loose;
  return dense > 2 && others * (spans.blocks * spans.height * spans.vectors * vector + LISTED) + READ * read < dense;
}

// ---- turning blocks of LANES x LANES numbers around ----

static inline Vector zipped(Vector a, Vector b, bool upper) {
  Mask which;
#pragma GCC unroll 16
  for (int e = 0; e < LANES; e++) which[e] = e / 2 + (upper ? LANES / 2 : 0) + (e % 2 ? LANES : 0);
#if defined(__clang__)
  Vector out;
#pragma GCC unroll 16
  for (int e = 0; e < LANES; e++) out[e] = e % 2 ? b[e / 2 + (upper ? LANES / 2 : 0)] : a[e / 2 + (upper ? LANES / 2 : 0)];
  return out;
#else
  return __builtin_shuffle(a, b, which);
#endif
}

template <int STEPS>
static inline __attribute__((always_inline)) void turn(Vector (&block)[LANES]) {
  Vector next[LANES];
#pragma GCC unroll 16
  for (int k = 0; k < LANES / 2; k++) {
    next[2 * k] = zipped(block[k], block[k + LANES / 2], false);
    next[2 * k + 1] = zipped(block[k], block[k + LANES / 2], true);
  }
#pragma GCC unroll 16
  for (int k = 0; k < LANES; k++) block[k] = next[k];
  if constexpr (STEPS > 2) turn<STEPS / 2>(block);
}

// Some neighbouring examples: LANES of them where there are as many; the last ones begin earlier, and `first` were there before.
struct Some {
  long begin, first, count;

  Some(long from, long batch) {
    begin = most(0, least(from, batch - LANES));
    first = from - begin;
    count = least(batch, begin + LANES) - begin;
  }
  Vector get(const REAL* from) const {
    if (count == LANES) return load(from + begin);
    Vector out{};
    for (long e = 0; e < count; e++) out[e] = from[begin + e];
    return out;
  }
  void put(REAL* to, Vector values) const {
    if (count == LANES && first == 0) return store(to + begin, values);
    for (long e = first; e < count; e++) to[begin + e] = values[e];
  }
};

// The places of one row of an image, in the order column, channel; -1 for channels that are not there.
struct Row {
  long channels, there, place, batch;  // distances between channels, and between columns
  long channel = 0, column = 0;
  long next() {
    long here = channel < there ? channel * place + column * batch : -1;
    if (++channel == channels) channel = 0, column++;
    return here;
  }
};

// A row of `length` numbers in an image becomes the same for every example, `apart` from one to the next. Past its end there are
// zeros up to a whole vector, which the next row overwrites.
static void split(const REAL* from, Row row, long length, const Some& some, REAL* to, long apart) {
  for (long k = 0; k < length; k += LANES) {
    Vector block[LANES];
    for (long n = 0; n < LANES; n++) {
      long here = k + n < length ? row.next() : -1;
      block[n] = here < 0 ? Vector{} : some.get(from + here);
    }
    turn<LANES>(block);
    for (long e = some.first; e < some.count; e++) store(to + e * apart + k, block[e]);
  }
}

static void join(const REAL* from, long apart, Row row, long length, const Some& some, REAL* to) {
  for (long k = 0; k < length; k += LANES) {
    Vector block[LANES];
    for (long e = 0; e < LANES; e++) block[e] = e < some.count ? load(from + e * apart + k) : Vector{};
    turn<LANES>(block);
    for (long n = 0; n < LANES && k + n < length; n++) {
      long here = row.next();
      if (here >= 0) some.put(to + here, block[n]);
    }
  }
}

// Images from rows of numbers, an example in each in the order row, column, channel.
static void lay(const REAL* from, Images<REAL> out) {
  long pixels = out.rows * out.columns, length = pixels * out.channels, whole = length / LANES * LANES;
  for (long example = 0; example < out.examples; example += LANES) {
    Some some(example, out.examples);
    Row row{out.channels, out.channels, pixels * out.examples, out.examples};
    join(from + some.begin * length, length, row, whole, some, out.data);
    for (long k = whole; k < length; k++)
      for (long e = some.first; e < some.count; e++)
        out.at(k % out.channels, 0)[k / out.channels * out.examples + some.begin + e] = from[(some.begin + e) * length + k];
  }
}

// ---- lists of the numbers that are not zero ----

// Of LANES numbers those that are not zero, with their places; returns how many. Writes LANES numbers of each.
static inline long keep(const REAL* values, const int* places, REAL* kept, int* where) {
#if BYTES == 64
  if constexpr (sizeof(REAL) == 4) {
    __m512 v = _mm512_loadu_ps(values);
    __mmask16 others = _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_storeu_ps(kept, _mm512_maskz_compress_ps(others, v));
    _mm512_storeu_si512(where, _mm512_maskz_compress_epi32(others, _mm512_loadu_si512(places)));
    return __builtin_popcount(others);
  } else {
    __m512d v = _mm512_loadu_pd(values);
    __mmask8 others = _mm512_cmp_pd_mask(v, _mm512_setzero_pd(), _CMP_NEQ_UQ);
    _mm512_storeu_pd(kept, _mm512_maskz_compress_pd(others, v));
    _mm256_storeu_si256((__m256i*)where, _mm256_maskz_compress_epi32(others, _mm256_loadu_si256((const __m256i*)places)));
    return __builtin_popcount(others);
  }
#else
  long count = 0;
  for (long e = 0; e < LANES; e++) {
    kept[count] = values[e];
    where[count] = places[e];
    count += values[e] != 0;
  }
  return count;
#endif
}

// Where a number of the gradient of the outputs moves the kernel to, from the first one: rows and columns are so far apart.
struct Steps {
  long row, column;

  Steps(const Spans& spans, const Window& window) : row(window.down * spans.pitch), column(window.right * spans.channels) {}
};

// The gradient of the outputs as it is: lines of its numbers, of LANES examples each, and their places, the same for all.
struct Dense {
  static constexpr int STEP = 1;
  Images<const REAL> gradient;
  Images<const REAL> outputs() const { return gradient; }
  long rows() const { return gradient.rows; }
  long columns() const { return gradient.columns; }

  void begin(const Steps& steps, long whole, int* places) const {
    for (long p = 0; p < whole; p++) places[p] = p / gradient.columns * steps.row + p % gradient.columns * steps.column;
  }
  void lines(long channel, const Some& some, const Steps&, REAL* values, int*, long whole) const {
    split(gradient.at(channel, 0), Row{1, 1, 0, gradient.examples}, rows() * columns(), some, values, whole);
  }
  long places_apart(long) const { return 0; }

  // Of one place the numbers of some examples, and which pixel of it they belong to.
  Vector at(long channel, long place, const Some& some, Mask& pixel) const {
    Vector value = some.get(gradient.at(channel, 0) + place * gradient.examples);
    pixel = (value == 0) & (Mask{} + NONE);
    return value;
  }
};

struct Lists {
  REAL* values;
  int *places, *ends;  // for each example, `room` numbers; and where each output channel's end
  long room, outputs;

  template <class Source>
  Lists(const Source& source, long outputs, const Spans& spans, const Window& window, const Some& some) : outputs(outputs) {
    long pixels = source.rows() * source.columns(), whole = divide_up(pixels, LANES) * LANES;
    Steps steps(spans, window);
    room = outputs * pixels + LANES;
    values = static_cast<REAL*>(memory::buffer(memory::VALUES, LANES * room * sizeof(REAL)));
    places = static_cast<int*>(memory::buffer(memory::PLACES, LANES * room * sizeof(int)));
    ends = static_cast<int*>(memory::buffer(memory::OFFSETS, LANES * (outputs + whole) * sizeof(int)));
    int* all = ends + LANES * outputs;
    source.begin(steps, whole, all);
    REAL* line = static_cast<REAL*>(memory::buffer(memory::ROW, LANES * whole * sizeof(REAL)));
    long counts[LANES] = {}, apart = source.places_apart(whole);
    for (long o = 0; o < outputs; o++) {
      source.lines(o, some, steps, line, all, whole);
      for (long e = some.first; e < some.count; e++) {
        long count = counts[e];
        REAL* kept = values + e * room;
        int* where = places + e * room;
        for (long p = 0; p < whole; p += LANES) count += keep(line + e * whole + p, all + e * apart + p, kept + count, where + count);
        ends[e * outputs + o] = counts[e] = count;
      }
    }
  }
  long begin(long e, long o) const { return e * room + (o ? ends[e * outputs + o - 1] : 0); }
  long count(long e, long o) const { return ends[e * outputs + o] - (o ? ends[e * outputs + o - 1] : 0); }
};

// ---- a tile of the kernel, ROWS x VECTORS, and all numbers of a list ----

// The same place of the next row. Compilers would keep every row's distance at hand, and registers do not suffice for that.
template <class T>
static inline T* moved(T* place, long pitch) {
  place += pitch;
  asm("" : "+r"(place));
  return place;
}

// Sums for the kernel stay in registers.
template <int ROWS, int VECTORS>
static void add_to_kernel(const REAL* values, const int* places, long count, const REAL* image, long pitch, REAL* kernel, long line) {
  Vector sum[ROWS][VECTORS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) sum[r][n] = load(kernel + r * line + n * LANES);
  for (long k = 0; k < count; k++) {
    const REAL *from = image + places[k], value = values[k];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++, from = moved(from, pitch))
#pragma GCC unroll 8
      for (int n = 0; n < VECTORS; n++) sum[r][n] += load(from + n * LANES) * value;
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) store(kernel + r * line + n * LANES, sum[r][n]);
}

typedef void SpanTile(const REAL*, const int*, long, const REAL*, long, REAL*, long);

template <int ROWS>
static SpanTile* span_tile(long vectors) {
  switch (vectors) {
    case 1: return add_to_kernel<ROWS, 1>;
    case 2: return add_to_kernel<ROWS, fewer(2, span_for(ROWS))>;
    case 3: return add_to_kernel<ROWS, fewer(3, span_for(ROWS))>;
    case 4: return add_to_kernel<ROWS, fewer(4, span_for(ROWS))>;
    case 5: return add_to_kernel<ROWS, fewer(5, span_for(ROWS))>;
    case 6: return add_to_kernel<ROWS, fewer(6, span_for(ROWS))>;
    case 7: return add_to_kernel<ROWS, fewer(7, span_for(ROWS))>;
    default: return add_to_kernel<ROWS, span_for(ROWS)>;
  }
}

// One example: all output channels, and all of a block's kernel in tiles.
static void add_spans(const Lists& lists, const Spans& spans, long e, const REAL* image, REAL* kernel) {
  for (long i = 0; i < spans.height;) {
    long left = spans.height - i, rows = left >= SOME_ROWS ? SOME_ROWS : left >= FEW_ROWS ? FEW_ROWS : 1;
    long tiles = divide_up(spans.vectors, span_for(rows));
    for (long t = 0; t < tiles; t++) {
      long v = part(spans.vectors, tiles, t), many = part(spans.vectors, tiles, t + 1) - v, at = i * spans.line + v * LANES;
      SpanTile* run = rows == 1 ? span_tile<1>(many) : rows == FEW_ROWS ? span_tile<FEW_ROWS>(many) : span_tile<SOME_ROWS>(many);
      for (long o = 0; o < spans.outputs; o++) {
        long begin = lists.begin(e, o);
        run(lists.values + begin, lists.places + begin, lists.count(e, o), image + i * spans.pitch + v * LANES, spans.pitch,
            kernel + o * spans.each + at, spans.line);
      }
    }
    i += rows;
  }
}

// The rows of an image that lie in its padded form: `run` gets the row, where it begins there, and how much of it there is.
struct Padded {
  long top, rows, left, columns;

  Padded(long rows, long columns, Images<const REAL> gradient, const Window& window)
      : top(window.top),
        rows(least(rows, (gradient.rows - 1) * window.down + window.height - window.top)),
        left(window.left),
        columns(least(columns, (gradient.columns - 1) * window.right + window.width - window.left)) {}
  template <class Function>
  void over(const Spans& spans, Function run) const {
    for (long r = 0; r < rows; r++) run(r, (r + top) * spans.pitch + left * spans.channels, columns * spans.channels);
  }
};

template <class Image>
static Row row_of(const Spans& spans, long block, Image image) {
  long there = least(spans.channels, spans.all - block * spans.channels);
  return {spans.channels, there, image.rows * image.columns * image.examples, image.examples};
}

template <class Source>
static void sparse_gradient_of_kernel(Images<const REAL> image, const Source& source, const Window& window, const Spans& spans,
                                      REAL* kernel) {
  const Images<const REAL> gradient = source.outputs();
  REAL* images = static_cast<REAL*>(memory::buffer(memory::RING, LANES * spans.image * sizeof(REAL)));
  REAL* sums = static_cast<REAL*>(memory::buffer(memory::SUMS, spans.kernels() * sizeof(REAL)));
  std::memset(images, 0, LANES * spans.image * sizeof(REAL));
  std::memset(sums, 0, spans.kernels() * sizeof(REAL));
  Padded padded(image.rows, image.columns, gradient, window);
  for (long example = 0; example < image.examples; example += LANES) {
    Some some(example, image.examples);
    Lists lists(source, gradient.channels, spans, window, some);
    for (long block = 0; block < spans.blocks; block++) {
      padded.over(spans, [&](long r, long place, long length) {
        split(image.at(block * spans.channels, r), row_of(spans, block, image), length, some, images + place, spans.image);
      });
      REAL* mine = sums + block * spans.outputs * spans.each;
      for (long e = some.first; e < some.count; e++) add_spans(lists, spans, e, images + e * spans.image, mine);
    }
  }
  spans.over_kernels([&](long here, long there) { kernel[there] = sums[here]; });
}

// ---- in the form that is faster for what it is given ----

// The time without lists in that of plain sums.
static double share_for_kernel(Images<const REAL> image, Images<const REAL> gradient, const Window& window) {
  return winograd_share(image, gradient.channels, gradient.rows, gradient.columns, window, OF_TAPS);
}

static void gradient_of_kernel_without_lists(Images<const REAL> image, Images<const REAL> gradient, const Window& window, double share,
                                             REAL* kernel) {
  if (share > GAIN) return dense_gradient_of_kernel(image, gradient, window, kernel);
  with_tiles(window.height, [&](auto tiles) { winograd_gradient_of_kernel<tiles.SIZE>(image, gradient, window, kernel); });
}

static void gradient_of_kernel(Images<const REAL> image, Images<const REAL> gradient, const Window& window, REAL* kernel) {
  Spans spans(image.channels, gradient, window);
  double share = share_for_kernel(image, gradient, window);
  if (sparse_is_faster(spans, gradient, OF_KERNEL, share, share_of_others(gradient), 1, 0))
    return sparse_gradient_of_kernel(image, Dense{gradient}, window, spans, kernel);
  gradient_of_kernel_without_lists(image, gradient, window, share, kernel);
}
