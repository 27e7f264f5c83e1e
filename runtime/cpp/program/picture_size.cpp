#include "picture_size.h"

#include <algorithm>
#include <cstddef>

#include "../src/bytes.h"

namespace hydrant {
namespace {

// The head of a PNG file stands in its first chunk called IHDR.
PictureSize size_of_png(std::string_view file) {
  constexpr std::size_t kSignature = 8, kHead = 8, kChecksum = 4;  // a chunk's head is its length and its name
  for (std::size_t at = kSignature; at + kHead <= file.size();) {
    if (file.substr(at + 4, 4) == "IHDR") return {number_at(file, at + kHead, 4), number_at(file, at + kHead + 4, 4)};
    at += kHead + static_cast<std::size_t>(number_at(file, at, 4)) + kChecksum;
  }
  return {};
}

// Where the marker ends that comes next; bytes that belong to none are passed over.
std::size_t next_marker(std::string_view file, std::size_t at) {
  while (true) {
    at = std::min(file.find('\xFF', at), file.size());
    at = std::min(file.find_first_not_of('\xFF', at), file.size());
    if (at == file.size()) return at;
    if (file[at++] != '\0') return at;
  }
}

// The size of a JPEG file stands in its first frame.
PictureSize size_of_jpeg(std::string_view file) {
  constexpr std::uint64_t kTemporary = 0x01, kRestart = 0xD0, kEnd = 0xD9, kScan = 0xDA;
  for (std::size_t at = next_marker(file, 2); at < file.size(); at = next_marker(file, at)) {
    const std::uint64_t marker = number_at(file, at - 1, 1);
    if (marker == kTemporary || (marker >= kRestart && marker < kRestart + 8)) continue;  // with nothing behind it
    if (marker == kEnd || marker == kScan) break;
    const bool other = marker == 0xC4 || marker == 0xC8 || marker == 0xCC;  // tables among the frames
    if (marker >= 0xC0 && marker <= 0xCF && !other) return {number_at(file, at + 5, 2), number_at(file, at + 3, 2)};
    at += static_cast<std::size_t>(std::max<std::uint64_t>(number_at(file, at, 2), 2));
  }
  return {};
}

}  // namespace

PictureSize picture_size(std::string_view file) {
  if (file.substr(0, 3) == "\xFF\xD8\xFF") return size_of_jpeg(file);
  return file.substr(0, 8) == "\x89PNG\r\n\x1A\n" ? size_of_png(file) : PictureSize{};
}

}  // namespace hydrant
