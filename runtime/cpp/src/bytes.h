// Decoding of numbers from bytes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

namespace hydrant {

// A number of `size` bytes at `at`, big-endian unless `big` is false; 0 past the end.
inline std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size, bool big = true) {
  if (at > bytes.size() || size > bytes.size() - at) return 0;
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < size; ++i)
    value = (value << 8U) | static_cast<unsigned char>(bytes[at + (big ? i : size - 1 - i)]);
  return value;
}

// The floating-point number with these bits.
template <typename Float, typename Bits>
Float same_bits(Bits bits) {
  static_assert(sizeof(Float) == sizeof(Bits));
  Float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Decodes a half-precision number: 1 sign bit, 5 exponent bits, 10 fraction bits.
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
