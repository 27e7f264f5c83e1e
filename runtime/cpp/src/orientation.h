// How a picture must be turned to stand upright: what its metadata say, read as Pillow reads them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hydrant {

// The orientation in EXIF, with "Exif\0\0" before it or without, and in an XMP packet, which counts where EXIF has
// none. Nothing where there is none; 1 for what is not an orientation.
std::optional<int> exif_orientation(std::string_view exif);
std::optional<int> xmp_orientation(std::string_view packet);

// The EXIF in a text of PNG that is called "Raw profile type exif": hexadecimal digits behind three lines. Empty where
// it holds anything else.
std::string raw_profile(std::string_view text);

}  // namespace hydrant
