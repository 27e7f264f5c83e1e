// The Open Inference Protocol (version 2, REST, JSON): bodies of requests → inputs, predictions → bodies of answers.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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

struct InferRequest {
  std::optional<std::string> id;
  Asked asked;
  std::vector<std::string> outputs;  // those wanted; empty: all
};

// A tensor of an answer.
struct Output {
  std::string name;
  std::string datatype;             // "FP32", "INT64", "BOOL", "BYTES"
  std::vector<std::int64_t> shape;  // [B] or [B, …]
  OrderedJson data;                 // a flat array, in row-major order
};

// All of these throw InputError where the client is wrong.

// The body of `…/infer`.
InferRequest read_infer(const std::string& body);

// What the body of `/predict` asks for, {"inputs": […], "probabilities": true}, of a model that reads images or texts.
struct PlainRequest {
  Asked asked;
  std::vector<OrderedJson> names;  // what stands for each input in its row; empty for tensors
  std::optional<std::string> model, version;
  bool probabilities = false;
};
PlainRequest read_plain(const std::string& body, bool images);

// Every field of a prediction as a tensor, named as in Python's `Prediction`; `label` is the name of the class, and
// `label_index` its number.
std::vector<Output> outputs_of(const Predictor& predictor, const Prediction& prediction);

// The body that answers `…/infer`. Throws InputError: an output that is wanted is not there.
std::string infer_body(const std::string& model, const std::string& version, const InferRequest& request,
                       std::vector<Output> outputs);

// The inputs that a model takes, as its metadata lists them.
OrderedJson inputs_metadata(const Predictor& predictor);

// The bytes that base64 stands for. Throws InputError.
std::string from_base64(const std::string& given, const std::string& what);

}  // namespace hydrant
