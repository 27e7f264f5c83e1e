// Predictions → the bodies that answer `…/infer`: tensors in JSON, or in binary form behind it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hydrant/hydrant.h"
#include "protocol.h"

namespace hydrant {

// A tensor of an answer.
struct Output {
  std::string name;
  std::vector<std::int64_t> shape;  // [B] or [B, …]
  std::variant<std::vector<float>, std::vector<std::int64_t>, std::vector<bool>, std::vector<std::string>> values;

  const char* datatype() const;  // "FP32", "INT64", "BOOL" or "BYTES"
};

// Every field of a prediction as a tensor, named as in Python's `Prediction`; tokens are cut to the longest text.
std::vector<Output> outputs_of(const Predictor& predictor, Prediction prediction);

// Which axis of an output of a model that tags tokens is that of the tokens.
std::size_t token_axis(const std::string& output);

// Throws InputError: an output that is wanted is none of these.
void check_outputs(const InferRequest& request, const std::vector<std::string>& known);

// A body, and the length of its JSON where binary tensors stand behind that.
struct InferAnswer {
  std::string body;
  std::optional<std::size_t> json_size;
};

// The answer to a request whose outputs were checked: those it wants in its order, or all.
InferAnswer infer_answer(const std::string& model, const std::string& version, const InferRequest& request,
                         const std::vector<Output>& outputs);

}  // namespace hydrant
