// Images: decoding (8 bits per channel), orientation and resizing as in Pillow.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hydrant/hydrant.h"

namespace hydrant {

// A decoded file: grey (1 channel) or red, green, blue (3), and its orientation.
struct Decoded {
  Image image;
  int orientation = 1;  // EXIF: 1 (upright) to 8
};

// Maximum pixels of an image, as in Pillow; larger ones may be an attack.
constexpr std::int64_t kMaxPixels = 178'956'970;

// Both throw std::invalid_argument: the bytes are invalid, or have more than `max_pixels`.
Decoded decode_jpeg(std::string_view bytes, std::int64_t max_pixels = kMaxPixels);
Decoded decode_png(std::string_view bytes, std::int64_t max_pixels = kMaxPixels);

inline bool is_jpeg(std::string_view bytes) { return bytes.substr(0, 3) == "\xFF\xD8\xFF"; }
inline bool is_png(std::string_view bytes) { return bytes.substr(0, 8) == "\x89PNG\r\n\x1A\n"; }

// An array of images, as in `as_images`, read in place.
class Pictures {
 public:
  // The array must outlive this. Throws InputError: another type or shape.
  explicit Pictures(const Tensor& array);

  std::size_t size() const { return count_; }
  Image operator[](std::size_t index) const;

 private:
  Image empty_;  // one image without pixels
  std::size_t count_ = 1;
  std::size_t bytes_ = 0;  // of one image
  const std::uint8_t* values_ = nullptr;
};

// The image, rotated by an EXIF orientation.
Image upright(Image image, int orientation);

// The image in grey (1 channel) or colour (3), by Pillow's formula.
Image with_channels(Image image, int channels);

// Numbered as Pillow's `Image.Resampling`.
enum class Filter { nearest = 0, lanczos = 1, bilinear = 2, bicubic = 3, box = 4, hamming = 5 };

// The resized image, bit for bit as `PIL.Image.Image.resize` of Pillow 13.
Image resize(const Image& image, int height, int width, Filter filter);

// The orientation in EXIF, and in an XMP packet (used if EXIF has none); 1 if invalid.
std::optional<int> exif_orientation(std::string_view exif);
std::optional<int> xmp_orientation(std::string_view packet);

// The EXIF in a PNG text "Raw profile type exif" (hexadecimal digits after three lines), or nothing.
std::string raw_profile(std::string_view text);

}  // namespace hydrant
