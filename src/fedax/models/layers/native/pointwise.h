// Pooling and group normalisation, for one number type REAL; included like convolution.h. Loops over examples are plain: the
// compiler makes vectors of them.

// ---- the largest of each window, plus a bias, through ReLU; `winner` is its place in the window, or NONE where ReLU is flat ----

constexpr uint8_t NONE = 255;

static void pool(Images<const REAL> image, const REAL* bias, long height, long width, bool relu, Images<REAL> out,
                 uint8_t* winner) {
  long batch = image.examples;
  for (long c = 0; c < out.channels; c++)
    for (long r = 0; r < out.rows; r++)
      for (long q = 0; q < out.columns; q++, winner += batch) {
        REAL* __restrict best = out.at(c, r) + q * batch;
        uint8_t* __restrict place = winner;
        const REAL* corner = image.at(c, r * height) + q * width * batch;
        for (long n = 0; n < batch; n++) best[n] = corner[n];
        for (long n = 0; n < batch; n++) place[n] = 0;
        for (long k = 1; k < height * width; k++) {
          const REAL* __restrict other = corner + (k / width * image.columns + k % width) * batch;
          for (long n = 0; n < batch; n++) {
            bool more = other[n] > best[n] || other[n] != other[n];  // what is not a number wins
            best[n] = more ? other[n] : best[n];
            place[n] = more ? uint8_t(k) : place[n];
          }
        }
        for (long n = 0; n < batch; n++) {
          REAL value = best[n] + bias[c];
          bool flat = relu && value <= 0;
          best[n] = flat ? 0 : value;
          place[n] = flat ? NONE : place[n];
        }
      }
}

static void pool_slope(Images<const REAL> slope, const uint8_t* winner, long height, long width, Images<REAL> image, REAL* bias) {
  long batch = image.examples;
  REAL* __restrict sum = static_cast<REAL*>(memory::buffer(memory::ROW, 2 * batch * sizeof(REAL)));
  REAL* __restrict total = sum + batch;
  for (long c = 0; c < image.channels; c++) {
    for (long n = 0; n < batch; n++) total[n] = 0;
    for (long r = 0; r < slope.rows; r++) {
      for (long n = 0; n < batch; n++) sum[n] = 0;
      for (long q = 0; q < slope.columns; q++, winner += batch) {
        const REAL* __restrict from = slope.at(c, r) + q * batch;
        const uint8_t* __restrict place = winner;
        REAL* corner = image.at(c, r * height) + q * width * batch;
        for (long k = 0; k < height * width; k++) {
          REAL* __restrict to = corner + (k / width * image.columns + k % width) * batch;
          for (long n = 0; n < batch; n++) to[n] = place[n] == k ? from[n] : 0;
        }
        for (long n = 0; n < batch; n++) sum[n] += place[n] != NONE ? from[n] : 0;
      }
      for (long n = 0; n < batch; n++) total[n] += sum[n];
      for (long k = 0; k < height; k++)  // columns that fill no window
        std::memset(image.at(c, r * height + k) + slope.columns * width * batch, 0,
                    (image.columns - slope.columns * width) * batch * sizeof(REAL));
    }
    std::memset(image.at(c, slope.rows * height), 0,
                (image.rows - slope.rows * height) * image.columns * batch * sizeof(REAL));
    bias[c] = 0;
    for (long n = 0; n < batch; n++) bias[c] += total[n];
  }
}

// The transpose of pool_slope: the winners of a tangent, plus the tangent of the bias.
static void pool_tangent(Images<const REAL> image, const REAL* bias, const uint8_t* winner, long height, long width,
                         Images<REAL> out) {
  long batch = image.examples;
  for (long c = 0; c < out.channels; c++)
    for (long r = 0; r < out.rows; r++)
      for (long q = 0; q < out.columns; q++, winner += batch) {
        REAL* __restrict to = out.at(c, r) + q * batch;
        const REAL* corner = image.at(c, r * height) + q * width * batch;
        for (long n = 0; n < batch; n++) to[n] = winner[n] == NONE ? 0 : bias[c];
        for (long k = 0; k < height * width; k++) {
          const REAL* __restrict from = corner + (k / width * image.columns + k % width) * batch;
          for (long n = 0; n < batch; n++) to[n] += winner[n] == k ? from[n] : 0;
        }
      }
}

// ---- group normalisation ----

// Adds up `count` rows of `batch` numbers, in parts, so that rounding grows slowly.
template <class Term>
static void add_up(long count, long batch, REAL* __restrict total, REAL* __restrict partial, Term term) {
  for (long n = 0; n < batch; n++) total[n] = 0;
  for (long p = 0; p < count;) {
    long end = least(count, p + 32);
    for (long n = 0; n < batch; n++) partial[n] = 0;
    for (; p + 4 <= end; p += 4)
      for (long n = 0; n < batch; n++) partial[n] += (term(p, n) + term(p + 1, n)) + (term(p + 2, n) + term(p + 3, n));
    for (; p < end; p++)
      for (long n = 0; n < batch; n++) partial[n] += term(p, n);
    for (long n = 0; n < batch; n++) total[n] += partial[n];
  }
}

static void norm(Images<const REAL> image, const REAL* scale, const REAL* offset, long groups, REAL epsilon, Images<REAL> out,
                 REAL* mean, REAL* rate) {
  long batch = image.examples, pixels = image.rows * image.columns, channels = image.channels / groups;
  long count = channels * pixels;
  REAL* partial = static_cast<REAL*>(memory::buffer(memory::ROW, batch * sizeof(REAL)));
  for (long g = 0; g < groups; g++) {
    const REAL* __restrict x = image.at(g * channels, 0);
    REAL *__restrict m = mean + g * batch, *__restrict s = rate + g * batch;
    add_up(count, batch, m, partial, [=](long p, long n) { return x[p * batch + n]; });
    for (long n = 0; n < batch; n++) m[n] /= count;
    add_up(count, batch, s, partial, [=](long p, long n) {
      REAL centred = x[p * batch + n] - m[n];
      return centred * centred;
    });
    for (long n = 0; n < batch; n++) s[n] = 1 / std::sqrt(s[n] / count + epsilon);
    for (long c = 0; c < channels; c++) {
      REAL gain = scale[g * channels + c], shift = offset[g * channels + c];
      REAL* __restrict y = out.at(g * channels + c, 0);
      const REAL* __restrict from = x + c * pixels * batch;
      for (long p = 0; p < pixels; p++)
        for (long n = 0; n < batch; n++) y[p * batch + n] = (from[p * batch + n] - m[n]) * (s[n] * gain) + shift;
    }
  }
}

// With z the normalised image: dx = rate (g scale - mean(g scale) - z mean(g scale z)), means over the group.
static void norm_slope(Images<const REAL> slope, Images<const REAL> image, const REAL* mean, const REAL* rate, const REAL* scale,
                       long groups, Images<REAL> out, REAL* scale_slope, REAL* offset_slope) {
  long batch = image.examples, pixels = image.rows * image.columns, channels = image.channels / groups;
  long count = channels * pixels;
  REAL* memory = static_cast<REAL*>(memory::buffer(memory::ROW, 5 * batch * sizeof(REAL)));
  REAL *__restrict partial = memory, *__restrict plain = memory + batch, *__restrict along = memory + 2 * batch;
  REAL *__restrict shift = memory + 3 * batch, *__restrict pull = memory + 4 * batch;
  for (long g = 0; g < groups; g++) {
    const REAL *__restrict m = mean + g * batch, *__restrict s = rate + g * batch;
    for (long n = 0; n < batch; n++) shift[n] = pull[n] = 0;
    for (long c = g * channels; c < (g + 1) * channels; c++) {
      const REAL *__restrict x = image.at(c, 0), *__restrict d = slope.at(c, 0);
      add_up(pixels, batch, plain, partial, [=](long p, long n) { return d[p * batch + n]; });
      add_up(pixels, batch, along, partial, [=](long p, long n) { return d[p * batch + n] * (x[p * batch + n] - m[n]); });
      REAL gain = scale[c], straight = 0, crossed = 0;
      for (long n = 0; n < batch; n++) {
        along[n] *= s[n];
        straight += plain[n];
        crossed += along[n];
        shift[n] += plain[n] * gain;
        pull[n] += along[n] * gain;
      }
      offset_slope[c] = straight;
      scale_slope[c] = crossed;
    }
    for (long n = 0; n < batch; n++) {
      shift[n] *= s[n] / count;
      pull[n] *= s[n] * s[n] / count;
    }
    for (long c = g * channels; c < (g + 1) * channels; c++) {
      const REAL *__restrict x = image.at(c, 0), *__restrict d = slope.at(c, 0);
      REAL* __restrict to = out.at(c, 0);
      REAL gain = scale[c];
      for (long p = 0; p < pixels; p++)
        for (long n = 0; n < batch; n++) {
          long i = p * batch + n;
          to[i] = d[i] * (s[n] * gain) - shift[n] - (x[i] - m[n]) * pull[n];
        }
    }
  }
}
