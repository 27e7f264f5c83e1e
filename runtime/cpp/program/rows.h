// Predictions as JSON, with the same keys as `hydrant predict`.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kNoMemory = "not enough memory for these inputs; use fewer at once";

// Options of rows.
struct RowOptions {
  bool probabilities = false;              // add every class's probability by name
  std::optional<Aggregation> aggregation;  // of tokens into words; empty: first
};

// An aggregation by its name: first, mean or max. Throws InputError.
Aggregation aggregation_of(const std::string& name);

// One object for each input, named by `inputs` and counted from `first`; with words and spans, or tokens, if any.
std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<OrderedJson>& inputs, std::size_t first,
                                         const RowOptions& options);

// A text as JSON: the text, both texts of a pair, or the words.
OrderedJson name_of(const Text& text);

// The double of a float32's shortest decimal.
double shortest(float value);

// Skipped backends with their reasons.
OrderedJson skipped_json(const Predictor& predictor);

// JSON on one line; bytes that are not UTF-8 are replaced.
std::string to_line(const OrderedJson& value);

}  // namespace hydrant
