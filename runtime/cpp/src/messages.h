// Text of messages: one line, with foreign text shortened.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace hydrant {

// `text` on one line, quoted and shortened to `limit` bytes.
std::string cut(std::string_view text, std::size_t limit = 60);

// Pieces joined by a separator.
std::string join(const std::vector<std::string>& pieces, const std::string& separator = ", ");

// A short comma-separated list; longer ones end with the number of names.
std::string listing(const std::vector<std::string>& names, std::size_t limit = 8);

// A shape such as "[2, 4]".
std::string shape_text(const std::vector<std::int64_t>& shape);

// `text` on one line: one space for white space and control characters, "?" for bytes that are not UTF-8.
std::string one_line(std::string_view text);

// Decodes the UTF-8 character at `place` and advances it; -1 without advancing if the bytes are invalid.
std::int32_t next_character(std::string_view text, std::size_t& place);

// All pieces as one text; numbers in decimal.
template <typename... Pieces>
std::string concat(const Pieces&... pieces) {
  std::string text;
  const auto add = [&](const auto& piece) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(piece)>>) {
      text += std::to_string(piece);
    } else {
      text += piece;
    }
  };
  (add(pieces), ...);
  return text;
}

// A name with spaces instead of underscores.
std::string spaced(std::string name);

inline bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

inline bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

}  // namespace hydrant
