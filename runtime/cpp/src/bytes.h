// Numbers in the bytes of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hydrant {

// A number of `size` bytes at `at`, the highest first unless `big` says otherwise, or 0 beyond the end.
inline std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size, bool big = true) {
  if (at > bytes.size() || size > bytes.size() - at) return 0;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value = (value << 8U) | static_cast<unsigned char>(bytes[at + (big ? i : size - 1 - i)]);
  return value;
}

// The number of floating point that has these bits.
template <typename Float, typename Bits>
Float same_bits(Bits bits) {
  static_assert(sizeof(Float) == sizeof(Bits));
  Float found = 0;
  std::memcpy(&found, &bits, sizeof(found));
  return found;
}

}  // namespace hydrant
