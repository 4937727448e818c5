// Pooling behind a convolution, for one number type REAL; included like convolution.h. Some loops over examples are plain:
// the compiler makes vectors of them.

// ---- the largest of each window, plus a bias, through ReLU; `winner` is its place in the window, or NONE where ReLU is flat ----

constexpr uint8_t NONE = 255;
typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef uint8_t LooseBytes __attribute__((vector_size(LANES), aligned(1), may_alias));

// Compilers take the bytes apart one by one.
static inline Mask wide(const uint8_t* p) {
#if BYTES == 64
  if constexpr (sizeof(REAL) == 4) return (Mask)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  if constexpr (sizeof(REAL) == 8) return (Mask)_mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i*)p));
#elif BYTES == 32
  if constexpr (sizeof(REAL) == 4) return (Mask)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
  if constexpr (sizeof(REAL) == 8) {
    int few;
    std::memcpy(&few, p, sizeof few);
    return (Mask)_mm256_cvtepu8_epi64(_mm_cvtsi32_si128(few));
  }
#else
  return __builtin_convertvector((Bytes)*reinterpret_cast<const LooseBytes*>(p), Mask);
#endif
}
static inline void narrow(uint8_t* p, Mask v) {
#if BYTES == 64
  if constexpr (sizeof(REAL) == 4) _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
  if constexpr (sizeof(REAL) == 8) _mm_storel_epi64((__m128i*)p, _mm512_cvtepi64_epi8((__m512i)v));
#else
#if BYTES == 32
  if constexpr (sizeof(REAL) == 4) {
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    return _mm_storel_epi64((__m128i*)p, _mm_packus_epi16(half, half));
  }
#endif
  *reinterpret_cast<LooseBytes*>(p) = __builtin_convertvector(v, Bytes);
#endif
}

struct Pool {
  long height, width, batch, columns;  // columns of the image

  // `lanes` examples are there; windows of one and of four pixels stay in registers because the loop is unrolled for them.
  template <int PIXELS>
  inline __attribute__((always_inline)) void outputs(const REAL* corner, REAL bias, REAL* out, uint8_t* winner) const {
    Vector best = load(corner);
    Mask place{};
    long pixels = PIXELS ? PIXELS : height * width, across = PIXELS == 4 ? 2 : PIXELS == 1 ? 1 : width;
    for (int k = 1; k < pixels; k++) {
      Vector other = load(corner + (k / across * columns + k % across) * batch);
      Mask more = (other > best) | (other != other);  // what is not a number wins
      best = more ? other : best;
      place = more ? Mask{} + k : place;
    }
    best += bias;
    Mask flat = best <= 0;
    best = flat ? Vector{} : best;
    place = flat ? Mask{} + NONE : place;
    store(out, best);
    narrow(winner, place);
  }

  template <int PIXELS>
  inline __attribute__((always_inline)) void gradients(const REAL* gradient, const uint8_t* winner, REAL* corner) const {
    Vector from = load(gradient);
    Mask place = wide(winner);
    long pixels = PIXELS ? PIXELS : height * width, across = PIXELS == 4 ? 2 : PIXELS == 1 ? 1 : width;
    for (int k = 0; k < pixels; k++)
      store(corner + (k / across * columns + k % across) * batch, masked(from, place == k));
  }
};

// A function of places 0, LANES, ... of a row; the last place is moved back, so that nothing lies outside.
template <class Function>
static inline __attribute__((always_inline)) void over(long length, Function run) {
  for (long n = 0; n + LANES <= length; n += LANES) run(n);
  if (length % LANES) run(length - LANES);
}

// The rows of windows of an image become those of `out` from `first` on.
template <int PIXELS>
static void pool_windows(Pool pool, Images<const REAL> image, const REAL* bias, Images<REAL> out, uint8_t* winner, long first) {
  for (long c = 0; c < out.channels; c++)
    for (long r = 0; r < image.rows / pool.height; r++)
      for (long q = 0; q < out.columns; q++) {
        const REAL* corner = image.at(c, r * pool.height) + q * pool.width * pool.batch;
        REAL *to = out.at(c, first + r) + q * pool.batch, shift = bias[c];
        uint8_t* won = winner + (to - out.data);
        over(pool.batch, [=](long n) { pool.outputs<PIXELS>(corner + n, shift, to + n, won + n); });
      }
}

// Fewer examples than lanes.
static void pool_few(Pool pool, Images<const REAL> image, const REAL* bias, Images<REAL> out, uint8_t* winner, long first) {
  for (long c = 0; c < out.channels; c++)
    for (long r = 0; r < image.rows / pool.height; r++)
      for (long q = 0; q < out.columns * pool.batch; q++) {
        const REAL* corner = image.at(c, r * pool.height) + q / pool.batch * pool.width * pool.batch + q % pool.batch;
        REAL best = *corner, *to = out.at(c, first + r) + q;
        uint8_t place = 0;
        for (long k = 1; k < pool.height * pool.width; k++) {
          REAL other = corner[(k / pool.width * image.columns + k % pool.width) * pool.batch];
          if (other > best || other != other) best = other, place = uint8_t(k);
        }
        best += bias[c];
        if (best <= 0) best = 0, place = NONE;
        *to = best;
        winner[to - out.data] = place;
      }
}

static void pool_rows(Images<const REAL> image, const REAL* bias, long height, long width, Images<REAL> out, uint8_t* winner, long first) {
  Pool pool{height, width, image.examples, image.columns};
  if (image.examples < LANES) return pool_few(pool, image, bias, out, winner, first);
  if (height == 2 && width == 2) return pool_windows<4>(pool, image, bias, out, winner, first);
  if (height * width == 1) return pool_windows<1>(pool, image, bias, out, winner, first);
  pool_windows<0>(pool, image, bias, out, winner, first);
}

template <int PIXELS>
static void gradient_windows(Pool pool, Images<const REAL> gradient, const uint8_t* winner, Images<REAL> image) {
  for (long c = 0; c < image.channels; c++)
    for (long r = 0; r < gradient.rows; r++)
      for (long q = 0; q < gradient.columns; q++, winner += pool.batch) {
        const REAL* from = gradient.at(c, r) + q * pool.batch;
        REAL* corner = image.at(c, r * pool.height) + q * pool.width * pool.batch;
        if (pool.batch >= LANES) {
          over(pool.batch, [=](long n) { pool.gradients<PIXELS>(from + n, winner + n, corner + n); });
          continue;
        }
        for (long k = 0; k < pool.height * pool.width; k++)
          for (long n = 0; n < pool.batch; n++)
            corner[(k / pool.width * pool.columns + k % pool.width) * pool.batch + n] = winner[n] == k ? from[n] : 0;
      }
}

// Sums of the gradients that are not lost where ReLU is flat, for each channel.
static void bias_gradient(Images<const REAL> gradient, const uint8_t* winner, REAL* bias) {
  long plane = gradient.rows * gradient.columns * gradient.examples;
  for (long c = 0; c < gradient.channels; c++) {
    const REAL* from = gradient.at(c, 0);
    const uint8_t* place = winner + c * plane;
    REAL total = 0;
    for (long begin = 0; begin < plane; begin += 64 * LANES) {  // in parts, so that rounding grows slowly
      Vector sum{};
      long end = least(plane, begin + 64 * LANES), n = begin;
      for (; n + LANES <= end; n += LANES) sum += masked(load(from + n), wide(place + n) != NONE);
      REAL along = 0;
      for (; n < end; n++) along += place[n] != NONE ? from[n] : 0;
      for (long e = 0; e < LANES; e++) along += sum[e];
      total += along;
    }
    bias[c] = total;
  }
}

// Each number at the pixel that won its window, zeros elsewhere.
static void spread(Images<const REAL> gradient, const uint8_t* winner, long height, long width, Images<REAL> image) {
  long batch = image.examples;
  for (long c = 0; c < image.channels; c++) {
    for (long r = 0; r < gradient.rows * height; r++)  // columns that fill no window
      std::memset(image.at(c, r) + gradient.columns * width * batch, 0, (image.columns - gradient.columns * width) * batch * sizeof(REAL));
    std::memset(image.at(c, gradient.rows * height), 0, (image.rows - gradient.rows * height) * image.columns * batch * sizeof(REAL));
  }
  Pool pool{height, width, batch, image.columns};
  if (height == 2 && width == 2) return gradient_windows<4>(pool, gradient, winner, image);
  if (height * width == 1) return gradient_windows<1>(pool, gradient, winner, image);
  gradient_windows<0>(pool, gradient, winner, image);
}
