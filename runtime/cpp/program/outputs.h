// Predictions → response bodies of `…/infer`: tensors in JSON, or in binary form after it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hydrant/hydrant.h"
#include "protocol.h"

namespace hydrant {

// A tensor of a response.
struct Output {
  std::string name;
  std::vector<std::int64_t> shape;  // [B] or [B, …]
  std::variant<std::vector<float>, std::vector<std::int64_t>, std::vector<bool>, std::vector<std::string>> values;

  const char* datatype() const;  // "FP32", "INT64", "BOOL" or "BYTES"
};

// All fields of a prediction as tensors, named as in Python's `Prediction`, and the logits if requested; the token axis
// ends at the longest text.
std::vector<Output> outputs_of(const Predictor& predictor, Prediction prediction,
                               const std::vector<RequestedOutput>& requested = {});

// The token axis of an output, for token classification.
std::size_t token_axis(const std::string& output);

// Throws InputError: a requested output is unknown.
void check_outputs(const InferRequest& request, const std::vector<std::string>& names);

// A body, and the length of its JSON if binary tensors follow.
struct InferAnswer {
  std::string body;
  std::optional<std::size_t> json_size;
};

// The response with the requested outputs in their order, or all; `check_outputs` comes first.
InferAnswer infer_answer(const std::string& model, const std::string& version, const InferRequest& request,
                         const std::vector<Output>& outputs);

}  // namespace hydrant
