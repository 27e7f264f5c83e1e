// What a runtime must know from `config.json`: what the model reads, and how much of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bundle.h"

namespace hydrant {

struct Architecture {
  bool image = false;        // reads pixels; otherwise token ids
  bool score = false;        // gives one score; otherwise classes
  bool multi_label = false;  // whose classes are labels that do not exclude each other
  bool tokens = false;       // gives classes of each token
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
  std::string reader = "this model reads";  // who sets the longest text, for messages

  // Names of the model's inputs, in order.
  std::vector<std::string> input_names() const;

  // Longest sequence of tokens that the model reads; for images their fixed number.
  std::int64_t max_sequence() const;

  // Takes no longer texts than a backend does, where that takes shorter ones than the model.
  void limit(const std::string& backend, std::size_t longest);

  // From `config.json`. Throws BundleError: it is missing or altered, or its keys are unknown or of the wrong kind.
  static Architecture of(const Bundle& bundle);
};

}  // namespace hydrant
