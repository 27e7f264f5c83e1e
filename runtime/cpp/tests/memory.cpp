#include "memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::ptrdiff_t> taken{0}, most{0};

}  // namespace

void* operator new(std::size_t size) {
  void* block = std::malloc(std::max<std::size_t>(size, 1));
  if (block == nullptr) throw std::bad_alloc();
  const std::ptrdiff_t now = taken += static_cast<std::ptrdiff_t>(malloc_usable_size(block));
  std::ptrdiff_t before = most;
  while (now > before && !most.compare_exchange_weak(before, now)) {
  }
  return block;
}

void operator delete(void* block) noexcept {
  taken -= static_cast<std::ptrdiff_t>(malloc_usable_size(block));
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

namespace hydrant::tests {

std::size_t most_bytes(const std::function<void()>& call) {
  const std::ptrdiff_t start = taken;
  most = start;
  call();
  return static_cast<std::size_t>(most - start);
}

}  // namespace hydrant::tests
