// Resizing of hand-computed examples; golden images compare it with Pillow.
#include <cmath>

#include "../src/image.h"
#include "check.h"

namespace hydrant::tests {
namespace {

Image row_of(std::vector<std::uint8_t> values) { return {1, static_cast<int>(values.size()), 1, std::move(values)}; }

void expect(const Image& image, const std::vector<std::uint8_t>& values, const char* what) {
  check(image.pixels.size() == values.size(), what, " has ", image.pixels.size(), " values");
  for (std::size_t i = 0; i < values.size(); ++i) {
    check(image.pixels[i] == values[i], what, ", value ", i, " is ", int{image.pixels[i]}, "; expected ",
          int{values[i]});
  }
}

}  // namespace

void resample(const std::filesystem::path&) {
  expect(resize(row_of({0, 100, 200, 40}), 1, 2, Filter::box), {50, 120}, "box, halved");
  expect(resize(row_of({10, 20}), 1, 4, Filter::nearest), {10, 10, 20, 20}, "nearest, doubled");
  // a triangle twice as wide: weights 3 3 1 at the edge, which add up to 7
  expect(resize(row_of({0, 70, 140, 210}), 1, 2, Filter::bilinear), {50, 160}, "bilinear, halved");
  // Pillow 13's; weights of constants in double precision would give 122
  expect(resize(row_of({51, 21, 5, 13, 209, 94, 231, 8, 140}), 1, 3, Filter::hamming), {24, 121, 107}, "Hamming");
  for (const Filter filter : {Filter::lanczos, Filter::bilinear, Filter::bicubic, Filter::box, Filter::hamming}) {
    const Image flat{5, 7, 3, std::vector<std::uint8_t>(std::size_t{5} * 7 * 3, 137)};
    const Image small = resize(flat, 3, 2, filter), large = resize(flat, 11, 30, filter);
    expect(small, std::vector<std::uint8_t>(std::size_t{3} * 2 * 3, 137), "a flat picture, smaller");
    expect(large, std::vector<std::uint8_t>(std::size_t{11} * 30 * 3, 137), "a flat picture, larger");
  }
  const Image same = row_of({1, 2, 3});
  check(resize(same, 1, 3, Filter::bicubic).pixels == same.pixels, "the same size changes nothing");
}

}  // namespace hydrant::tests
