// Resizing as Pillow does: antialiased, in two passes of fixed-point sums with 8-bit values between them.
#pragma once

#include "hydrant/hydrant.h"

namespace hydrant {

// Numbered as Pillow's `Image.Resampling`.
enum class Filter { nearest = 0, lanczos = 1, bilinear = 2, bicubic = 3, box = 4, hamming = 5 };

// The picture in another size, bit for bit as `PIL.Image.Image.resize` of Pillow 13 gives it.
Image resize(const Image& image, int height, int width, Filter filter);

}  // namespace hydrant
