#include <algorithm>
#include <cmath>

#include "image.h"

namespace hydrant {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int kFractionBits = 32 - 8 - 2;  // room for sums of 8-bit values and filters that overshoot

double sinc(double x) { return x == 0 ? 1 : std::sin(x * kPi) / (x * kPi); }

double box(double x) { return x > -0.5 && x <= 0.5 ? 1 : 0; }

double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

double hamming(double x) {
  x = std::abs(x);
  if (x == 0) return 1;
  if (x >= 1) return 0;
  x *= kPi;
  constexpr double a = 0.54F, b = 0.46F;  // single precision, as in Pillow
  return std::sin(x) / x * (a + b * std::cos(x));
}

double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

double lanczos(double x) { return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0; }

struct Kernel {
  double (*weight)(double);
  double support;
};

// Indexed by filter; nearest has none.
constexpr Kernel kKernels[] = {{box, 0.5}, {lanczos, 3}, {triangle, 1}, {cubic, 2}, {box, 0.5}, {hamming, 1}};

// The input values of an output value, with fixed-point weights.
struct Window {
  int first = 0;
  std::vector<int> weights;
};

std::vector<Window> windows(int from, int to, Kernel kernel) {
  const double scale = static_cast<double>(from) / to;
  const double stretch = std::max(scale, 1.0);
  const double support = kernel.support * stretch;
  std::vector<Window> all(static_cast<std::size_t>(to));
  std::vector<double> weights;
  for (int index = 0; index < to; ++index) {
    // NOLINTBEGIN(bugprone-incorrect-roundings): these are Pillow's, bit by bit
    const double center = (index + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int last = std::min(static_cast<int>(center + support + 0.5), from);
    // NOLINTEND(bugprone-incorrect-roundings)
    weights.clear();
    double sum = 0;
    for (int at = first; at < last; ++at) {
      weights.push_back(kernel.weight((at - center + 0.5) * (1 / stretch)));
      sum += weights.back();
    }
    Window& window = all[static_cast<std::size_t>(index)];
    window.first = first;
    for (const double weight : weights) {
      const double scaled = (sum != 0 ? weight / sum : weight) * (1 << kFractionBits);
      window.weights.push_back(static_cast<int>(scaled + (scaled < 0 ? -0.5 : 0.5)));
    }
  }
  return all;
}

std::uint8_t rounded(int sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

// One line of values, `stride` bytes apart in source and target.
void resize_line(const std::vector<Window>& windows, std::size_t stride, const std::uint8_t* source,
                 std::uint8_t* target) {
  for (const Window& window : windows) {
    int sum = 1 << (kFractionBits - 1);
    const std::uint8_t* from = source + static_cast<std::size_t>(window.first) * stride;
    for (const int weight : window.weights) {
      sum += *from * weight;
      from += stride;
    }
    *target = rounded(sum);
    target += stride;
  }
}

// Resizes the height (`vertical`) or the width to `to`.
Image resize_axis(const Image& image, bool vertical, int to, Kernel kernel) {
  const int from = vertical ? image.height : image.width;
  const std::size_t stride =
      static_cast<std::size_t>(image.channels) * static_cast<std::size_t>(vertical ? image.width : 1);
  const std::size_t rows = vertical ? 1 : static_cast<std::size_t>(image.height);
  const std::size_t from_bytes = stride * static_cast<std::size_t>(from),
                    to_bytes = stride * static_cast<std::size_t>(to);
  const std::vector<Window> weighted = windows(from, to, kernel);
  Image resized{vertical ? to : image.height, vertical ? image.width : to, image.channels, {}};
  resized.pixels.resize(rows * to_bytes);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t at = 0; at < stride; ++at)
      resize_line(weighted, stride, image.pixels.data() + row * from_bytes + at,
                  resized.pixels.data() + row * to_bytes + at);
  }
  return resized;
}

// The input value below the middle of each output value; middles are summed up, as in Pillow.
std::vector<int> middles(int from, int to) {
  const double scale = static_cast<double>(from) / to;
  std::vector<int> places;
  for (double middle = scale * 0.5; static_cast<int>(places.size()) < to; middle += scale)
    places.push_back(std::min(static_cast<int>(middle), from - 1));
  return places;
}

Image nearest(const Image& image, int height, int width) {
  Image resized{height, width, image.channels, {}};
  const std::vector<int> columns = middles(image.width, width);
  for (const int row : middles(image.height, height)) {
    for (const int column : columns) {
      const auto from =
          image.pixels.begin() + (static_cast<std::ptrdiff_t>(row) * image.width + column) * image.channels;
      resized.pixels.insert(resized.pixels.end(), from, from + image.channels);
    }
  }
  return resized;
}

}  // namespace

Image resize(const Image& image, int height, int width, Filter filter) {
  if (filter == Filter::nearest) return nearest(image, height, width);
  const Kernel kernel = kKernels[static_cast<std::size_t>(filter)];
  const int shorter = image.height - height, narrower = image.width - width;
  if (shorter == 0 && narrower == 0) return image;
  if (shorter == 0) return resize_axis(image, false, width, kernel);
  if (narrower == 0) return resize_axis(image, true, height, kernel);
  // Order as in Pillow 13: height first if it shrinks by more than twice as much as the width.
  const bool height_first = shorter > 0 && shorter > 2 * narrower;
  const Image half_way = resize_axis(image, height_first, height_first ? height : width, kernel);
  return resize_axis(half_way, !height_first, height_first ? width : height, kernel);
}

}  // namespace hydrant
