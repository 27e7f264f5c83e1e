#include "pixels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "messages.h"
#include "view.h"

namespace hydrant {
namespace {

constexpr const char* kFile = "processor/preprocessor_config.json";
constexpr std::int64_t kMaxSide = 1 << 15;
constexpr std::int64_t kMaxResizedPixels = 1 << 26;  // long strips with a fixed shortest edge would fill the memory
const char* const kSteps[] = {"do_center_crop", "do_convert_rgb", "do_normalize", "do_rescale", "do_resize"};
// Steps whose keys do not begin with do_.
const char* const kOtherSteps[] = {"crop_pct", "include_top", "rescale_offset"};

// Image processors of transformers that their configuration describes completely.
const char* const kProcessors[] = {"ViT", "DeiT", "Beit",      "CLIP",        "ChineseCLIP", "Siglip", "Blip",
                                   "Bit", "Pvt",  "Segformer", "MobileNetV1", "MobileNetV2", "OwlViT"};

std::string_view without_ending(std::string_view name, std::string_view ending) {
  return ends_with(name, ending) ? name.substr(0, name.size() - ending.size()) : name;
}

// Returns true for these image processors, by any of their names.
bool is_supported(std::string_view name) {
  const std::string_view whole = without_ending(without_ending(name, "Fast"), "Pil");
  std::string_view kind = without_ending(whole, "ImageProcessor");
  if (kind == whole) kind = without_ending(whole, "FeatureExtractor");
  return kind != whole && std::find(std::begin(kProcessors), std::end(kProcessors), kind) != std::end(kProcessors);
}

// Truth of a JSON value as in Python, for switches of transformers.
bool is_on(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return !value.is_null() && !value.empty();
}

bool is_on(const Json& config, const char* key, bool otherwise) {
  return config.contains(key) ? is_on(config[key]) : otherwise;
}

// A number within float32, the type of pixels; otherwise nothing.
std::optional<double> float_number(const Json& value) {
  const auto amount = number(value);
  return amount && std::abs(*amount) <= std::numeric_limits<float>::max() ? amount : std::nullopt;
}

std::string size_text(std::int64_t height, std::int64_t width) { return concat(height, " by ", width); }

// The middle of an image; smaller images are padded with zeros.
Image center_crop(const Image& image, int height, int width) {
  const int grown_height = std::max(image.height, height), grown_width = std::max(image.width, width);
  const int top = (grown_height - height) / 2 - (grown_height - image.height + 1) / 2;
  const int left = (grown_width - width) / 2 - (grown_width - image.width + 1) / 2;
  Image cropped{height, width, image.channels, {}};
  cropped.pixels.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width * image.channels));
  auto to = cropped.pixels.begin();
  for (int row = top; row < top + height; ++row) {
    for (int column = left; column < left + width; ++column, to += image.channels) {
      if (row < 0 || row >= image.height || column < 0 || column >= image.width) continue;
      const auto at = (static_cast<std::ptrdiff_t>(row) * image.width + column) * image.channels;
      std::copy_n(image.pixels.begin() + at, image.channels, to);
    }
  }
  return cropped;
}

}  // namespace

ImageProcessor::ImageProcessor(const Bundle& bundle, const Architecture& architecture) : architecture_(architecture) {
  const std::string file = (bundle.path() / kFile).string();
  if (!bundle.has(kFile)) throw InputError("cannot read " + file + ": it is missing; save the image processor there");
  read(bundle.read_json(kFile), file);
}

void ImageProcessor::read(const Json& config, const std::string& file) {
  if (!config.is_object()) throw InputError(file + " is a JSON " + config.type_name() + "; expected an object");
  std::vector<std::string> unknown;
  for (const auto& [key, value] : config.items()) {
    const bool supported = std::find(std::begin(kSteps), std::end(kSteps), key) != std::end(kSteps);
    const bool other = std::find(std::begin(kOtherSteps), std::end(kOtherSteps), key) != std::end(kOtherSteps);
    if ((other || key.compare(0, 3, "do_") == 0) && !supported && is_on(value)) unknown.push_back(key);
  }
  if (!unknown.empty()) {
    throw InputError(file + " has the unsupported steps " + listing(unknown) + "; expected " +
                     listing({std::begin(kSteps), std::end(kSteps)}));
  }
  for (const char* key : {"image_processor_type", "feature_extractor_type"}) {
    const Json& name = member(config, key);
    if (name.is_null() || (name.is_string() && is_supported(name.get_ref<const std::string&>()))) continue;
    throw InputError(file + " is for " + shown(name) + ", which may do more than its keys say; expected " +
                     join({std::begin(kProcessors), std::end(kProcessors)}) +
                     "; use ready tensors, or one of these processors if the keys describe yours completely");
  }
  const auto invalid = [&](const char* key) {
    return InputError(file + " has an invalid " + key + " = " + shown(member(config, key)) +
                      "; save the image processor again");
  };
  const auto channels = static_cast<std::size_t>(architecture_.channels);
  if (channels != 1 && channels != 3)
    throw InputError(concat("this model reads images of ", channels, " channels; expected 1 or 3"));
  if (is_on(config, "do_resize", true)) {
    size_ = read_size(member(config, "size"), true);
    if (!size_) throw invalid("size");
  }
  if (is_on(config, "do_center_crop", false)) {
    crop_ = read_size(member(config, "crop_size"), false);
    if (!crop_) throw invalid("crop_size");
  }
  const auto filter = config.contains("resample") ? integer(config["resample"], 0, 5) : 2;
  if (!filter) throw invalid("resample");
  filter_ = static_cast<Filter>(*filter);
  if (is_on(config, "do_rescale", true)) {
    scale_ = config.contains("rescale_factor") ? number(config["rescale_factor"]) : 1.0 / 255;
    if (!scale_ || std::abs(*scale_) > std::numeric_limits<float>::max() / 255) throw invalid("rescale_factor");
  }
  if (is_on(config, "do_normalize", true)) {
    const auto mean = per_channel(member(config, "image_mean"), channels),
               deviation = per_channel(member(config, "image_std"), channels);
    if (!mean) throw invalid("image_mean");
    const auto positive = [](float value) { return value > 0; };
    if (!deviation || !std::all_of(deviation->begin(), deviation->end(), positive)) throw invalid("image_std");
    mean_ = *mean;
    std_ = *deviation;
  }
  check_size(file);
}

// Throws InputError: the processor never returns the model's size.
void ImageProcessor::check_size(const std::string& file) const {
  const auto& fixed = crop_ ? crop_ : size_;
  const std::int64_t shorter = std::min(architecture_.image_height, architecture_.image_width);
  const std::string model = "the model reads " + size_text(architecture_.image_height, architecture_.image_width);
  if (fixed && fixed->shortest_edge != 0 && fixed->shortest_edge != shorter) {
    throw InputError(concat(file, " gives images a shorter side of ", fixed->shortest_edge, " pixels, but ", model,
                            "; set do_center_crop and crop_size, or a size of height and width, and save it again"));
  }
  if (fixed && fixed->shortest_edge == 0 &&
      (fixed->height != architecture_.image_height || fixed->width != architecture_.image_width)) {
    throw InputError(concat(file, " makes images of ", size_text(fixed->height, fixed->width), " pixels, but ", model,
                            "; use the model's own image processor"));
  }
}

std::optional<ImageProcessor::Size> ImageProcessor::read_size(const Json& value, bool edges) {
  if (const auto side = integer(value, 1, kMaxSide)) return Size{*side, *side, 0};
  if (!value.is_object()) return std::nullopt;
  std::set<std::string> keys;
  for (const auto& [key, each] : value.items()) {
    if (!each.is_null()) keys.insert(key);
  }
  const bool edge = keys == std::set<std::string>{"shortest_edge"} && edges;
  if (!edge && keys != std::set<std::string>{"height", "width"}) return std::nullopt;
  Size size;
  for (const auto& [key, field] :
       {std::pair{"height", &Size::height}, {"width", &Size::width}, {"shortest_edge", &Size::shortest_edge}}) {
    if (keys.count(key) == 0) continue;
    const auto pixels = integer(value[key], 1, kMaxSide);
    if (!pixels) return std::nullopt;
    size.*field = *pixels;
  }
  return size;
}

std::optional<std::vector<float>> ImageProcessor::per_channel(const Json& value, std::size_t channels) {
  if (const auto one = float_number(value)) return std::vector<float>(channels, static_cast<float>(*one));
  if (!value.is_array() || value.size() != channels) return std::nullopt;
  std::vector<float> values;
  for (const Json& each : value) {
    const auto one = float_number(each);
    if (!one) return std::nullopt;
    values.push_back(static_cast<float>(*one));
  }
  return values;
}

Image ImageProcessor::resized(const Image& image, std::size_t index) const {
  if (!size_) return image;
  std::int64_t height = size_->height, width = size_->width;
  if (const std::int64_t edge = size_->shortest_edge; edge > 0) {
    const auto scaled = [&](int longer, int shorter) {
      return static_cast<std::int64_t>(static_cast<double>(edge * longer) / shorter);
    };
    const bool upright = image.width <= image.height;
    height = upright ? scaled(image.height, image.width) : edge;
    width = upright ? edge : scaled(image.width, image.height);
  }
  if (height * width > kMaxResizedPixels)
    throw InputError(concat("input ", index, " would be resized to ", shape_text({height, width}), "; crop it first"));
  return resize(image, static_cast<int>(height), static_cast<int>(width), filter_);
}

void ImageProcessor::append_values(const Image& image, std::size_t index, std::vector<float>& values) const {
  Image picture = resized(image, index);
  if (crop_) picture = center_crop(picture, static_cast<int>(crop_->height), static_cast<int>(crop_->width));
  if (picture.height != architecture_.image_height || picture.width != architecture_.image_width) {
    throw InputError(concat("input ", index, " becomes an image of ", size_text(picture.height, picture.width),
                            " pixels; the model reads ",
                            size_text(architecture_.image_height, architecture_.image_width)));
  }
  const auto channels = static_cast<std::size_t>(picture.channels);
  for (std::size_t channel = 0; channel < channels; ++channel) {
    for (std::size_t at = channel; at < picture.pixels.size(); at += channels) {
      const std::uint8_t byte = picture.pixels[at];
      float value = scale_ ? static_cast<float>(byte * *scale_) : static_cast<float>(byte);
      if (!mean_.empty()) value = (value - mean_[channel]) / std_[channel];
      values.push_back(value);
    }
  }
}

void ImageProcessor::append(const Image& image, std::size_t index, std::vector<float>& values) const {
  const bool shaped = image.height > 0 && image.width > 0 && (image.channels == 1 || image.channels == 3) &&
                      image.pixels.size() == count_of({image.height, image.width, image.channels});
  if (!shaped) {
    throw InputError(concat("input ", index, " is an image of ",
                            shape_text({image.height, image.width, image.channels}), " with ", image.pixels.size(),
                            " values; expected [height, width, 1 or 3] values"));
  }
  const int channels = static_cast<int>(architecture_.channels);
  if (image.channels == channels) return append_values(image, index, values);
  append_values(with_channels(image, channels), index, values);
}

Tensors ImageProcessor::collated(std::vector<float> values, std::size_t batch) const {
  return {{"pixel_values",
           {{static_cast<std::int64_t>(batch), architecture_.channels, architecture_.image_height,
             architecture_.image_width},
            std::move(values)}}};
}

}  // namespace hydrant
