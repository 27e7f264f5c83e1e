#include "messages.h"

#include <algorithm>

namespace hydrant {
namespace {

constexpr std::size_t kLongestName = 60;

// A line of at most `limit` bytes, cut between UTF-8 characters.
std::string shortened(const std::string& line, std::size_t limit) {
  if (line.size() <= limit) return line;
  std::size_t end = limit - 1;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U) --end;
  return line.substr(0, end) + "…";
}

}  // namespace

std::int32_t next_character(std::string_view text, std::size_t& place) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte(place);
  const std::size_t more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : lead >= 0xE0 && lead < 0xF0 ? 2 : 3;
  if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4) return -1;
  unsigned code = more == 0 ? lead : lead & (0x3FU >> more);
  for (std::size_t i = 1; i <= more; ++i) {
    if ((byte(place + i) & 0xC0U) != 0x80U) return -1;
    code = code << 6U | (byte(place + i) & 0x3FU);
  }
  constexpr unsigned kLeast[] = {0, 0x80, 0x800, 0x10000};
  if (code < kLeast[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return -1;
  place += more + 1;
  return static_cast<std::int32_t>(code);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (std::size_t place = 0; place < text.size();) {
    const std::size_t start = place;
    const std::int32_t character = next_character(text, place);
    if (character < 0) {
      line += '?';
      ++place;
    } else if (character > ' ' && character != 0x7F) {
      line += text.substr(start, place - start);
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string cut(std::string_view text, std::size_t limit) { return "'" + shortened(one_line(text), limit) + "'"; }

std::string join(const std::vector<std::string>& pieces, const std::string& separator) {
  std::string joined;
  for (const std::string& piece : pieces) joined += (joined.empty() ? "" : separator) + piece;
  return joined;
}

std::string listing(const std::vector<std::string>& names, std::size_t limit) {
  if (names.empty()) return "none";
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(names.size(), limit); ++i)
    shown.push_back(shortened(one_line(names[i]), kLongestName));
  return names.size() <= limit ? join(shown) : concat(join(shown), ", … (", names.size(), " in all)");
}

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes) + "]";
}

}  // namespace hydrant
