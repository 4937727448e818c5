// Convolutions with fewer multiplications along columns alone, for one number type REAL; included like convolution.h, after
// winograd.h.
//
// A row of M neighbouring outputs is found by its values at six points, as a tile is there, and the rows of the kernel are summed up
// as plain sums are. Five taps take 3 multiplications for an output in place of 5, three take 1.5 in place of 3: more than tiles
// take, but a row of the image has its values found once for all rows of the kernel, and neighbouring tiles share less of them. So
// this pays for few channels, where tiles spend their time on values.

// The values of some tiles of columns, for some examples, of the rows of an image that a window meets. A row is kept in slot
// (row mod slots): for each channel a line of tiles and examples for each point.
struct Lines {
  REAL* data;
  long slots, channels, tile, tiles, example, examples;
  long pitch, channel, next;  // distances of points, and of channels; odd numbers of cache lines

  Lines(long slots, long channels, long tile, long tiles, long example, long examples)
      : slots(slots), channels(channels), tile(tile), tiles(tiles), example(example), examples(examples), next(0) {
    pitch = odd_lines(tiles * examples + LANES);
    channel = odd_lines(POINTS * pitch);
    data = static_cast<REAL*>(memory::buffer(memory::RING, slots * channels * channel * sizeof(REAL)));
  }

  long vectors() const { return divide_up(tiles * examples, LANES); }
  long place(long c, long row) const { return ((row % slots) * channels + c) * channel; }

  // Rows up to `end` of the image. What tiles read past the end of a line is zeros.
  void fill(Images<const REAL> image, const Window& window, long step, const REAL* zeros, long begin, long end) {
    for (long row = most(next, begin); row < end; row++)
      for (long c = 0; c < channels; c++) {
        const REAL* from = image.at(c, row) + example;
        REAL* to = data + place(c, row);
        for (long p = 0; p < POINTS; p++) store(to + p * pitch + (vectors() - 1) * LANES, Vector{});
        for (long t = 0; t < tiles; t++, to += examples) {
          const REAL* at[POINTS];
          for (long j = 0, column = (tile + t) * step - window.left; j < POINTS; j++, column++)
            at[j] = column >= 0 && column < image.columns ? from + column * image.examples : zeros;
          over_lanes(examples, [&](auto lane, long e) {
            Vector x[POINTS], values[POINTS];
#pragma GCC unroll 6
            for (int j = 0; j < POINTS; j++) x[j] = lane.get(at[j] + e);
            values_of_image(x, values);
#pragma GCC unroll 6
            for (int p = 0; p < POINTS; p++) store(to + p * pitch + e, values[p]);
          });
        }
      }
    next = most(next, end);
  }
};

// The values of a kernel's rows in the order in which tiles meet them: point, tile of outputs, kernel row, channel, output.
template <int TAPS>
static void values_of_rows(Kernel<REAL> kernel, long height, long channels, long outputs, long tiles, REAL* to) {
  long all = height * channels * outputs;
  int* place = static_cast<int*>(memory::buffer(memory::OFFSETS, (all + LANES) * sizeof(int)));
  int* next = place;
  for (long k = 0; k < tiles; k++)
    for (long i = 0; i < height; i++)
      for (long c = 0; c < channels; c++)
        for (long o = part(outputs, tiles, k); o < part(outputs, tiles, k + 1); o++)
          *next++ = i * kernel.by_row + c * kernel.by_input + o * kernel.by_output;
  for (long e = 0; e < LANES; e++) next[e] = 0;
  for (long n = 0; n < all; n += LANES) {
    Vector value[POINTS] = {};
    for (int j = 0; j < TAPS; j++) {
      REAL taps[LANES];
      for (long e = 0; e < LANES; e++) taps[e] = kernel.data[j * kernel.by_column + place[n + e]];
      for (int p = 0; p < POINTS; p++) value[p] += load(taps) * of_tap(p, j, TAPS);
    }
    for (int p = 0; p < POINTS; p++) {
      REAL* here = to + p * all + n;
      all - n >= LANES ? store(here, value[p]) : (void)std::memcpy(here, &value[p], (all - n) * sizeof(REAL));
    }
  }
}

// One row of outputs of a part, for the outputs from `first` to `last`.
template <int M>
static void line_of_outputs(const Lines& lines, const int* offset, long taps, const REAL* weights, long by_point, REAL* products,
                            const Target<REAL>& target, long row, long first, long last) {
  long count = last - first, wide = vectors_for(count), spans = divide_up(lines.vectors(), wide);
  for (long p = 0; p < POINTS; p++)
    for (long s = 0; s < spans; s++) {
      long v = part(lines.vectors(), spans, s), along = part(lines.vectors(), spans, s + 1) - v, at = p * lines.pitch + v * LANES;
      tile_for(count, along)(lines.data + at, offset, taps, weights + p * by_point, products + at, lines.channel, false);
    }
  for (long o = first; o < last; o++)
    for (long t = 0; t < lines.tiles; t++) {
      long column = (lines.tile + t) * M, columns = target.columns - column;
      REAL* to = target.data + o * target.by_channel + row * target.by_row + column * target.by_column + lines.example;
      const REAL* from = products + (o - first) * lines.channel + t * lines.examples;
      over_lanes(lines.examples, [&](auto lane, long e) {
        Vector at[POINTS], y[M];
#pragma GCC unroll 6
        for (int p = 0; p < POINTS; p++) at[p] = load(from + p * lines.pitch + e);
        outputs_from(at, y);
#pragma GCC unroll 4
        for (int m = 0; m < M; m++)
          if (m < columns) lane.put(to + m * target.by_column + e, y[m]);
      });
    }
}

template <int M>
static void correlate_lines(Images<const REAL> image, const Window& window, Kernel<REAL> kernel, Target<REAL> target) {
  const long channels = image.channels, outputs = target.channels, height = window.height, batch = image.examples;
  const long groups = divide_up(outputs, MOST_OUTPUTS), across = divide_up(target.columns, M), each = height * channels;
  const long examples = batch <= WHOLE ? batch : BLOCK, bytes = POINTS * examples * long(sizeof(REAL));
  long tiles = least(TILES_BYTES / (each * bytes), PRODUCTS_BYTES / (divide_up(outputs, groups) * bytes));
  const long parts = divide_up(across, most(1, least(across, tiles)));
  REAL* weights = static_cast<REAL*>(memory::buffer(memory::WEIGHTS, POINTS * each * outputs * sizeof(REAL)));
  values_of_rows<POINTS + 1 - M>(kernel, height, channels, outputs, groups, weights);
  int* offset = static_cast<int*>(memory::buffer(memory::OFFSETS, each * sizeof(int)));
  const REAL* zeros = zeros_for(examples);
  for (long example = 0; example < batch; example += examples)
    for (long n = 0; n < parts; n++) {
      long tile = part(across, parts, n);
      Lines lines(height, channels, tile, part(across, parts, n + 1) - tile, example, least(examples, batch - example));
      REAL* products = static_cast<REAL*>(memory::buffer(memory::SUMS, MOST_OUTPUTS * lines.channel * sizeof(REAL)));
      for (long row = 0; row < target.rows; row++) {
        long begin = row * window.down - window.top;
        long first = most(0, -begin), last = most(first, least(height, image.rows - begin));
        lines.fill(image, window, M, zeros, begin + first, begin + last);
        int* next = offset;
        for (long i = first; i < last; i++)
          for (long c = 0; c < channels; c++) *next++ = lines.place(c, begin + i);
        for (long k = 0; k < groups; k++) {
          long o = part(outputs, groups, k), end = part(outputs, groups, k + 1);
          const REAL* mine = weights + o * each + (end - o) * first * channels;
          line_of_outputs<M>(lines, offset, (last - first) * channels, mine, each * outputs, products, target, row, o, end);
        }
      }
    }
}

// ---- where this is faster ----

constexpr Work OF_LINES{1, 1.15, 20, 15, 5};

// As winograd_share. A window has any height and steps down by any number of rows.
static double lines_share(Images<const REAL> image, long outputs, long rows, long columns, const Window& window, const Work& work) {
  const long channels = image.channels, examples = image.examples, taps = window.width;
  if (window.right != 1 || taps < 3 || taps > 5) return 2;
  if (examples < LANES && BYTES < 64) return 2;  // they would be read one by one
  double pairs = double(channels) * outputs, met = rows_met(image, rows, window), lanes = divide_up(examples, LANES);
  long across = divide_up(columns, POINTS + 1 - taps);
  double products = work.product * POINTS * pairs * met * divide_up(across * examples, LANES);
  double values = (work.image * channels * least(image.rows, rows * window.down) + work.outputs * outputs * rows) * across * lanes;
  double plain = work.sums * taps * pairs * met * divide_up(columns * examples, LANES);
  return (products + values + work.kernel * pairs * window.height) / plain;
}

