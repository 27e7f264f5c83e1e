#include "messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kLongestName = 60;

// Bytes of the UTF-8 character that `text` starts with; 0 where it starts with none.
std::size_t character_size(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t size = first < 0x80   ? 1
                           : first < 0xC2 ? 0
                           : first < 0xE0 ? 2
                           : first < 0xF0 ? 3
                           : first < 0xF5 ? 4
                                          : 0;
  if (size > text.size()) return 0;
  for (std::size_t i = 1; i < size; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U) return 0;
  }
  return size;
}

// A line of at most `limit` bytes, cut between UTF-8 characters.
std::string shortened(const std::string& line, std::size_t limit) {
  if (line.size() <= limit) return line;
  std::size_t end = limit - 1;
  while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U) --end;
  return line.substr(0, end) + "…";
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t size = character_size(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (size == 0) {
      line += '?';
    } else if (first > ' ' && first != 0x7F) {
      line += text.substr(0, size);
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
    text.remove_prefix(size == 0 ? 1 : size);
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
  const bool all = names.size() <= limit;
  std::string shown;
  for (std::size_t i = 0; i < (all ? names.size() : limit); ++i)
    shown += (i == 0 ? "" : ", ") + shortened(one_line(names[i]), kLongestName);
  return all ? shown : shown + ", … (" + std::to_string(names.size()) + " in all)";
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes) + "]";
}

}  // namespace hydrant
