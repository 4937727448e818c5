// A random order of a client's examples; included like convolution.h, once for each instruction set.

// Threefry-2x32 with 20 rounds (Salmon et al., SC 2011) of the counter `place`, its two words combined by exclusive or.
static inline uint32_t random_word(const uint32_t* key, uint32_t place) {
  constexpr int turns[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  const uint32_t keys[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA};
  uint32_t x = keys[0], y = place + keys[1];
#pragma GCC unroll 5
  for (int group = 0; group < 5; group++) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      int turn = turns[group % 2][k];
      x += y;
      y = (y << turn | y >> (32 - turn)) ^ x;
    }
    x += keys[(group + 1) % 3];
    y += keys[(group + 2) % 3] + group + 1;
  }
  return x ^ y;
}

// The order of at most 2^16 examples by the upper halves of their random words; equal ones keep theirs. Zeros behind it.
static void shuffle(const uint32_t* key, long size, long width, int32_t* order) {
  uint32_t* words = static_cast<uint32_t*>(memory::buffer(memory::ROW, most(size, 1) * sizeof(uint32_t)));
  uint32_t* dealt = static_cast<uint32_t*>(memory::buffer(memory::SUMS, most(size, 1) * sizeof(uint32_t)));
  for (long n = 0; n < size; n++) words[n] = (random_word(key, uint32_t(n)) & 0xFFFF0000) | uint32_t(n);
  for (int shift = 16; shift <= 24; shift += 8) {
    long begin[256] = {}, total = 0;
    for (long n = 0; n < size; n++) begin[words[n] >> shift & 255]++;
    for (long& count : begin) {
      long own = count;
      count = total;
      total += own;
    }
    for (long n = 0; n < size; n++) dealt[begin[words[n] >> shift & 255]++] = words[n];
    uint32_t* swap = words;
    words = dealt;
    dealt = swap;
  }
  for (long n = 0; n < size; n++) order[n] = int32_t(words[n] & 0xFFFF);
  std::memset(order + size, 0, (width - size) * sizeof(int32_t));
}
