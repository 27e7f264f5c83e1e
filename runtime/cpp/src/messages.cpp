#include "messages.h"

namespace hydrant {

std::string one_line(std::string_view text) {
  std::string line;
  for (const char letter : text) {
    const bool blank = static_cast<unsigned char>(letter) <= ' ' || letter == '\x7f';
    if (!blank) {
      line += letter;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string cut(std::string_view text, std::size_t limit) {
  std::string line = one_line(text);
  if (line.size() > limit) {
    std::size_t end = limit - 1;
    while (end > 0 && (static_cast<unsigned char>(line[end]) & 0xC0U) == 0x80U)
      --end;  // never inside a UTF-8 character
    line = line.substr(0, end) + "…";
  }
  return "'" + line + "'";
}

std::string join(const std::vector<std::string>& pieces, const std::string& separator) {
  std::string joined;
  for (const std::string& piece : pieces) joined += (joined.empty() ? "" : separator) + piece;
  return joined;
}

std::string listing(const std::vector<std::string>& names, std::size_t limit) {
  if (names.empty()) return "none";
  const bool all = names.size() <= limit;
  std::string shown;
  for (std::size_t i = 0; i < (all ? names.size() : limit); ++i) shown += (i == 0 ? "" : ", ") + names[i];
  return one_line(all ? shown : shown + ", … (" + std::to_string(names.size()) + " in all)");
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const std::int64_t size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes) + "]";
}

}  // namespace hydrant
