// Group normalisation with what follows it in a residual network, for one number type REAL; included like convolution.h.
//
// These calls wait for memory: a sum with a shortcut, ReLU, and the sum of two gradients stand in the same passes.

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

// A shortcut as the sum sees it: every stride-th pixel, and nothing in the channels that it lacks.
template <class T>
struct Shortcut {
  Images<T> images;
  long stride;

  bool has(long channel) const { return images.data != nullptr && channel < images.channels; }
  // Pixels in a row of which neighbours are one step apart.
  long width(long columns) const { return stride == 1 ? PIXELS : columns; }
  long step() const { return stride * images.examples; }
  T* at(long channel, long pixel, long columns) const {
    if (stride == 1) return images.at(channel, 0) + pixel * images.examples;
    return images.at(channel, pixel / columns * stride) + pixel % columns * step();
  }
};

template <bool ADD, bool RELU>
static void put_norm(Images<const REAL> image, const REAL* mean, const REAL* rate, REAL gain, REAL offset, long channel,
                     const Shortcut<const REAL>& shortcut, Images<REAL> out) {
  long batch = image.examples, pixels = image.rows * image.columns;
  const REAL* from = image.at(channel, 0);
  REAL* to = out.at(channel, 0);
  in_parts(pixels, ADD ? shortcut.width(image.columns) : PIXELS, [&](long begin, long end) {
    const REAL* added = ADD ? shortcut.at(channel, begin, image.columns) : nullptr;
    over_vectors(batch, [&](auto lane, long e, long) {
      Vector middle = lane.get(mean + e), factor = lane.get(rate + e) * gain;
      for (long p = begin; p < end; p++) {
        Vector y = (lane.get(from + p * batch + e) - middle) * factor + offset;
        if constexpr (ADD) y += lane.get(added + (p - begin) * shortcut.step() + e);
        if constexpr (RELU) y = y <= 0 ? Vector{} : y;
        lane.put(to + p * batch + e, y);
      }
    });
  });
}

static void norm(Images<const REAL> image, const REAL* scale, const REAL* offset, long groups, REAL epsilon, bool relu,
                 Images<const REAL> added, long stride, Images<REAL> out, REAL* mean, REAL* rate) {
  long batch = image.examples, channels = image.channels / groups;
  Shortcut<const REAL> shortcut{added, stride};
  REAL* room = static_cast<REAL*>(memory::buffer(memory::ROW, 2 * divide_up(batch, LANES) * LANES * sizeof(REAL)));
  for (long g = 0; g < groups; g++) {
    REAL *m = mean + g * batch, *s = rate + g * batch;
    statistics(image.at(g * channels, 0), channels * image.rows * image.columns, batch, epsilon, room, m, s);
    for (long c = g * channels; c < (g + 1) * channels; c++) {
      auto put = shortcut.has(c) ? (relu ? put_norm<true, true> : put_norm<true, false>)
                                 : (relu ? put_norm<false, true> : put_norm<false, false>);
      put(image, m, s, scale[c], offset[c], c, shortcut, out);
    }
  }
}

// The gradient of the outputs: the sum of two where they had two uses, and zero where ReLU is flat.
template <bool TWICE, bool RELU>
struct Incoming {
  Images<const REAL> first, second, out;

  template <class Lanes>
  inline __attribute__((always_inline)) Vector get(Lanes lane, long at) const {
    Vector d = lane.get(first.data + at);
    if constexpr (TWICE) d += lane.get(second.data + at);
    if constexpr (RELU) d = lane.get(out.data + at) <= 0 ? Vector{} : d;
    return d;
  }
};

// With z the normalised image: dx = rate (g scale - mean(g scale) - z mean(g scale z)), means over the group.
template <bool TWICE, bool RELU>
static void norm_gradient_of(Incoming<TWICE, RELU> incoming, Images<const REAL> image, const REAL* mean, const REAL* rate,
                             const REAL* scale, long groups, Images<REAL> out, REAL* scale_gradient, REAL* offset_gradient,
                             Shortcut<REAL> shortcut) {
  long batch = image.examples, pixels = image.rows * image.columns, channels = image.channels / groups, plane = pixels * batch;
  long lanes = divide_up(batch, LANES) * LANES;
  REAL* room = static_cast<REAL*>(memory::buffer(memory::ROW, 4 * lanes * sizeof(REAL)));
  REAL *plain = room, *along = room + lanes, *shift = room + 2 * lanes, *pull = room + 3 * lanes;
  // the gradient of a shortcut of the same size is that of the sum, which is kept there for the second pass
  const bool kept = shortcut.images.data != nullptr && shortcut.stride == 1 && shortcut.images.channels == image.channels;
  REAL* sum = kept ? shortcut.images.data : nullptr;
  for (long g = 0; g < groups; g++) {
    const REAL *m = mean + g * batch, *s = rate + g * batch;
    std::memset(shift, 0, 2 * lanes * sizeof(REAL));
    for (long c = g * channels; c < (g + 1) * channels; c++) {
      std::memset(plain, 0, 2 * lanes * sizeof(REAL));
      in_parts(pixels, PIXELS, [&](long begin, long end) {
        over_vectors(batch, [&](auto lane, long e, long v) {
          Vector middle = lane.get(m + e), straight{}, crossed{};
          for (long at = c * plane + begin * batch + e; at < c * plane + end * batch; at += batch) {
            Vector d = incoming.get(lane, at);
            straight += d;
            crossed += d * (lane.get(image.data + at) - middle);
            if (kept) lane.put(sum + at, d);
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
          for (long at = c * plane + begin * batch + e; at < c * plane + end * batch; at += batch) {
            Vector d = kept ? lane.get(sum + at) : incoming.get(lane, at);
            lane.put(out.data + at, d * factor - less - (lane.get(image.data + at) - middle) * along);
          }
        });
      });
  }
  if (shortcut.images.data == nullptr || kept) return;
  std::memset(shortcut.images.data, 0, shortcut.images.channels * shortcut.images.rows * shortcut.images.columns * batch * sizeof(REAL));
  for (long c = 0; c < shortcut.images.channels; c++)
    in_parts(pixels, image.columns, [&](long begin, long end) {
      REAL* to = shortcut.at(c, begin, image.columns);
      over_vectors(batch, [&](auto lane, long e, long) {
        for (long p = begin; p < end; p++)
          lane.put(to + (p - begin) * shortcut.step() + e, incoming.get(lane, c * plane + p * batch + e));
      });
    });
}

static void norm_gradient(Images<const REAL> first, Images<const REAL> second, Images<const REAL> gate, Images<const REAL> image,
                          const REAL* mean, const REAL* rate, const REAL* scale, long groups, Images<REAL> out,
                          REAL* scale_gradient, REAL* offset_gradient, Images<REAL> shortcut, long stride) {
  auto run = [&](auto incoming) {
    norm_gradient_of(incoming, image, mean, rate, scale, groups, out, scale_gradient, offset_gradient, {shortcut, stride});
  };
  const bool twice = second.data != nullptr, relu = gate.data != nullptr;
  if (twice && relu) return run(Incoming<true, true>{first, second, gate});
  if (twice) return run(Incoming<true, false>{first, second, gate});
  if (relu) return run(Incoming<false, true>{first, second, gate});
  run(Incoming<false, false>{first, second, gate});
}
