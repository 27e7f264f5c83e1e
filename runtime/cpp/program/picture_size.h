// The size that a picture file says it has, before any of it is decoded.
#pragma once

#include <cstdint>
#include <string_view>

namespace hydrant {

struct PictureSize {
  std::uint64_t width = 0, height = 0;
};

// Of a JPEG or PNG file, found as libjpeg and libpng find it; of 0 pixels where it says nothing that these would take.
PictureSize picture_size(std::string_view file);

}  // namespace hydrant
