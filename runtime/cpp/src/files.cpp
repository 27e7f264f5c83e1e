#include "files.h"

#include <array>
#include <fstream>

namespace hydrant {

std::optional<std::string> bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string bytes;
  std::array<char, 1U << 16U> block{};
  while (stream) {
    stream.read(block.data(), block.size());
    bytes.append(block.data(), static_cast<std::size_t>(stream.gcount()));
  }
  if (!stream.eof()) return std::nullopt;
  return bytes;
}

}  // namespace hydrant
