// The outputs of a convolution, and the gradient of its image, which are the outputs for the kernel turned around; included
// like convolution.h.

// Times of the two forms with fewer multiplications in that of plain sums.
struct Shares {
  double tiles, lines;

  Shares(Images<const REAL> image, long outputs, long rows, long columns, const Window& window)
      : tiles(winograd_share(image, outputs, rows, columns, window, OF_OUTPUTS)),
        lines(lines_share(image, outputs, rows, columns, window, OF_LINES)) {}
  double best() const { return tiles < lines ? tiles : lines; }
  bool take_tiles() const { return tiles < lines && tiles <= GAIN; }
};

static void correlate(Images<const REAL> image, const Window& window, Kernel<REAL> kernel, Target<REAL> target) {
  Shares shares(image, target.channels, target.rows, target.columns, window);
  if (shares.best() > GAIN) return dense_correlate(image, window, kernel, target);
  with_tiles(window.width, [&](auto size) {
    if (shares.tiles < shares.lines) return winograd_correlate<size.SIZE>(image, window, kernel, target);
    correlate_lines<size.SIZE>(image, window, kernel, target);
  });
}

static void forward(Images<const REAL> image, const REAL* kernel, const Window& window, Images<REAL> out) {
  long inputs = image.channels, outputs = out.channels, batch = image.examples;
  Kernel<REAL> taps{kernel, window.width * inputs * outputs, inputs * outputs, outputs, 1};
  Target<REAL> target{out.data, outputs, out.rows, out.columns, out.rows * out.columns * batch, out.columns * batch, batch};
  correlate(image, window, taps, target);
}

// ---- gradient of the image: the gradient of the outputs, correlated with the kernel turned around ----

// Of rows (or columns) of the image, those that the taps of one remainder of the stride reach.
struct Remainder {
  long taps, first, count, before;

  Remainder(long remainder, long size, long stride, long window, long border) {
    taps = divide_up(window - remainder, stride);
    long step = remainder < border ? divide_up(border - remainder, stride) : 0;
    first = step * stride + remainder - border;
    count = first < size ? divide_up(size - first, stride) : 0;
    before = taps - 1 - step;
  }
};

static void dense_gradient_of_image(Images<const REAL> gradient, const REAL* kernel, const Window& window, Images<REAL> image) {
  long inputs = image.channels, outputs = gradient.channels, batch = image.examples;
  long by_column = inputs * outputs, by_row = window.width * by_column;
  for (long a = 0; a < window.down; a++)
    for (long b = 0; b < window.right; b++) {
      Remainder rows(a, image.rows, window.down, window.height, window.top);
      Remainder columns(b, image.columns, window.right, window.width, window.left);
      if (rows.count <= 0 || columns.count <= 0) continue;
      Target<REAL> target{image.at(0, rows.first) + columns.first * batch,
                          inputs,
                          rows.count,
                          columns.count,
                          image.rows * image.columns * batch,
                          window.down * image.columns * batch,
                          window.right * batch};
      if (rows.taps <= 0 || columns.taps <= 0) {  // the stride steps over these pixels
        for (long c = 0; c < inputs; c++)
          for (long r = 0; r < rows.count; r++)
            for (long q = 0; q < columns.count; q++)
              std::memset(target.data + c * target.by_channel + r * target.by_row + q * target.by_column, 0,
                          batch * sizeof(REAL));
        continue;
      }
      const REAL* last = kernel + (a + (rows.taps - 1) * window.down) * by_row + (b + (columns.taps - 1) * window.right) * by_column;
      Kernel<REAL> turned{last, -window.down * by_row, -window.right * by_column, 1, outputs};
      correlate(gradient, Window{rows.taps, columns.taps, 1, 1, rows.before, columns.before}, turned, target);
    }
}
