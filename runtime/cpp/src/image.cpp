#include "image.h"

#include <algorithm>
#include <new>
#include <stdexcept>

#include "files.h"
#include "messages.h"
#include "view.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

constexpr std::uintmax_t kMostFileBytes = 1ULL << 30U;

// Grey by ITU-R 601 in fixed point, as Pillow computes it.
std::uint8_t grey(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16U);
}

std::string read_bytes(const fs::path& file) {
  if (size_of(file) > kMostFileBytes) throw std::invalid_argument("it is larger than 1 GiB");
  auto bytes = bytes_of(file);
  if (!bytes) throw std::invalid_argument("check its permissions");
  return std::move(*bytes);
}

Decoded decode(std::string_view bytes) {
  if (bytes.substr(0, 3) == "\xFF\xD8\xFF") return decode_jpeg(bytes);
  if (bytes.substr(0, 8) == "\x89PNG\r\n\x1A\n") return decode_png(bytes);
  throw std::invalid_argument("it is neither a JPEG nor a PNG");
}

// A number of `size` bytes at `at`, or 0 beyond the end.
std::uint32_t number_at(std::string_view bytes, std::size_t at, std::size_t size, bool big) {
  if (at > bytes.size() || size > bytes.size() - at) return 0;
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < size; ++i) {
    value = (value << 8U) | static_cast<unsigned char>(bytes[at + (big ? i : size - 1 - i)]);
  }
  return value;
}

// An orientation, or upright where there is no such number.
int known(std::uint32_t orientation) {
  return orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
}

}  // namespace

Image with_channels(Image image, int channels) {
  if (image.channels == channels) return image;
  const std::size_t count = image.pixels.size() / static_cast<std::size_t>(image.channels);
  Image made{image.height, image.width, channels,
             std::vector<std::uint8_t>(count * static_cast<std::size_t>(channels))};
  for (std::size_t i = 0; i < count; ++i) {
    if (channels == 1) {
      made.pixels[i] = grey(image.pixels.data() + 3 * i);
    } else {
      std::fill_n(made.pixels.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, image.pixels[i]);
    }
  }
  return made;
}

std::optional<int> exif_orientation(std::string_view tiff) {
  constexpr std::uint32_t kOrientation = 0x0112;
  const bool big = tiff.substr(0, 2) == "MM";
  if (!big && tiff.substr(0, 2) != "II") return std::nullopt;
  const std::size_t directory = number_at(tiff, 4, 4, big);
  const std::size_t entries = number_at(tiff, directory, 2, big);
  for (std::size_t entry = 0; entry < entries; ++entry) {
    const std::size_t at = directory + 2 + 12 * entry;
    if (number_at(tiff, at, 2, big) != kOrientation) continue;
    const std::uint32_t type = number_at(tiff, at + 2, 2, big);
    if (type != 1 && type != 3 && type != 4) return 1;  // not a byte, short or long
    return known(number_at(tiff, at + 8, type == 3 ? 2 : type, big));
  }
  return std::nullopt;
}

std::optional<int> xmp_orientation(std::string_view packet) {
  constexpr std::string_view kName = "tiff:Orientation";
  for (std::size_t at = packet.find(kName); at != std::string_view::npos; at = packet.find(kName, at + 1)) {
    std::string_view rest = packet.substr(at + kName.size());
    const std::size_t before = rest.substr(0, 2) == "=\"" ? 2 : rest.substr(0, 1) == ">" ? 1 : 0;
    rest.remove_prefix(before);
    if (before > 0 && !rest.empty() && rest[0] >= '0' && rest[0] <= '9')
      return known(static_cast<std::uint32_t>(rest[0] - '0'));
  }
  return std::nullopt;
}

Image upright(const Image& image, int orientation) {
  if (orientation == 1) return image;
  const bool transposed = orientation >= 5;
  const bool flip_rows = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  const bool flip_columns = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  Image turned{transposed ? image.width : image.height, transposed ? image.height : image.width, image.channels, {}};
  turned.pixels.reserve(image.pixels.size());
  for (int row = 0; row < turned.height; ++row) {
    for (int column = 0; column < turned.width; ++column) {
      const int y = flip_rows ? turned.height - 1 - row : row, x = flip_columns ? turned.width - 1 - column : column;
      const int from_row = transposed ? x : y, from_column = transposed ? y : x;
      const auto at = static_cast<std::ptrdiff_t>(from_row) * image.width + from_column;
      const auto from = image.pixels.begin() + at * image.channels;
      turned.pixels.insert(turned.pixels.end(), from, from + image.channels);
    }
  }
  return turned;
}

namespace {

template <typename Bytes>
Image image_of(const Bytes& bytes, const std::string& name, const char* expected, int channels) {
  if (channels != 1 && channels != 3)
    throw InputError("channels is " + std::to_string(channels) + "; expected 1 (grey) or 3 (red, green, blue)");
  try {
    const Decoded decoded = decode(bytes());
    return with_channels(upright(decoded.image, decoded.orientation), channels);
  } catch (const std::invalid_argument& error) {
    throw InputError("cannot read image " + name + ": " + one_line(error.what()) + "; expected " + expected);
  } catch (const std::bad_alloc&) {
    throw InputError("cannot read image " + name + ": there is not enough memory for it; make it smaller");
  }
}

}  // namespace

Image read_image(const fs::path& file, int channels) {
  return image_of([&] { return read_bytes(file); }, file.string(), "a readable JPEG or PNG file", channels);
}

Image decode_image(const std::string& bytes, const std::string& name, int channels) {
  return image_of([&]() -> const std::string& { return bytes; }, name, "the bytes of a JPEG or PNG file", channels);
}

Pictures::Pictures(const Tensor& array) {
  const std::string found = "the input is " + described(view_of(array));
  const auto* values = std::get_if<std::vector<std::uint8_t>>(&array.data);
  Shape shape = array.shape;
  const bool coloured = shape.size() >= 3 && shape.back() == 3;
  const bool stack = shape.size() == (coloured ? 4 : 3);
  if (stack) shape.erase(shape.begin());
  const auto sized = [](std::int64_t size) { return size >= 1 && size <= INT32_MAX; };
  if (values == nullptr || shape.size() != (coloured ? 3 : 2) || !std::all_of(shape.begin(), shape.end(), sized) ||
      values->size() != count_of(array.shape))
    throw InputError(found + "; expected uint8 [height, width] or [height, width, 3], or a stack of them");
  count_ = stack ? static_cast<std::size_t>(array.shape.front()) : 1;
  const bool last = shape.back() == 1 || shape.back() == 4;
  if (stack && !coloured && (last || count_ == 3)) {
    throw InputError(found + ": one image with its channels " + (last ? "last" : "first") + ", or " +
                     std::to_string(count_) +
                     " grey ones; expected [height, width, 3] for one image, or grey images "
                     "[height, width] one by one");
  }
  empty_ = {static_cast<int>(shape[0]), static_cast<int>(shape[1]), coloured ? 3 : 1, {}};
  bytes_ = count_of(shape);
  values_ = values->data();
}

Image Pictures::operator[](std::size_t index) const {
  Image image = empty_;
  image.pixels.assign(values_ + index * bytes_, values_ + (index + 1) * bytes_);
  return image;
}

std::vector<Image> as_images(const Tensor& tensor) {
  const Pictures pictures(tensor);
  std::vector<Image> images;
  for (std::size_t i = 0; i < pictures.size(); ++i) images.push_back(pictures[i]);
  return images;
}

}  // namespace hydrant
