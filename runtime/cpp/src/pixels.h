// Image → pixel tensor, by the bundle's `processor/preprocessor_config.json`.
#pragma once

#include <optional>
#include <vector>

#include "architecture.h"
#include "bundle.h"
#include "hydrant/hydrant.h"
#include "image.h"

namespace hydrant {

class ImageProcessor {
 public:
  // Throws InputError: missing, malformed, unknown steps, or another size than the model's; BundleError: altered.
  ImageProcessor(const Bundle& bundle, const Architecture& architecture);

  // Appends the pixels of an image, [channels, height, width]. Throws InputError with its index.
  void append(const Image& image, std::size_t index, std::vector<float>& values) const;

  // `pixel_values` [B, channels, height, width] of B appended images.
  Tensors collated(std::vector<float> values, std::size_t batch) const;

 private:
  struct Size {
    std::int64_t height = 0;
    std::int64_t width = 0;
    std::int64_t shortest_edge = 0;  // or 0
  };

  static std::optional<Size> read_size(const Json& value, bool edges);
  static std::optional<std::vector<float>> per_channel(const Json& value, std::size_t channels);
  void read(const Json& config, const std::string& file);
  void check_size(const std::string& file) const;
  Image resized(const Image& image, std::size_t index) const;
  void append_values(const Image& image, std::size_t index, std::vector<float>& values) const;

  Architecture architecture_;
  std::optional<Size> size_;
  std::optional<Size> crop_;
  Filter filter_ = Filter::bilinear;
  std::optional<double> scale_;
  std::vector<float> mean_;  // both empty without normalisation
  std::vector<float> std_;
};

}  // namespace hydrant
