// Numbers of half precision (binary16).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace hydrant {

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
