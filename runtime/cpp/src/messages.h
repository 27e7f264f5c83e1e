// Words for messages: all on one line, and text from outside is cut.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hydrant {

// `text` on one line, quoted and shortened to `limit` bytes.
std::string cut(std::string_view text, std::size_t limit = 60);

// Pieces with a separator between them.
std::string join(const std::vector<std::string>& pieces, const std::string& separator = ", ");

// A short comma-separated list; says how many were left out.
std::string listing(const std::vector<std::string>& names, std::size_t limit = 8);

// A shape such as "[2, 4]".
std::string shape_text(const std::vector<std::int64_t>& shape);

// `text` with every run of white space and control characters as one space, and "?" for bytes that are not UTF-8.
std::string one_line(std::string_view text);

// The next character of UTF-8 at `place`, which moves behind it; -1, and `place` stays, where there is none.
std::int32_t next_character(std::string_view text, std::size_t& place);

}  // namespace hydrant
