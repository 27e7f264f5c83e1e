// Letters of ASCII, large and small, whatever the locale.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace hydrant {

inline char lowered(char each) { return each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each; }

inline std::string lowered(std::string text) {
  for (char& each : text) each = lowered(each);
  return text;
}

// Whether two words are the same but for large and small letters.
inline bool is_alike(std::string_view one, std::string_view other) {
  const auto alike = [](char first, char second) { return lowered(first) == lowered(second); };
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), alike);
}

// A header's value without the spaces and tabs around it.
inline std::string_view trimmed(std::string_view text) {
  const std::size_t start = std::min(text.find_first_not_of(" \t"), text.size());
  return text.substr(start, text.find_last_not_of(" \t") + 1 - start);
}

}  // namespace hydrant
