// The recurrence of a long short-term memory, for one number type REAL; included like convolution.h, whose tiles it takes.

// A product with the same matrix, (rows x depth) times (depth x columns), again and again: the matrix lies in panels of columns
// that are as wide as a tile.
struct Product {
  long rows, depth, columns, blocks, width, panels, pitch;
  int vectors;
  REAL *weights, *left;
  int* offset;

  // Number (k, n) of the matrix is matrix[k * by_depth + n * by_column].
  Product(long rows, long depth, long columns, const REAL* matrix, long by_depth, long by_column)
      : rows(rows), depth(depth), columns(columns), blocks(divide_up(rows, MOST_OUTPUTS)) {
    vectors = vectors_for(int(divide_up(rows, blocks)));
    width = vectors * LANES;
    panels = divide_up(columns, width);
    pitch = odd_lines(panels * width);
    weights = static_cast<REAL*>(memory::buffer(memory::WEIGHTS, panels * depth * width * sizeof(REAL)));
    left = static_cast<REAL*>(memory::buffer(memory::ROW, rows * depth * sizeof(REAL)));
    offset = static_cast<int*>(memory::buffer(memory::OFFSETS, depth * sizeof(int)));
    for (long k = 0; k < depth; k++) offset[k] = int(k * width);
    for (long p = 0; p < panels; p++) pack(matrix + p * width * by_column, least(width, columns - p * width), by_depth, by_column,
                                           weights + p * depth * width);
  }

  // A line of the cache at a time along the depth: a matrix that lies turned is read and written by whole lines too.
  void pack(const REAL* from, long count, long by_depth, long by_column, REAL* to) const {
    for (long begin = 0; begin < depth; begin += LINE) {
      long end = least(begin + LINE, depth);
      for (long n = 0; n < width; n++)
        for (long k = begin; k < end; k++) to[k * width + n] = n < count ? from[k * by_depth + n * by_column] : REAL(0);
    }
  }

  // out has rows of `pitch` numbers, of which `columns` count.
  void run(const REAL* a, REAL* out) const {
    for (long b = 0; b < blocks; b++) {
      long first = part(rows, blocks, b), count = part(rows, blocks, b + 1) - first;
      REAL* to = left + first * depth;
      for (long k = 0; k < depth; k++)
        for (long r = 0; r < count; r++) *to++ = a[(first + r) * depth + k];
    }
    for (long p = 0; p < panels; p++)
      for (long b = 0; b < blocks; b++) {
        long first = part(rows, blocks, b), count = part(rows, blocks, b + 1) - first;
        tile_for(count, vectors)(weights + p * depth * width, offset, depth, left + first * depth, out + first * pitch + p * width,
                                 pitch, false);
      }
  }
};

static inline Vector all(REAL value) { return Vector{} + value; }

// t / (t + 2) with t = exp(2 x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), |r| <= log(2) / 2: nothing cancels near zero.
static inline Vector tanh_of(Vector x) {
  constexpr bool single = sizeof(REAL) == 4;
  constexpr REAL most = single ? 9.1 : 19.1;  // from there on it is 1 in all digits
  constexpr REAL round = single ? 12582912.0 : 6755399441055744.0;  // 1.5 times 2 to the number of digits
  constexpr REAL high = single ? 0.693359375 : 0.693147180601954460144042968750;  // log(2), few digits, and the rest of it
  constexpr REAL low = single ? -0.00021219444005469058277 : -0.0000000000420091507268109063;
  constexpr int terms = single ? 7 : 13;
  constexpr REAL factor[] = {1.0,         1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,        1.0 / 720,       1.0 / 5040,
                             1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  x = x > most ? all(most) : x;
  x = x < -most ? all(-most) : x;
  Vector z = x + x, turns = z * REAL(1.44269504088896340736) + round, n = turns - round;
  Vector r = (z - n * high) - n * low, sum = all(factor[terms - 1]);
#pragma GCC unroll 16
  for (int k = terms - 2; k >= 0; k--) sum = sum * r + factor[k];
  constexpr int bias = single ? 127 : 1023, digits = single ? 23 : 52;
  Vector power = (Vector)(((Mask)turns - (Mask)all(round) + bias) << digits);  // NaN stays NaN by way of r
  Vector t = power * (sum * r) + (power - 1);
  return t / (t + 2);
}

static inline Vector sigmoid_of(Vector x) { return tanh_of(x * REAL(0.5)) * REAL(0.5) + REAL(0.5); }

// Gates i, f, g, o side by side. `peep` has three rows of weights from the cell to i, f, o, or is null. Hidden states, cells and
// gates after every step, from zeros.
static void recur(const REAL* projected, const REAL* kernel, const REAL* peep, const Sizes& size, REAL* hs, REAL* cs, REAL* gates) {
  const long width = size.hidden, state = size.batch * width;
  Product product(size.batch, width, 4 * width, kernel, 4 * width, 1);
  REAL* sums = static_cast<REAL*>(memory::buffer(memory::SUMS, size.batch * product.pitch * sizeof(REAL)));
  REAL* zeros = static_cast<REAL*>(memory::buffer(memory::ZEROS, width * sizeof(REAL)));
  std::memset(sums, 0, size.batch * product.pitch * sizeof(REAL));
  std::memset(zeros, 0, width * sizeof(REAL));
  for (long t = 0; t < size.steps; t++) {
    if (t > 0) product.run(hs + (t - 1) * state, sums);
    for (long m = 0; m < size.batch; m++) {
      const REAL *from = projected + (t * size.batch + m) * 4 * width, *sum = sums + m * product.pitch;
      const REAL* before = t > 0 ? cs + (t - 1) * state + m * width : zeros;
      REAL *h = hs + t * state + m * width, *c = cs + t * state + m * width, *gate = gates + (t * size.batch + m) * 4 * width;
      over(width, [&](long j) {
        Vector a[4], old = load(before + j);
        for (int k = 0; k < 4; k++) a[k] = load(from + k * width + j) + load(sum + k * width + j);
        if (peep) a[0] += load(peep + j) * old, a[1] += load(peep + width + j) * old;
        Vector i = sigmoid_of(a[0]), f = sigmoid_of(a[1]), g = tanh_of(a[2]), cell = f * old + i * g;
        Vector o = sigmoid_of(peep ? a[3] + load(peep + 2 * width + j) * cell : a[3]);
        store(gate + j, i), store(gate + width + j, f), store(gate + 2 * width + j, g), store(gate + 3 * width + j, o);
        store(c + j, cell), store(h + j, o * tanh_of(cell));
      });
    }
  }
}

// The gradient of the gates before their functions, from that of the hidden states.
static void recur_gradient(const REAL* gradient, const REAL* gates, const REAL* cs, const REAL* kernel, const REAL* peep,
                           const Sizes& size, REAL* da) {
  const long width = size.hidden, state = size.batch * width;
  Product product(size.batch, 4 * width, width, kernel, 1, 4 * width);
  REAL* sums = static_cast<REAL*>(memory::buffer(memory::SUMS, size.batch * product.pitch * sizeof(REAL)));
  // of the cells: read and written in turns, because the last vector of a row overlaps the one before; and zeros
  REAL* cells = static_cast<REAL*>(memory::buffer(memory::RING, (2 * state + width) * sizeof(REAL)));
  std::memset(sums, 0, size.batch * product.pitch * sizeof(REAL));
  std::memset(cells, 0, (2 * state + width) * sizeof(REAL));
  for (long t = size.steps - 1; t >= 0; t--) {
    REAL *now = da + t * 4 * state, *old = cells + t % 2 * state, *next = cells + (t + 1) % 2 * state;
    for (long m = 0; m < size.batch; m++) {
      const REAL *from = gradient + t * state + m * width, *sum = sums + m * product.pitch, *c = cs + t * state + m * width;
      const REAL *gate = gates + (t * size.batch + m) * 4 * width, *before = t > 0 ? c - state : cells + 2 * state;
      REAL *out = now + m * 4 * width, *dc_old = old + m * width, *dc_next = next + m * width;
      over(width, [&](long j) {
        Vector i = load(gate + j), f = load(gate + width + j), g = load(gate + 2 * width + j), o = load(gate + 3 * width + j);
        Vector dh = load(from + j) + load(sum + j), cell = tanh_of(load(c + j)), one = all(1);
        Vector d_o = dh * cell * o * (one - o), dc = load(dc_old + j) + dh * o * (one - cell * cell);
        if (peep) dc += d_o * load(peep + 2 * width + j);
        Vector di = dc * g * i * (one - i), df = dc * load(before + j) * f * (one - f), dg = dc * i * (one - g * g);
        dc *= f;
        if (peep) dc += di * load(peep + j) + df * load(peep + width + j);
        store(out + j, di), store(out + width + j, df), store(out + 2 * width + j, dg), store(out + 3 * width + j, d_o);
        store(dc_next + j, dc);
      });
    }
    if (t > 0) product.run(now, sums);
  }
}
