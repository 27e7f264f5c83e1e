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

constexpr std::uintmax_t kMaxFileBytes = 1ULL << 30U;

// Grey by ITU-R 601 in fixed point, as Pillow computes it.
std::uint8_t grey(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U) >> 16U);
}

std::string read_bytes(const fs::path& file) {
  if (size_of(file) > kMaxFileBytes) throw std::invalid_argument("it is larger than 1 GiB");
  auto bytes = bytes_of(file);
  if (!bytes) throw std::invalid_argument("check its permissions");
  return std::move(*bytes);
}

Decoded decode(std::string_view bytes) {
  if (is_jpeg(bytes)) return decode_jpeg(bytes);
  if (is_png(bytes)) return decode_png(bytes);
  throw std::invalid_argument("it is neither JPEG nor PNG");
}

template <typename Bytes>
Image image_of(const Bytes& bytes, const std::string& name, const char* expected, int channels) {
  if (channels != 1 && channels != 3)
    throw InputError("channels is " + std::to_string(channels) + "; expected 1 (grey) or 3 (red, green, blue)");
  try {
    Decoded decoded = decode(bytes());
    return with_channels(upright(std::move(decoded.image), decoded.orientation), channels);
  } catch (const std::invalid_argument& error) {
    throw InputError("cannot read image " + name + ": " + one_line(error.what()) + "; expected " + expected);
  } catch (const std::bad_alloc&) {
    throw InputError("cannot read image " + name + ": not enough memory; make it smaller");
  }
}

}  // namespace

Image with_channels(Image image, int channels) {
  if (image.channels == channels) return image;
  const std::size_t count = image.pixels.size() / static_cast<std::size_t>(image.channels);
  Image converted{image.height, image.width, channels,
                  std::vector<std::uint8_t>(count * static_cast<std::size_t>(channels))};
  for (std::size_t i = 0; i < count; ++i) {
    if (channels == 1) {
      converted.pixels[i] = grey(image.pixels.data() + 3 * i);
    } else {
      std::fill_n(converted.pixels.begin() + static_cast<std::ptrdiff_t>(3 * i), 3, image.pixels[i]);
    }
  }
  return converted;
}

Image upright(Image image, int orientation) {
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

Image read_image(const fs::path& file, int channels) {
  return image_of([&] { return read_bytes(file); }, file.string(), "a readable JPEG or PNG file", channels);
}

Image decode_image(const std::string& bytes, const std::string& name, int channels) {
  return image_of([&]() -> const std::string& { return bytes; }, name, "the bytes of a JPEG or PNG file", channels);
}

Pictures::Pictures(const Tensor& array) {
  const std::string input = "the input is " + described(view_of(array));
  const auto* values = std::get_if<std::vector<std::uint8_t>>(&array.data);
  Shape shape = array.shape;
  const bool coloured = shape.size() >= 3 && shape.back() == 3;
  const bool stack = shape.size() == (coloured ? 4 : 3);
  if (stack) shape.erase(shape.begin());
  const auto sized = [](std::int64_t size) { return size >= 1 && size <= INT32_MAX; };
  if (values == nullptr || shape.size() != (coloured ? 3 : 2) || !std::all_of(shape.begin(), shape.end(), sized) ||
      values->size() != count_of(array.shape))
    throw InputError(input + "; expected uint8 [height, width] or [height, width, 3], or a stack of them");
  count_ = stack ? static_cast<std::size_t>(array.shape.front()) : 1;
  const bool last = shape.back() == 1 || shape.back() == 4;
  if (stack && !coloured && (last || count_ == 3)) {
    throw InputError(concat(input, ": one image with its channels ", last ? "last" : "first", ", or ", count_,
                            " grey ones; expected [height, width, 3], or grey images [height, width] one by one"));
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
