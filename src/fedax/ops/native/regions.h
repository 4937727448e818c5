// The gradient of a convolution's image where most of the outputs' gradient is zeros, for one number type REAL; included like
// convolution.h, after sparse.h.
//
// A place of the gradient, a pixel or behind pooling a window of 2 x 2 pixels, reaches a region of the image. The sums of a region
// stay in registers while the numbers of many output channels at that place, those that are not zero, are added to it, each times
// its whole kernel. So an addition costs a multiplication and a number of the kernel from the first cache, and no store.

constexpr int REGION_SUMS = ROOMY ? 25 : 12, MOST_NARROW = ROOMY ? 4 : 1;
constexpr long REGION_BYTES = 40000;  // of kernels at a time: they share the first cache with an image

// Of kernels of SIZE x SIZE at places of one pixel (STEP 1) or of 2 x 2 (STEP 2), the region of LANES channels. It is passed through
// in strips of columns.
template <int SIZE, int STEP>
struct Region {
  static constexpr int ROWS = SIZE + STEP - 1, COLUMNS = ROWS;
  static constexpr int PASSES = (COLUMNS + REGION_SUMS / ROWS - 1) / (REGION_SUMS / ROWS), WIDTH = (COLUMNS + PASSES - 1) / PASSES;
};

// What a pass sums up: VECTORS of each row of a region from vector FIRST on. Where an image is NARROW, with fewer channels than lanes,
// its columns lie side by side in vectors, and a kernel lies there twice, for the first and the second pixel of a window.
template <int SIZE_, int STEP_, int FIRST_, int VECTORS_, bool NARROW_>
struct Strip {
  static constexpr int SIZE = SIZE_, STEP = STEP_, FIRST = FIRST_, VECTORS = VECTORS_, ROWS = SIZE + STEP - 1;
  static constexpr bool NARROW = NARROW_;

  // Which vector of a kernel vector c of row i is added to, -1 for none.
  static constexpr int vector(int i, int c, int column) {
    if (NARROW) return (column * SIZE + i) * VECTORS + c;
    return FIRST + c >= column && FIRST + c < column + SIZE ? i * SIZE + FIRST + c - column : -1;
  }
};

// ---- of one example, the numbers that are not zero, place by place and within a place by their pixel ----

struct Entries {
  REAL* values;
  int *kernels, *ends, *unsorted;  // where the kernel of each begins; where those of each place and pixel end; channels before sorting
  long step;                       // from one output channel's kernel to the next

  Entries(long places, long kinds, long outputs, long step) : step(step) {
    const long room = places * outputs;
    values = static_cast<REAL*>(memory::buffer(memory::ROW, (room + LANES) * sizeof(REAL)));
    kernels = static_cast<int*>(memory::buffer(memory::OFFSETS, (room + LANES) * sizeof(int)));
    ends = static_cast<int*>(memory::buffer(memory::SUMS, (places * kinds + room + LANES) * sizeof(int)));
    unsorted = ends + places * kinds;
  }

  // From `outputs` numbers of each place, `apart` from one place to the next, and the pixels that they belong to.
  void list(const REAL* from, const uint8_t* pixel, long places, int kinds, long outputs, long apart) {
    int count = 0, *end = ends;
    for (long p = 0; p < places; p++, from += apart, pixel += apart) {
#if BYTES == 64
      for (int k = 0; k < kinds; k++, *end++ = count)
        for (long o = 0; o < outputs; o += LANES) count += keep_of(from + o, pixel + o, k, o * step, values + count, kernels + count);
#else
      int others = count, next[4] = {};
      for (long o = 0; o < outputs; o++) {
        unsorted[others] = o;
        values[others] = from[o];
        kernels[others] = o * step;
        others += pixel[o] != NONE;
      }
      for (int n = count; n < others; n++) next[pixel[unsorted[n]]]++;
      for (int k = 0; k < kinds; k++) {
        const int own = next[k];
        next[k] = count;
        *end++ = count += own;
      }
      for (int n = next[0]; kinds > 1 && n < others; n++) {
        const int o = unsorted[n], place = next[pixel[o]]++;
        values[place] = from[o];
        kernels[place] = o * step;
      }
#endif
    }
  }

#if BYTES == 64
 private:
  int keep_of(const REAL* from, const uint8_t* pixel, int kind, int first, REAL* kept, int* where) const {
    if constexpr (sizeof(REAL) == 4) {
      const __mmask16 of = _mm_cmpeq_epi8_mask(_mm_loadu_si128((const __m128i*)pixel), _mm_set1_epi8(kind));
      const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      const __m512i kernel = _mm512_add_epi32(_mm512_mullo_epi32(lanes, _mm512_set1_epi32(step)), _mm512_set1_epi32(first));
      _mm512_storeu_ps(kept, _mm512_maskz_compress_ps(of, _mm512_loadu_ps(from)));
      _mm512_storeu_si512(where, _mm512_maskz_compress_epi32(of, kernel));
      return __builtin_popcount(of);
    } else {
      const __mmask8 of = _mm_cmpeq_epi8_mask(_mm_loadl_epi64((const __m128i*)pixel), _mm_set1_epi8(kind));
      const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      const __m256i kernel = _mm256_add_epi32(_mm256_mullo_epi32(lanes, _mm256_set1_epi32(step)), _mm256_set1_epi32(first));
      _mm512_storeu_pd(kept, _mm512_maskz_compress_pd(of, _mm512_loadu_pd(from)));
      _mm256_storeu_si256((__m256i*)where, _mm256_maskz_compress_epi32(of, kernel));
      return __builtin_popcount(of & 255);
    }
  }
#endif
};

// Numbers of one place for LANES examples and as many output channels, and their pixels: turned so that each example has its own.
template <class Source>
static void turn_places(const Source& source, long outputs, long padded, const Some& some, REAL* values, uint8_t* pixels) {
  const long places = source.rows() * source.columns();
  for (long o = 0; o < padded; o += LANES)
    for (long p = 0; p < places; p++) {
      Vector value[LANES], pixel[LANES];
      for (long n = 0; n < LANES; n++) {
        Mask of = Mask{} + NONE;
        value[n] = o + n < outputs ? source.at(o + n, p, some, of) : Vector{};
        pixel[n] = (Vector)of;
      }
      turn<LANES>(value);
      turn<LANES>(pixel);
      for (long e = some.first; e < some.count; e++) {
        const long to = (e * places + p) * padded + o;
        store(values + to, value[e]);
        narrow(pixels + to, (Mask)pixel[e]);
      }
    }
}

// ---- sums ----

template <class Of, int KIND>
static inline __attribute__((always_inline)) void add_kind(Vector (&sum)[Of::ROWS][Of::VECTORS], const Entries& entries, const REAL* kernels,
                                                           long& n, long end) {
  constexpr int ROW = KIND / Of::STEP, COLUMN = KIND % Of::STEP;
  for (; n < end; n++) {
    const REAL *kernel = kernels + entries.kernels[n], value = entries.values[n];
#pragma GCC unroll 5
    for (int i = 0; i < Of::SIZE; i++)
#pragma GCC unroll 5
      for (int c = 0; c < Of::VECTORS; c++)
        if (Of::vector(i, c, COLUMN) >= 0) sum[ROW + i][c] += load(kernel + Of::vector(i, c, COLUMN) * LANES) * value;
  }
}

template <class Of>
static void add_strip(const Entries& entries, long rows, long columns, const REAL* kernels, REAL* image, const Spans& spans) {
  long n = 0;
  const int* end = entries.ends;
  for (long r = 0; r < rows; r++)
    for (long q = 0; q < columns; q++, end += Of::STEP * Of::STEP) {
      REAL* corner = image + r * Of::STEP * spans.pitch + q * Of::STEP * spans.channels + Of::FIRST * LANES;
      Vector sum[Of::ROWS][Of::VECTORS];
#pragma GCC unroll 6
      for (int i = 0; i < Of::ROWS; i++)
#pragma GCC unroll 6
        for (int c = 0; c < Of::VECTORS; c++) sum[i][c] = load(corner + i * spans.pitch + c * LANES);
      add_kind<Of, 0>(sum, entries, kernels, n, end[0]);
      if constexpr (Of::STEP == 2) {
        add_kind<Of, 1>(sum, entries, kernels, n, end[1]);
        add_kind<Of, 2>(sum, entries, kernels, n, end[2]);
        add_kind<Of, 3>(sum, entries, kernels, n, end[3]);
      }
#pragma GCC unroll 6
      for (int i = 0; i < Of::ROWS; i++)
#pragma GCC unroll 6
        for (int c = 0; c < Of::VECTORS; c++) store(corner + i * spans.pitch + c * LANES, sum[i][c]);
    }
}

// Kernels as they lie here, and what adds them.
template <int SIZE, int STEP>
struct Adding {
  typedef Region<SIZE, STEP> Of;
  const Spans& spans;
  bool narrow;
  long vectors, each, together;  // vectors of a row of a narrow region; numbers of a kernel; and so many kernels at a time

  explicit Adding(const Spans& spans) : spans(spans), narrow(spans.channels < LANES) {
    vectors = divide_up(Of::COLUMNS * spans.channels, LANES);
    each = narrow ? STEP * SIZE * vectors * LANES : spans.each;
    const long met = narrow ? each : SIZE * fewer(SIZE, Of::WIDTH) * LANES;
    together = most(LANES, REGION_BYTES / long(met * sizeof(REAL)) / LANES * LANES);
  }
  REAL* kernels(const REAL* kernel) const {
    const long count = spans.blocks * spans.outputs * each;
    REAL* made = static_cast<REAL*>(memory::buffer(memory::WEIGHTS, count * sizeof(REAL)));
    std::memset(made, 0, count * sizeof(REAL));
    if (!narrow) spans.over_kernels([&](long here, long there) { made[here] = kernel[there]; });
    for (long column = 0; narrow && column < STEP; column++)
      for (long i = 0; i < SIZE; i++)
        for (long n = 0; n < SIZE * spans.channels; n++)
          for (long o = 0; o < spans.outputs; o++)
            made[o * each + (column * SIZE + i) * vectors * LANES + column * spans.channels + n] =
                kernel[(i * SIZE * spans.channels + n) * spans.outputs + o];
    return made;
  }
  void add(const Entries& entries, long rows, long columns, const REAL* kernels, REAL* image) const {
    if (narrow) return add_narrow(entries, rows, columns, kernels, image);
    add_strip<Strip<SIZE, STEP, 0, Of::WIDTH, false>>(entries, rows, columns, kernels, image, spans);
    if constexpr (Of::PASSES > 1) add_strip<Strip<SIZE, STEP, Of::WIDTH, fewer(Of::WIDTH, Of::COLUMNS - Of::WIDTH), false>>(
        entries, rows, columns, kernels, image, spans);
    if constexpr (Of::PASSES > 2) add_strip<Strip<SIZE, STEP, 2 * Of::WIDTH, Of::COLUMNS - 2 * Of::WIDTH, false>>(
        entries, rows, columns, kernels, image, spans);
  }
  void add_narrow(const Entries& entries, long rows, long columns, const REAL* kernels, REAL* image) const {
    if constexpr (MOST_NARROW == 4) {
      auto run = vectors == 2 ? add_strip<Strip<SIZE, STEP, 0, 2, true>> : vectors == 3 ? add_strip<Strip<SIZE, STEP, 0, 3, true>>
                                                                                        : add_strip<Strip<SIZE, STEP, 0, 4, true>>;
      run(entries, rows, columns, kernels, image, spans);
    }
  }
};

template <int SIZE, class Source>
static void gradient_by_regions(const Source& source, const REAL* kernel, const Window& window, const Spans& spans, Images<REAL> image) {
  const Adding<SIZE, Source::STEP> adding(spans);
  constexpr int KINDS = Source::STEP * Source::STEP;
  const long outputs = spans.outputs, rows = source.rows(), columns = source.columns(), places = rows * columns;
  const long padded = divide_up(outputs, LANES) * LANES, together = least(adding.together, padded);
  REAL* images = static_cast<REAL*>(memory::buffer(memory::RING, spans.blocks * LANES * spans.image * sizeof(REAL)));
  REAL* values = static_cast<REAL*>(memory::buffer(memory::VALUES, LANES * places * padded * sizeof(REAL)));
  uint8_t* pixels = static_cast<uint8_t*>(memory::buffer(memory::PLACES, LANES * places * padded));
  const REAL* kernels = adding.kernels(kernel);
  Entries entries(places, KINDS, together, adding.each);
  const Padded there(image.rows, image.columns, source.outputs(), window);
  if (there.rows < image.rows || there.columns < image.columns)
    std::memset(image.data, 0, image.channels * image.rows * image.columns * image.examples * sizeof(REAL));
  for (long example = 0; example < image.examples; example += LANES) {
    Some some(example, image.examples);
    turn_places(source, outputs, padded, some, values, pixels);
    for (long e = some.first; e < some.count; e++) {
      for (long block = 0; block < spans.blocks; block++)
        std::memset(images + (block * LANES + e) * spans.image, 0, spans.image * sizeof(REAL));
      for (long o = 0; o < padded; o += together) {
        const long from = e * places * padded + o;
        entries.list(values + from, pixels + from, places, KINDS, least(together, padded - o), padded);
        for (long block = 0; block < spans.blocks; block++)
          adding.add(entries, rows, columns, kernels + (block * outputs + o) * adding.each, images + (block * LANES + e) * spans.image);
      }
    }
    for (long block = 0; block < spans.blocks; block++)
      there.over(spans, [&](long r, long place, long length) {
        join(images + block * LANES * spans.image + place, spans.image, row_of(spans, block, image), length, some,
             image.at(block * spans.channels, r));
      });
  }
}

template <class Source>
static void sparse_gradient_of_image(const Source& source, const REAL* kernel, const Window& window, const Spans& spans,
                                     Images<REAL> image) {
  if (window.width == 3) return gradient_by_regions<3>(source, kernel, window, spans, image);
  if (window.width == 4) return gradient_by_regions<4>(source, kernel, window, spans, image);
  gradient_by_regions<5>(source, kernel, window, spans, image);
}

// ---- in the form that is faster for what it is given ----

constexpr Cost OF_IMAGE{0.75, 1.1, 1.5};

// Kernels of 3, 4 and 5 with stride 1, and channels that fill vectors or, with the columns of a region side by side, a few of them.
static bool has_regions(const Spans& spans, const Window& window, long step) {
  const long vectors = divide_up((window.width + step - 1) * spans.channels, LANES);
  return window.height == window.width && window.width >= 3 && window.width <= 5 && window.down == 1 && window.right == 1 &&
         (spans.channels == LANES || (vectors >= 2 && vectors <= MOST_NARROW));
}

// The time without lists in that of plain sums.
static double share_for_image(Images<const REAL> gradient, const Window& window, Images<REAL> image) {
  Window turned{window.height, window.width, window.down, window.right, window.height - 1 - window.top, window.width - 1 - window.left};
  return Shares(gradient, image.channels, image.rows, image.columns, turned).best();
}

static void gradient_of_image(Images<const REAL> gradient, const REAL* kernel, const Window& window, Images<REAL> image) {
  Spans spans(image.channels, gradient, window);
  double share = share_for_image(gradient, window, image);
  if (has_regions(spans, window, 1) && sparse_is_faster(spans, gradient, OF_IMAGE, share, share_of_others(gradient), 1, 0))
    return sparse_gradient_of_image(Dense{gradient}, kernel, window, spans, image);
  dense_gradient_of_image(gradient, kernel, window, image);
}
