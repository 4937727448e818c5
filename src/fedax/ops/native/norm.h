// Group normalisation, for one number type REAL; included like convolution.h.

constexpr long PIXELS = 32;  // worked on at once: they stay in the first cache, and rounding grows slowly in their sums

// Runs over the examples of `count` pixels from the first one on: `run` gets lanes, the first example, and the number of the vector.
template <class Function>
static inline __attribute__((always_inline)) void over_vectors(long batch, Function run) {
  long vector = 0;
  over_lanes(batch, [&](auto lane, long e) { run(lane, e, LANES * vector++); });
}

template <class Function>
static inline __attribute__((always_inline)) void in_parts(long pixels, long width, Function run) {
  for (long p = 0; p < pixels; p += width) run(p, least(pixels, p + width));
}

// Mean of each example, and one over its standard deviation, of `count` numbers each: parts of them one after the other, joined
// by the formula of Chan, Golub and LeVeque (1983). `room` holds two numbers for each lane.
static void statistics(const REAL* x, long count, long batch, REAL epsilon, REAL* room, REAL* mean, REAL* rate) {
  REAL *middles = room, *squares = room + divide_up(batch, LANES) * LANES;
  std::memset(room, 0, 2 * divide_up(batch, LANES) * LANES * sizeof(REAL));
  in_parts(count, PIXELS, [&](long begin, long end) {
    REAL part = REAL(end - begin), share = part / REAL(end);
    over_vectors(batch, [&](auto lane, long e, long v) {
      Vector sum{}, square{};
      for (long p = begin; p < end; p++) sum += lane.get(x + p * batch + e);
      Vector middle = sum / part, apart = middle - load(middles + v);
      for (long p = begin; p < end; p++) {
        Vector centred = lane.get(x + p * batch + e) - middle;
        square += centred * centred;
      }
      store(middles + v, load(middles + v) + apart * share);
      store(squares + v, load(squares + v) + square + apart * apart * (share * REAL(begin)));
    });
  });
  over_vectors(batch, [&](auto lane, long e, long v) {
    Vector spread = load(squares + v) / REAL(count) + epsilon, one;
    for (long n = 0; n < LANES; n++) one[n] = 1 / std::sqrt(spread[n]);
    lane.put(mean + e, load(middles + v));
    lane.put(rate + e, one);
  });
}

static void put_norm(Images<const REAL> image, const REAL* mean, const REAL* rate, REAL gain, REAL offset, long channel,
                     Images<REAL> out) {
  long batch = image.examples;
  const REAL* from = image.at(channel, 0);
  REAL* to = out.at(channel, 0);
  in_parts(image.rows * image.columns, PIXELS, [&](long begin, long end) {
    over_vectors(batch, [&](auto lane, long e, long) {
      Vector middle = lane.get(mean + e), factor = lane.get(rate + e) * gain;
      for (long p = begin; p < end; p++) lane.put(to + p * batch + e, (lane.get(from + p * batch + e) - middle) * factor + offset);
    });
  });
}

static void norm(Images<const REAL> image, const REAL* scale, const REAL* offset, long groups, REAL epsilon, Images<REAL> out,
                 REAL* mean, REAL* rate) {
  long batch = image.examples, channels = image.channels / groups;
  REAL* room = static_cast<REAL*>(memory::buffer(memory::ROW, 2 * divide_up(batch, LANES) * LANES * sizeof(REAL)));
  for (long g = 0; g < groups; g++) {
    REAL *m = mean + g * batch, *s = rate + g * batch;
    statistics(image.at(g * channels, 0), channels * image.rows * image.columns, batch, epsilon, room, m, s);
    for (long c = g * channels; c < (g + 1) * channels; c++) put_norm(image, m, s, scale[c], offset[c], c, out);
  }
}

// With z the normalised image: dx = rate (g scale - mean(g scale) - z mean(g scale z)), means over the group.
static void norm_gradient(Images<const REAL> gradient, Images<const REAL> image, const REAL* mean, const REAL* rate, const REAL* scale,
                          long groups, Images<REAL> out, REAL* scale_gradient, REAL* offset_gradient) {
  long batch = image.examples, pixels = image.rows * image.columns, channels = image.channels / groups, plane = pixels * batch;
  long lanes = divide_up(batch, LANES) * LANES;
  REAL* room = static_cast<REAL*>(memory::buffer(memory::ROW, 4 * lanes * sizeof(REAL)));
  REAL *plain = room, *along = room + lanes, *shift = room + 2 * lanes, *pull = room + 3 * lanes;
  for (long g = 0; g < groups; g++) {
    const REAL *m = mean + g * batch, *s = rate + g * batch;
    std::memset(shift, 0, 2 * lanes * sizeof(REAL));
    for (long c = g * channels; c < (g + 1) * channels; c++) {
      std::memset(plain, 0, 2 * lanes * sizeof(REAL));
      in_parts(pixels, PIXELS, [&](long begin, long end) {
        over_vectors(batch, [&](auto lane, long e, long v) {
          Vector middle = lane.get(m + e), straight{}, crossed{};
          for (long at = c * plane + begin * batch + e; at < c * plane + end * batch; at += batch) {
            Vector d = lane.get(gradient.data + at);
            straight += d;
            crossed += d * (lane.get(image.data + at) - middle);
          }
          store(plain + v, load(plain + v) + straight);
          store(along + v, load(along + v) + crossed);
        });
      });
      REAL straight = 0, crossed = 0;
      over_vectors(batch, [&](auto lane, long e, long v) {
        Vector d = load(plain + v), z = load(along + v) * lane.get(s + e);
        store(shift + v, load(shift + v) + d * scale[c]);
        store(pull + v, load(pull + v) + z * scale[c]);
        for (long n = most(0, v - e); n < least(LANES, batch); n++) straight += d[n], crossed += z[n];
      });
      offset_gradient[c] = straight;
      scale_gradient[c] = crossed;
    }
    const REAL count = REAL(channels * pixels);
    for (long c = g * channels; c < (g + 1) * channels; c++)
      in_parts(pixels, PIXELS, [&](long begin, long end) {
        over_vectors(batch, [&](auto lane, long e, long v) {
          Vector middle = lane.get(m + e), own = lane.get(s + e), factor = own * scale[c];
          Vector less = load(shift + v) * own / count, along = load(pull + v) * own * own / count;
          for (long at = c * plane + begin * batch + e; at < c * plane + end * batch; at += batch)
            lane.put(out.data + at, lane.get(gradient.data + at) * factor - less - (lane.get(image.data + at) - middle) * along);
        });
      });
  }
}
