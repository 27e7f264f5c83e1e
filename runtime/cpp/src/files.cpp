#include "files.h"

#include <array>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace fs = std::filesystem;

namespace hydrant {

std::optional<std::string> bytes_of(const fs::path& file) {
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

std::uintmax_t size_of(const fs::path& file) {
  std::error_code failed;
  const fs::file_status status = fs::status(file, failed);
  if (fs::exists(status) && !fs::is_regular_file(status))
    throw std::invalid_argument("it is no regular file but a folder, pipe or device");
  const std::uintmax_t size = fs::file_size(file, failed);
  if (failed) throw std::invalid_argument(failed.message());
  return size;
}

}  // namespace hydrant
