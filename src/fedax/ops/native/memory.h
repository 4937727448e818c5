// Working memory of the calls: a few buffers for each thread, kept and grown, because a fresh allocation of this size costs
// page faults at every call.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace memory {

constexpr size_t LINE = 64;
enum Slot { RING, WEIGHTS, OFFSETS, ROW, SUMS, VALUES, PLACES, ZEROS, SPREAD, SLOTS };

struct Buffers {
  void* data[SLOTS] = {};
  size_t size[SLOTS] = {};
  ~Buffers() {
    for (void* block : data) std::free(block);
  }
};

inline void* buffer(Slot slot, size_t bytes) {
  static thread_local Buffers own;
  bytes = (bytes + LINE - 1) / LINE * LINE;
#ifdef __SANITIZE_ADDRESS__
  bool keep = false;  // the exact size anew each time, so that a step past the end is seen
#else
  bool keep = own.size[slot] >= bytes;
#endif
  if (!keep) {
    std::free(own.data[slot]);
    own.size[slot] = 0;
    own.data[slot] = std::aligned_alloc(LINE, bytes);
    if (own.data[slot] == nullptr) throw std::bad_alloc();
    own.size[slot] = bytes;
  }
  return own.data[slot];
}

}  // namespace memory
