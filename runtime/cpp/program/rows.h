// Predictions as JSON, with the same keys as `hydrant predict`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant {

using OrderedJson = nlohmann::ordered_json;

// What rows tell.
struct Telling {
  bool probabilities = false;              // also those of every class by its name
  std::optional<Aggregation> aggregation;  // of tokens to words; empty for the first
};

// An aggregation by its name: first, mean or max. Throws InputError.
Aggregation aggregation_of(const std::string& name);

// One object for each input; for a model that tags tokens with its words and spans, or its tokens for ready tensors.
// `inputs` names each, `first` is the index of the first.
std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<OrderedJson>& inputs, std::size_t first,
                                         const Telling& telling);

// What stands for a text in its row: the text, both of a pair, or its words.
OrderedJson name_of(const Text& text);

// The double with the shortest decimal that stands for a float32.
double shortest(float value);

// The backends that were skipped, each with the reason.
OrderedJson skipped_json(const Predictor& predictor);

// JSON on one line; bytes that are not UTF-8 are replaced.
std::string to_line(const OrderedJson& value);

}  // namespace hydrant
