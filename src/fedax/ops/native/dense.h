// The products of a fully connected layer, for one number type REAL; included like convolution.h, after sparse.h:
// outputs[n, o] = sum over k of x[n, k] weights[k, o], gradient[k, o] = sum over n of x[n, k] y[n, o], and
// inputs[n, k] = sum over o of y[n, o] weights[k, o].
//
// All arrays are rows of numbers, of the results at least LANES. Each sum is taken in the order of its index, one number after
// the other, so that leaving out numbers that are zero changes no bit: images with a plain background are full of them.

constexpr int DENSE_ROWS = 6, DENSE_VECTORS = ROOMY ? 4 : 2, LIST_VECTORS = ROOMY ? 16 : 8;
constexpr long PANEL_BYTES = 36000;  // of the second operand, kept in the first cache
constexpr long BAND = 8;             // tiles of rows of a gradient that are finished before the next ones

// Outputs in tiles of whole vectors; the very last vector begins earlier where they are no whole vectors, and the numbers that it
// has in common with the one before it, in its own tile, come out twice.
struct Columns {
  long vectors, tiles, count;

  Columns(long count, long most_vectors) : vectors(divide_up(count, LANES)), tiles(divide_up(vectors, most_vectors)), count(count) {}
  long begin(long t) const { return part(vectors, tiles, t) * LANES; }
  long many(long t) const { return part(vectors, tiles, t + 1) - part(vectors, tiles, t); }
  long last(long t) const { return least((many(t) - 1) * LANES, count - LANES - begin(t)); }
};

// Some rows of one operand: between rows, and between the numbers of a row.
struct Factor {
  const REAL* data;
  long row, step;
};

// Where vector n of a tile begins.
template <int VECTORS>
static inline __attribute__((always_inline)) long at(int n, long last) {
  return n < VECTORS - 1 ? n * LANES : last;
}

// Where sums go: in place of what is there, or onto it (in the order of the sums).
enum class Into { PLACE, SUM };

template <int VECTORS>
static inline __attribute__((always_inline)) void begin_sums(Vector* sum, const REAL* out, long last, Into into) {
#pragma GCC unroll 16
  for (int n = 0; n < VECTORS; n++) sum[n] = into == Into::SUM ? load(out + at<VECTORS>(n, last)) : Vector{};
}

template <int VECTORS>
static inline __attribute__((always_inline)) void end_sums(Vector* sum, REAL* out, long last) {
#pragma GCC unroll 16
  for (int n = 0; n < VECTORS; n++) store(out + at<VECTORS>(n, last), sum[n]);
}

typedef void DenseTile(Factor, long, const REAL*, long, REAL*, long, long, Into);

template <int ROWS, int VECTORS>
static void dense_tile(Factor factor, long count, const REAL* other, long line, REAL* out, long pitch, long last, Into into) {
  Vector sum[ROWS][VECTORS];
  const REAL* from[ROWS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) {
    from[r] = factor.data + r * factor.row;
    begin_sums<VECTORS>(sum[r], out + r * pitch, last, into);
  }
  for (long t = 0, place = 0; t < count; t++, place += factor.step, other += line) {
    Vector right[VECTORS];
#pragma GCC unroll 8
    for (int n = 0; n < VECTORS; n++) right[n] = load(other + at<VECTORS>(n, last));
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 8
      for (int n = 0; n < VECTORS; n++) sum[r][n] += right[n] * from[r][place];
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) end_sums<VECTORS>(sum[r], out + r * pitch, last);
}

template <int ROWS, int VECTORS = DENSE_VECTORS>
static DenseTile* dense_tile_of(long vectors) {
  if constexpr (VECTORS > 1) {
    if (vectors < VECTORS) return dense_tile_of<ROWS, VECTORS - 1>(vectors);
  }
  return dense_tile<ROWS, VECTORS>;
}

template <int ROWS = DENSE_ROWS>
static DenseTile* dense_tile_for(long rows, long vectors) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return dense_tile_for<ROWS - 1>(rows, vectors);
  }
  return dense_tile_of<ROWS>(vectors);
}

// Tile t of the columns, for all rows of the factor against `count` rows of the other operand, which are so far apart.
static void dense_rows(Factor factor, long rows, long count, const REAL* other, long line, REAL* out, const Columns& columns, long t,
                       Into into) {
  long tiles = divide_up(rows, DENSE_ROWS), pitch = columns.count;
  for (long k = 0; k < tiles; k++) {
    long row = part(rows, tiles, k), many = part(rows, tiles, k + 1) - row;
    Factor mine{factor.data + row * factor.row, factor.row, factor.step};
    dense_tile_for(many, columns.many(t))(mine, count, other, line, out + row * pitch + columns.begin(t), pitch, columns.last(t), into);
  }
}

// ---- with lists of the numbers that are not zero ----

typedef void RowTile(const REAL*, const int*, long, const REAL*, REAL*, long, Into);

template <int VECTORS>
static void add_rows(const REAL* values, const int* places, long count, const REAL* rows, REAL* out, long last, Into into) {
  Vector sum[VECTORS];
  begin_sums<VECTORS>(sum, out, last, into);
  for (long k = 0; k < count; k++) {
    const REAL *from = rows + places[k], value = values[k];
#pragma GCC unroll 16
    for (int n = 0; n < VECTORS; n++) sum[n] += load(from + at<VECTORS>(n, last)) * value;
  }
  end_sums<VECTORS>(sum, out, last);
}

template <int VECTORS = LIST_VECTORS>
static RowTile* row_tile(long vectors) {
  if constexpr (VECTORS > 1) {
    if (vectors < VECTORS) return row_tile<VECTORS - 1>(vectors);
  }
  return add_rows<VECTORS>;
}

// Which share of the examples' numbers is not zero: of some of them, evenly spread.
static double share_of_rows(const REAL* x, const Layer& layer) { return share_of_others({x, 1, 1, layer.examples, layer.inputs}); }

// Whether lists are faster, by that share; times in vectors, as measured with AVX-512.
static bool rows_are_sparse(double share, const Layer& layer) {
  double vectors = divide_up(layer.outputs, LANES);
  return share * (1.8 * vectors + LISTED) + 1 < vectors;
}

static void add_listed(const REAL* values, const int* places, long count, const REAL* rows, REAL* out, const Columns& columns,
                       Into into) {
  for (long t = 0; t < columns.tiles; t++) {
    long begin = columns.begin(t);
    row_tile(columns.many(t))(values, places, count, rows + begin, out + begin, columns.last(t), into);
  }
}

// Room for a list of up to `most` numbers, and the places 0, step, ... of all of them.
struct List {
  REAL* values;
  int *places, *all;

  List(long most, long step) {
    values = static_cast<REAL*>(memory::buffer(memory::VALUES, (most + LANES) * sizeof(REAL)));
    places = static_cast<int*>(memory::buffer(memory::PLACES, (2 * most + LANES) * sizeof(int)));
    all = places + most + LANES;
    for (long k = 0; k < most; k++) all[k] = k * step;
  }

  // What of some numbers is not zero; returns how many are.
  long fill(const REAL* from, long numbers) const {
    long count = 0, k = 0;
    for (; k + LANES <= numbers; k += LANES) count += keep(from + k, all + k, values + count, places + count);
    for (; k < numbers; k++)
      if (from[k] != 0) values[count] = from[k], places[count++] = all[k];
    return count;
  }
};

static Into onto(bool sums) { return sums ? Into::SUM : Into::PLACE; }

static void sparse_layer(const REAL* x, const REAL* weights, const Layer& layer, double share, REAL* out) {
  Columns columns(layer.outputs, LIST_VECTORS);
  // an example meets few rows of the panel, so that a larger one stays in the first cache well enough
  long bytes = long(PANEL_BYTES / (share < 0.25 ? 0.5 : share < 0.5 ? 2 * share : 1));
  long block = most(LANES, bytes / (layer.outputs * long(sizeof(REAL))) / LANES * LANES);
  List list(block, layer.outputs);
  for (long begin = 0; begin < layer.inputs; begin += block)
    for (long n = 0; n < layer.examples; n++) {
      long count = list.fill(x + n * layer.inputs + begin, least(block, layer.inputs - begin));
      add_listed(list.values, list.places, count, weights + begin * layer.outputs, out + n * layer.outputs, columns, onto(begin > 0));
    }
}

static void layer_outputs(const REAL* x, const REAL* weights, const Layer& layer, REAL* out) {
  double share = share_of_rows(x, layer);
  if (rows_are_sparse(share, layer)) return sparse_layer(x, weights, layer, share, out);
  Columns columns(layer.outputs, DENSE_VECTORS);
  long block = PANEL_BYTES / (DENSE_VECTORS * BYTES);
  for (long t = 0; t < columns.tiles; t++)
    for (long begin = 0; begin < layer.inputs; begin += block) {
      const REAL* panel = weights + begin * layer.outputs + columns.begin(t);
      long here = least(block, layer.inputs - begin);
      dense_rows({x + begin, layer.inputs, 1}, layer.examples, here, panel, layer.outputs, out, columns, t, onto(begin > 0));
    }
}

// The gradient by the kernel, a few of its rows at a time.
struct KernelGradient {
  const REAL *x, *y;
  Layer layer;
  bool sparse;
  Columns columns;
  List list;
  long whole;
  REAL* turned;

  KernelGradient(const REAL* x, const REAL* y, const Layer& layer)
      : x(x),
        y(y),
        layer(layer),
        sparse(rows_are_sparse(share_of_rows(x, layer), layer)),
        columns(layer.outputs, sparse ? LIST_VECTORS : DENSE_VECTORS),
        list(layer.examples, layer.outputs),
        whole(divide_up(layer.examples, LANES) * LANES),
        turned(static_cast<REAL*>(memory::buffer(memory::ROW, LANES * whole * sizeof(REAL)))) {}

  // Those from `begin` to `end`.
  void rows(long begin, long end, REAL* out, Into into) const {
    if (sparse) return listed(begin, end, out, into);
    for (long first = begin; first < end; first += BAND * DENSE_ROWS) {
      long here = least(BAND * DENSE_ROWS, end - first);
      for (long t = 0; t < columns.tiles; t++)
        dense_rows({x + first, 1, layer.inputs}, here, layer.examples, y + columns.begin(t), layer.outputs, out + first * layer.outputs,
                   columns, t, into);
    }
  }

  void listed(long begin, long end, REAL* out, Into into) const {
    for (long first = begin; first < end; first += LANES) {
      Some some(first, layer.inputs);
      split(x, Row{1, 1, 0, layer.inputs}, layer.examples, some, turned, whole);
      for (long e = some.first; e < least(some.count, end - some.begin); e++) {
        long count = list.fill(turned + e * whole, layer.examples);
        if (count > 0 || into == Into::PLACE)
          add_listed(list.values, list.places, count, y, out + (some.begin + e) * layer.outputs, columns, into);
      }
    }
  }
};

static void layer_gradient(const REAL* x, const REAL* y, const Layer& layer, REAL* out) {
  KernelGradient(x, y, layer).rows(0, layer.inputs, out, onto(false));
}

// The gradient by the examples, some of the inputs at a time: their rows of the weights become columns, a part of the sum at a time.
struct InputGradient {
  const REAL* y;
  Layer layer;
  Columns columns, depth;
  REAL* turned;

  static constexpr long WIDE = DENSE_VECTORS * LANES, DEEP = PANEL_BYTES / (WIDE * long(sizeof(REAL))) / LANES;

  InputGradient(const REAL* y, const Layer& layer)
      : y(y),
        layer(layer),
        columns(layer.inputs, DENSE_VECTORS),
        depth(layer.outputs, DEEP),
        turned(static_cast<REAL*>(memory::buffer(memory::WEIGHTS, DEEP * LANES * WIDE * sizeof(REAL)))) {}

  // Tile t of the inputs.
  void tile(const REAL* weights, long t, REAL* out) const {
    const REAL* rows = weights + columns.begin(t) * layer.outputs;
    for (long d = 0; d < depth.tiles; d++) {
      long begin = depth.begin(d), count = depth.last(d) + LANES;
      for (long n = 0; n < columns.many(t); n++)
        for (long m = 0; m < depth.many(d); m++) {
          long row = least(n * LANES, columns.last(t)), column = least(m * LANES, depth.last(d));
          Vector block[LANES];
          for (long e = 0; e < LANES; e++) {
            const REAL* from = rows + (row + e) * layer.outputs + begin + column;
            __builtin_prefetch(from + DEEP * LANES);
            block[e] = load(from);
          }
          turn<LANES>(block);
          for (long e = 0; e < LANES; e++) store(turned + (column + e) * WIDE + row, block[e]);
        }
      dense_rows({y + begin, layer.outputs, 1}, layer.examples, count, turned, WIDE, out, columns, t, onto(begin > 0));
    }
  }
};

static void layer_inputs(const REAL* y, const REAL* weights, const Layer& layer, REAL* out) {
  InputGradient gradient(y, layer);
  for (long t = 0; t < gradient.columns.tiles; t++) gradient.tile(weights, t, out);
}
