// The fields of `config.json` that a runtime needs: kind and sizes of inputs and outputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bundle.h"

namespace hydrant {

struct Architecture {
  bool image = false;        // reads pixels; otherwise token ids
  bool score = false;        // regression; otherwise classes
  bool multi_label = false;  // classes do not exclude each other
  bool tokens = false;       // classes of each token
  bool traced = false;       // number of tokens and layers unknown
  std::int64_t layers = 0;
  std::int64_t classes = 0;
  std::int64_t vocabulary = 0;
  std::int64_t positions = 0;
  std::int64_t token_types = 0;
  std::optional<std::int64_t> position_padding;
  std::int64_t padding_token = 0;
  std::int64_t image_height = 0;
  std::int64_t image_width = 0;
  std::int64_t channels = 0;
  std::int64_t patch_height = 0;
  std::int64_t patch_width = 0;
  std::int64_t prefix_tokens = 0;
  std::string reader = "this model reads";  // sets the maximum length, for messages

  std::vector<std::string> input_names() const;  // in the model's order

  std::int64_t max_sequence() const;  // maximum tokens of an input; for images the fixed number, 0 if traced

  // Lowers the maximum length to that of a backend.
  void limit(const std::string& backend, std::size_t longest);

  // Reads `config.json`. Throws BundleError: missing, altered, or with unknown or invalid keys.
  static Architecture of(const Bundle& bundle);
};

}  // namespace hydrant
