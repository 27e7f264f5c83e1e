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

// What a client sent to be predicted; one of these holds something.
struct Asked {
  Tensors tensors;                  // the graph's own inputs
  std::vector<Text> texts;          // for the tokenizer of the bundle
  std::vector<std::string> images;  // the bytes of JPEG and PNG files
};

struct WantedOutput {
  std::string name;
  std::optional<bool> binary;  // whether in binary form; nothing leaves it to the request
};

struct InferRequest {
  std::optional<std::string> id;
  Asked asked;
  std::vector<WantedOutput> outputs;  // those wanted, each once; empty: all
  bool binary = false;                // outputs come in binary form, but for those that say otherwise
};

// What a client asks for is right, but too much to be taken at once.
class TooMuch : public InputError {
 public:
  using InputError::InputError;
};

// All of these throw InputError where the client is wrong, and TooMuch for more inputs than `most`, counted first.

// The body of `…/infer`; `header_length` is the header with the bytes of JSON, behind which binary tensors follow.
InferRequest read_infer(std::string_view body, const std::optional<std::string>& header_length, std::size_t most);

// What a model reads, by which inputs are understood: texts and pairs, images, or texts and lists of words.
enum class Reads { texts, images, words };

// What the body of `/predict` asks for, {"inputs": […], "probabilities": true, "aggregation": "mean"}.
struct PlainRequest {
  Asked asked;
  std::vector<OrderedJson> names;  // what stands for each input in its row; empty for tensors
  std::optional<std::string> model, version;
  Telling telling;
};
PlainRequest read_plain(const std::string& body, Reads reads, std::size_t most);

// The inputs that a model takes, as its metadata lists them.
OrderedJson inputs_metadata(const Predictor& predictor);

// The bytes that base64 stands for. Throws InputError.
std::string from_base64(const std::string& given, const std::string& what);

struct PictureSize {
  std::uint64_t width = 0, height = 0;
};

// Of a JPEG or PNG file, found as libjpeg and libpng find it; of 0 pixels where it says nothing that these would take.
PictureSize picture_size(std::string_view file);

}  // namespace hydrant
