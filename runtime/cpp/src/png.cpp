// PNG files, with libpng: palettes and small bit depths are expanded, transparency is dropped.
#include <png.h>

#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "bytes.h"
#include "image.h"

namespace hydrant {
namespace {

struct Source {
  std::string_view bytes;
  std::size_t at = 0;
};

// libpng's state. Its errors use longjmp: its callers must not hold objects with destructors.
struct PngDecoder {
  Source source;
  std::array<char, 120> message{};
  png_structp png = nullptr;
  png_infop info = nullptr;

  explicit PngDecoder(std::string_view bytes) : source{bytes} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &fail, [](png_structp, png_const_charp) {});
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) throw std::bad_alloc();
  }
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  [[noreturn]] static void fail(png_structp png, png_const_charp why) {
    auto* self = static_cast<PngDecoder*>(png_get_error_ptr(png));
    std::strncpy(self->message.data(), why, self->message.size() - 1);
    png_longjmp(png, 1);
  }

  static void read(png_structp png, png_bytep target, std::size_t size) {
    auto* source = static_cast<Source*>(png_get_io_ptr(png));
    if (size > source->bytes.size() - source->at) png_error(png, "it is truncated");
    std::memcpy(target, source->bytes.data() + source->at, size);
    source->at += size;
  }
};

// Texts that may hold an orientation.
constexpr std::string_view kXmp = "XML:com.adobe.xmp", kProfile = "Raw profile type exif";

// A file without unused chunks, and its last EXIF chunk (libpng keeps the first).
struct ReducedFile {
  std::string bytes;
  std::optional<std::string_view> exif;
};

// Drops suggested palettes and texts, which libpng would unpack, except the last texts with an orientation.
// Throws std::invalid_argument: a chunk is longer than the file.
ReducedFile reduced(std::string_view bytes) {
  constexpr std::size_t kSignature = 8, kHead = 8, kChecksum = 4;  // a chunk's head: length and name
  ReducedFile file{std::string(bytes.substr(0, kSignature)), std::nullopt};
  std::string_view xmp, profile;
  std::size_t at = file.bytes.size();
  while (at + kHead <= bytes.size()) {
    const auto length = static_cast<std::size_t>(number_at(bytes, at, 4));
    if (length > bytes.size() - at - kHead) throw std::invalid_argument("it is truncated");
    const std::string_view name = bytes.substr(at + 4, 4), content = bytes.substr(at + kHead, length);
    const std::string_view chunk = bytes.substr(at, kHead + length + kChecksum);
    if (name == "IEND") {
      file.bytes.append(xmp).append(profile);
      break;
    }
    if (name == "eXIf") file.exif = content;
    if (name == "tEXt" || name == "zTXt" || name == "iTXt") {
      const std::string_view key = content.substr(0, content.find('\0'));
      if (key == kXmp) xmp = chunk;
      if (key == kProfile) profile = chunk;
    } else if (name != "sPLT") {
      file.bytes.append(chunk);
    }
    at += chunk.size();
  }
  file.bytes.append(bytes.substr(at));
  return file;
}

bool read_header(PngDecoder& decoder) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  png_set_read_fn(decoder.png, &decoder.source, &PngDecoder::read);
  png_set_user_limits(decoder.png, 0x7FFFFFFF, 0x7FFFFFFF);
  png_read_info(decoder.png, decoder.info);
  return true;
}

// Requests 8 bits per channel without transparency; interlaced images need several `passes`.
bool prepare(PngDecoder& decoder, bool palette, int& passes) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  if (palette) {
    png_set_palette_to_rgb(decoder.png);
  } else {
    png_set_expand_gray_1_2_4_to_8(decoder.png);
  }
  png_set_strip_alpha(decoder.png);
  passes = png_set_interlace_handling(decoder.png);
  png_read_update_info(decoder.png, decoder.info);
  return true;
}

bool read_pixels(PngDecoder& decoder, Image& image, std::size_t row_bytes, int passes) {
  if (setjmp(png_jmpbuf(decoder.png)) != 0) return false;
  for (int pass = 0; pass < passes; ++pass) {
    png_bytep row = image.pixels.data();
    for (int number = 0; number < image.height; ++number, row += row_bytes) png_read_row(decoder.png, row, nullptr);
  }
  png_read_end(decoder.png, decoder.info);
  return true;
}

// `exif`: contents of an EXIF chunk. Without one, a text may hold EXIF.
int orientation_of(PngDecoder& decoder, std::optional<std::string_view> exif) {
  png_textp texts = nullptr;
  int count = 0;
  png_get_text(decoder.png, decoder.info, &texts, &count);
  std::optional<int> xmp;
  std::string profile;
  for (const png_text* text = texts; text != texts + count; ++text) {
    const bool international = text->compression >= PNG_ITXT_COMPRESSION_NONE;
    const std::string_view name = text->key;
    const std::string_view content(text->text, international ? text->itxt_length : text->text_length);
    if (name == kXmp) xmp = xmp_orientation(content);
    if (name == kProfile) profile = raw_profile(content);
  }
  return exif_orientation(exif.value_or(profile)).value_or(xmp.value_or(1));
}

void require(bool done, const PngDecoder& decoder) {
  if (!done) throw std::invalid_argument(decoder.message.data());
}

}  // namespace

Decoded decode_png(std::string_view bytes, std::int64_t max_pixels) {
  const ReducedFile file = reduced(bytes);
  PngDecoder decoder(file.bytes);
  require(read_header(decoder), decoder);
  const png_uint_32 width = png_get_image_width(decoder.png, decoder.info);
  const png_uint_32 height = png_get_image_height(decoder.png, decoder.info);
  if (static_cast<std::int64_t>(width) * height > max_pixels)
    throw std::invalid_argument("it has more than " + std::to_string(max_pixels) + " pixels");
  if (png_get_bit_depth(decoder.png, decoder.info) == 16)
    throw std::invalid_argument("it has 16 bits per channel; convert it to 8");
  int passes = 1;
  require(prepare(decoder, png_get_color_type(decoder.png, decoder.info) == PNG_COLOR_TYPE_PALETTE, passes), decoder);

  Decoded decoded;
  const int channels = png_get_channels(decoder.png, decoder.info);
  decoded.image = {static_cast<int>(height), static_cast<int>(width), channels, {}};
  const std::size_t row_bytes = png_get_rowbytes(decoder.png, decoder.info);
  decoded.image.pixels.resize(row_bytes * height);
  require(read_pixels(decoder, decoded.image, row_bytes, passes), decoder);
  decoded.orientation = orientation_of(decoder, file.exif);
  return decoded;
}

}  // namespace hydrant
