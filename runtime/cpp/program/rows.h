// Predictions as JSON, with the same keys as `hydrant predict`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant {

using OrderedJson = nlohmann::ordered_json;

// One object for each input.
//   first          index of the first input
//   probabilities  also give those of every class by its name
std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<std::string>& inputs, std::size_t first, bool probabilities);

// A float32 as the shortest decimal that names it.
double shortest(float value);

// JSON on one line; bytes that are no UTF-8 are replaced.
std::string to_line(const OrderedJson& value);

}  // namespace hydrant
