// The Open Inference Protocol (version 2, REST, with Triton's binary tensors) and `/predict`: request bodies → inputs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hydrant/hydrant.h"
#include "rows.h"

namespace hydrant {

// The inputs of a request; one of these is set.
struct RequestInputs {
  Tensors tensors;                  // inputs of the graph
  std::vector<Text> texts;          // for the tokenizer
  std::vector<std::string> images;  // bytes of JPEG and PNG files
};

struct RequestedOutput {
  std::string name;
  std::optional<bool> binary;  // in binary form; nothing: as the request
};

struct InferRequest {
  std::optional<std::string> id;
  RequestInputs inputs;
  std::vector<RequestedOutput> outputs;  // each once; empty: all
  bool binary = false;                   // default form of outputs
};

// A valid request with too many inputs.
class TooManyInputs : public InputError {
  using InputError::InputError;
};

// All of these throw InputError for invalid requests, and TooManyInputs for more than `max_inputs`, counted first.

// Reads the body of `…/infer`; `header_length` is the header with the size of the JSON before binary tensors.
InferRequest read_infer(std::string_view body, const std::optional<std::string>& header_length, std::size_t max_inputs);

// Inputs of a model: texts and pairs, images, or texts and lists of words.
enum class Reads { texts, images, words };

// The body of `/predict`: {"inputs": […], "probabilities": true, "aggregation": "mean"}.
struct PlainRequest {
  RequestInputs inputs;
  std::vector<OrderedJson> names;  // of inputs in their rows; empty for tensors
  std::optional<std::string> model, version;
  RowOptions options;
};
PlainRequest read_plain(const std::string& body, Reads reads, std::size_t max_inputs);

// The inputs of a model, for its metadata.
OrderedJson inputs_metadata(const Predictor& predictor);

// Decodes base64. Throws InputError.
std::string from_base64(const std::string& encoded, const std::string& what);

struct PictureSize {
  std::uint64_t width = 0, height = 0;
};

// The size in the head of a JPEG or PNG file, as libjpeg and libpng read it; 0 pixels if invalid.
PictureSize picture_size(std::string_view file);

}  // namespace hydrant
