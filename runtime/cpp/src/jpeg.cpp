// clang-format off: the order of these headers matters
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

#include <array>
#include <csetjmp>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "image.h"

namespace hydrant {
namespace {

// A small file may hold thousands of slow scans; usual files have a dozen.
constexpr int kMaxScans = 100;
constexpr int kExifMarker = JPEG_APP0 + 1;
constexpr std::string_view kExifName{"Exif\0\0", 6}, kXmpName{"http://ns.adobe.com/xap/1.0/\0", 29};

// libjpeg's state. Its errors use longjmp: its callers must not hold objects with destructors.
struct JpegDecoder {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf escape{};
  std::array<char, JMSG_LENGTH_MAX> message{};
  bool truncated = false;

  JpegDecoder() {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr common) {
      auto* self = static_cast<JpegDecoder*>(common->client_data);
      common->err->format_message(common, self->message.data());
      std::longjmp(self->escape, 1);
    };
    errors.emit_message = [](j_common_ptr common, int level) {
      if (level < 0 && common->err->msg_code == JWRN_JPEG_EOF)
        static_cast<JpegDecoder*>(common->client_data)->truncated = true;
    };
    progress.progress_monitor = [](j_common_ptr common) {
      if (reinterpret_cast<j_decompress_ptr>(common)->input_scan_number <= kMaxScans) return;
      auto* self = static_cast<JpegDecoder*>(common->client_data);
      std::strncpy(self->message.data(), "it has more than 100 scans", self->message.size() - 1);
      std::longjmp(self->escape, 1);
    };
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
};

bool read_header(JpegDecoder& decoder, std::string_view bytes) {
  if (setjmp(decoder.escape) != 0) return false;
  jpeg_create_decompress(&decoder.info);
  decoder.info.progress = &decoder.progress;
  jpeg_mem_src(&decoder.info, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_save_markers(&decoder.info, kExifMarker, 0xFFFF);
  jpeg_read_header(&decoder.info, TRUE);
  return true;
}

bool read_pixels(JpegDecoder& decoder, std::uint8_t* pixels, std::size_t row_bytes) {
  if (setjmp(decoder.escape) != 0) return false;
  jpeg_start_decompress(&decoder.info);
  while (decoder.info.output_scanline < decoder.info.output_height) {
    JSAMPROW row = pixels + row_bytes * decoder.info.output_scanline;
    jpeg_read_scanlines(&decoder.info, &row, 1);
  }
  return true;
}

// Long EXIF continues in the next segment.
int orientation_of(const JpegDecoder& decoder) {
  std::string exif;
  std::optional<int> xmp;
  for (auto marker = decoder.info.marker_list; marker != nullptr; marker = marker->next) {
    const std::string_view data(reinterpret_cast<const char*>(marker->data), marker->data_length);
    if (marker->marker != kExifMarker) continue;  // EXIF and XMP share it
    if (data.substr(0, kExifName.size()) == kExifName) exif += data.substr(kExifName.size());
    if (data.substr(0, kXmpName.size()) == kXmpName) xmp = xmp_orientation(data.substr(kXmpName.size()));
  }
  return exif_orientation(exif).value_or(xmp.value_or(1));
}

}  // namespace

Decoded decode_jpeg(std::string_view bytes, std::int64_t max_pixels) {
  JpegDecoder decoder;
  if (!read_header(decoder, bytes)) throw std::invalid_argument(decoder.message.data());
  auto& info = decoder.info;
  if (static_cast<std::int64_t>(info.image_width) * info.image_height > max_pixels)
    throw std::invalid_argument("it has more than " + std::to_string(max_pixels) + " pixels");
  const bool grey = info.jpeg_color_space == JCS_GRAYSCALE;
  if (!grey && info.num_components != 3) throw std::invalid_argument("its colours are CMYK; convert it to RGB");
  info.out_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;

  Decoded decoded;
  decoded.image = {static_cast<int>(info.image_height), static_cast<int>(info.image_width), grey ? 1 : 3, {}};
  const std::size_t row_bytes = static_cast<std::size_t>(info.image_width) * (grey ? 1U : 3U);
  decoded.image.pixels.resize(row_bytes * info.image_height);
  if (!read_pixels(decoder, decoded.image.pixels.data(), row_bytes))
    throw std::invalid_argument(decoder.message.data());
  if (decoder.truncated) throw std::invalid_argument("it is truncated");
  decoded.orientation = orientation_of(decoder);
  return decoded;
}

}  // namespace hydrant
