// Numbers in the bytes of a file.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
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

// The number that 16 bits stand for: 1 of sign, 5 of exponent, 10 of fraction.
inline float half(std::uint64_t bits) {
  const auto exponent = static_cast<int>(bits >> 10U & 0x1FU);
  const auto fraction = static_cast<float>(bits & 0x3FFU);
  const float infinite =
      fraction > 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  const float size = exponent == 0x1F ? infinite
                     : exponent == 0  ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000U) == 0 ? size : -size;
}

}  // namespace hydrant
