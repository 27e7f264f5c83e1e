// ASCII text of headers, independent of the locale.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

inline char lowered(char each) { return each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each; }

inline std::string lowered(std::string text) {
  for (char& each : text) each = lowered(each);
  return text;
}

// Compares two words without regard to case.
inline bool is_alike(std::string_view one, std::string_view other) {
  const auto alike = [](char first, char second) { return lowered(first) == lowered(second); };
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), alike);
}

// A header's value without surrounding spaces and tabs.
inline std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(start, text.find_last_not_of(" \t") + 1 - start);
}

// A decimal number; nothing for other text.
inline std::optional<std::uint64_t> decimal(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  return failed == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

}  // namespace hydrant
