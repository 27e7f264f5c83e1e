#include "memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::ptrdiff_t> current{0}, most{0};

}  // namespace

// All operators of the standard library, so that allocators are never mixed.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  void* block = std::malloc(std::max<std::size_t>(size, 1));
  if (block == nullptr) return nullptr;
  const std::ptrdiff_t now = current += static_cast<std::ptrdiff_t>(malloc_usable_size(block));
  std::ptrdiff_t before = most;
  while (now > before && !most.compare_exchange_weak(before, now)) {
  }
  return block;
}

void* operator new(std::size_t size) {
  void* block = operator new(size, std::nothrow);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

void* operator new[](std::size_t size) { return operator new(size); }

void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return operator new(size, std::nothrow); }

void operator delete(void* block) noexcept {
  current -= static_cast<std::ptrdiff_t>(malloc_usable_size(block));
  std::free(block);
}

void operator delete(void* block, std::size_t) noexcept { operator delete(block); }

void operator delete(void* block, const std::nothrow_t&) noexcept { operator delete(block); }

void operator delete[](void* block) noexcept { operator delete(block); }

void operator delete[](void* block, std::size_t) noexcept { operator delete(block); }

void operator delete[](void* block, const std::nothrow_t&) noexcept { operator delete(block); }

namespace hydrant::tests {

std::size_t most_bytes(const std::function<void()>& call) {
  const std::ptrdiff_t start = current;
  most = start;
  call();
  return static_cast<std::size_t>(most - start);
}

}  // namespace hydrant::tests
