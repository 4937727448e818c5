// Arrays and windows as all instruction sets see them. Sizes and distances are in numbers, not in bytes.
#pragma once

namespace native {

// Images, dense in the order channel, row, column, example.
template <class T>
struct Images {
  T* data;
  long channels, rows, columns, examples;
  T* at(long channel, long row) const { return data + (channel * rows + row) * columns * examples; }
};

// A window of `height` x `width` taps whose first place begins `top` rows above and `left` columns before the image.
struct Window {
  long height, width, down, right, top, left;
};

// A kernel's numbers: where the first tap lies, and how far it is to the next one along each axis.
template <class T>
struct Kernel {
  const T* data;
  long by_row, by_column, by_input, by_output;
};

// Where the outputs of a convolution go: distances between channels, rows and columns.
template <class T>
struct Target {
  T* data;
  long channels, rows, columns;
  long by_channel, by_row, by_column;
};

// Of a fully connected layer.
struct Layer {
  long examples, inputs, outputs;
};

// Of a recurrence.
struct Sizes {
  long steps, batch, hidden;
};

inline long divide_up(long a, long b) { return (a + b - 1) / b; }
inline long least(long a, long b) { return a < b ? a : b; }
inline long most(long a, long b) { return a > b ? a : b; }

// Part k of `total` things in `parts` parts that differ by at most one: its begin. Part k ends where part k + 1 begins.
inline long part(long total, long parts, long k) { return total * k / parts; }

}  // namespace native
