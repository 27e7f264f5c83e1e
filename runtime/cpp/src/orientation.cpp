#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "bytes.h"
#include "image.h"

namespace hydrant {
namespace {

constexpr std::uint64_t kOrientation = 0x0112;
constexpr std::size_t kTiffHead = 8, kTiffEntry = 12;  // bytes of TIFF's head, and of a directory entry

// Bytes of a value, by type; 0 for unknown types.
constexpr std::array<std::size_t, 17> kSizes{0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};

// An orientation; upright if invalid.
int valid_or_upright(double orientation) {
  const bool valid = orientation >= 1 && orientation <= 8 && orientation == static_cast<int>(orientation);
  return valid ? static_cast<int>(orientation) : 1;
}

// The first value of an entry as an orientation; upright for bytes and texts.
int orientation_at(std::string_view tiff, std::size_t at, std::uint64_t type, bool big) {
  constexpr std::uint64_t kShort = 3, kRational = 5, kUndefined = 7, kSignedRational = 10, kFloat = 11, kDouble = 12;
  const std::uint64_t bits = number_at(tiff, at, kSizes[type], big);
  if (type == kRational || type == kSignedRational) {
    const auto part = [&](std::size_t place) {
      const auto number = static_cast<std::uint32_t>(number_at(tiff, place, 4, big));
      return type == kRational ? static_cast<double>(number) : static_cast<double>(static_cast<std::int32_t>(number));
    };
    const double below = part(at + 4);
    return below == 0 ? 1 : valid_or_upright(part(at) / below);
  }
  if (type == kFloat) return valid_or_upright(same_bits<float>(static_cast<std::uint32_t>(bits)));
  if (type == kDouble) return valid_or_upright(same_bits<double>(bits));
  return type < kShort || type == kUndefined ? 1 : valid_or_upright(static_cast<double>(bits));
}

// Returns true if EXIF begins like TIFF, also for two wrong forms that Pillow accepts.
bool has_magic(std::string_view tiff) {
  constexpr std::array<std::string_view, 4> kMagics{
      {{"MM\0\x2A", 4}, {"II\x2A\0", 4}, {"MM\x2A\0", 4}, {"II\0\x2A", 4}}};
  return tiff.size() >= kTiffHead && std::find(kMagics.begin(), kMagics.end(), tiff.substr(0, 4)) != kMagics.end();
}

}  // namespace

std::optional<int> exif_orientation(std::string_view exif) {
  constexpr std::string_view kName{"Exif\0\0", 6};
  for (int i = 0; i < 2 && exif.substr(0, kName.size()) == kName; ++i) exif.remove_prefix(kName.size());
  if (!has_magic(exif)) return std::nullopt;
  const bool big = exif[0] == 'M';
  const std::size_t directory = number_at(exif, 4, 4, big);
  std::uint64_t entries = number_at(exif, directory, 2, big), outside = 0;  // bytes of values outside the directory
  for (std::size_t at = directory + 2; entries > 0 && at + kTiffEntry <= exif.size(); --entries, at += kTiffEntry) {
    const std::uint64_t type = number_at(exif, at + 2, 2, big);
    const std::uint64_t size = type < kSizes.size() ? number_at(exif, at + 4, 4, big) * kSizes[type] : 0;
    std::size_t place = at + 8;
    if (size > 4) {
      outside += size;
      if (outside > exif.size()) continue;
      place = number_at(exif, at + 8, 4, big);
      if (place > exif.size() || size > exif.size() - place) return std::nullopt;  // as in Pillow
    }
    if (size > 0 && number_at(exif, at, 2, big) == kOrientation) return orientation_at(exif, place, type, big);
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = packet.find(kName); at != std::string_view::npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());
    const std::size_t before = rest.substr(0, 2) == "=\"" ? 2 : rest.substr(0, 1) == ">" ? 1 : 0;
    rest.remove_prefix(before);
    if (before > 0 && !rest.empty() && rest[0] >= '0' && rest[0] <= '9') return valid_or_upright(rest[0] - '0');
  }
  return std::nullopt;
}

std::string raw_profile(std::string_view text) {
  for (int line = 0; line < 3; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  constexpr std::string_view kDigits = "0123456789abcdef0123456789ABCDEF";
  std::string bytes;
  std::optional<std::size_t> high;
  for (const char each : text) {
    if (std::strchr(" \t\n\v\f\r", each) != nullptr && each != '\0') continue;
    const std::size_t digit = kDigits.find(each);
    if (digit == std::string_view::npos) return {};
    if (high) bytes.push_back(static_cast<char>(*high << 4U | (digit & 0xFU)));
    high = high ? std::nullopt : std::optional<std::size_t>(digit & 0xFU);
  }
  return high ? std::string() : bytes;
}

}  // namespace hydrant
