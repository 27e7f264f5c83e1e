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

}  // namespace hydrant
