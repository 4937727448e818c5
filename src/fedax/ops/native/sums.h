// Sums over clients, one pass each; included like convolution.h. Results may lie where the operands do.

// Adds weight times values to totals; `lost` is what rounding added to them (Kahan 1965).
static void accumulate(const REAL* totals, const REAL* lost, const REAL* values, REAL weight, long count, REAL* after, REAL* left) {
  auto add = [](auto total, auto before, auto value, auto factor, auto* sum, auto* error) {
    auto missing = factor * value - before;
    *sum = total + missing;
    *error = (*sum - total) - missing;
  };
  long n = 0;
  for (; n + LANES <= count; n += LANES) {
    Vector sum, error;
    add(load(totals + n), load(lost + n), load(values + n), Vector{} + weight, &sum, &error);
    store(after + n, sum);
    store(left + n, error);
  }
  for (; n < count; n++) {
    REAL sum, error;
    add(totals[n], lost[n], values[n], weight, &sum, &error);
    after[n] = sum;
    left[n] = error;
  }
}

// Whether all numbers are finite: a number that is not has no difference to itself.
static bool finite(const REAL* values, long count) {
  Mask differs{};
  long n = 0;
  for (; n + LANES <= count; n += LANES) {
    Vector value = load(values + n), none = value - value;
    differs |= none != none;
  }
  bool found = false;
  for (long e = 0; e < LANES; e++) found |= differs[e] != 0;
  for (; n < count; n++) found |= !(values[n] - values[n] == 0);
  return !found;
}
