// Pictures: decoding (8 bits per channel, the colours of the file), orientation and resizing as in Pillow.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "hydrant/hydrant.h"

namespace hydrant {

// A decoded file: grey (1 channel) or red, green, blue (3), and how it must be turned to stand upright.
struct Decoded {
  Image image;
  int orientation = 1;  // 1 (upright) to 8, as EXIF counts them
};

// Most pixels of a picture, Pillow's limit: more are taken for an attack.
constexpr std::int64_t kMostPixels = 178'956'970;

// Both throw std::invalid_argument: the bytes cannot be decoded, or stand for more pixels than `most`.
Decoded decode_jpeg(std::string_view bytes, std::int64_t most = kMostPixels);
Decoded decode_png(std::string_view bytes, std::int64_t most = kMostPixels);

// An array of pictures, as `as_images` takes it; each is read where it lies.
class Pictures {
 public:
  // The array outlives this. Throws InputError: another type or shape.
  explicit Pictures(const Tensor& array);

  std::size_t size() const { return count_; }
  Image operator[](std::size_t index) const;

 private:
  Image empty_;  // one of their size, without pixels
  std::size_t count_ = 1;
  std::size_t bytes_ = 0;  // of one
  const std::uint8_t* values_ = nullptr;
};

// The picture turned as an EXIF orientation says.
Image upright(Image image, int orientation);

// The picture in grey (1 channel) or colour (3), by Pillow's formula.
Image with_channels(Image image, int channels);

// Numbered as Pillow's `Image.Resampling`.
enum class Filter { nearest = 0, lanczos = 1, bilinear = 2, bicubic = 3, box = 4, hamming = 5 };

// The picture in another size, bit for bit as `PIL.Image.Image.resize` of Pillow 13 gives it.
Image resize(const Image& image, int height, int width, Filter filter);

// The orientation in EXIF, and in an XMP packet, which counts where EXIF has none; 1 for an invalid one.
std::optional<int> exif_orientation(std::string_view exif);
std::optional<int> xmp_orientation(std::string_view packet);

// The EXIF in a PNG text "Raw profile type exif" (hexadecimal digits behind three lines), or nothing.
std::string raw_profile(std::string_view text);

}  // namespace hydrant
