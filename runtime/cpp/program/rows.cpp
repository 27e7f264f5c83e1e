#include "rows.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace hydrant {

double shortest(float value) {
  std::array<char, 32> text{};
  const auto [end, failed] = std::to_chars(text.data(), text.data() + text.size(), value);
  double number = value;
  if (failed == std::errc()) std::from_chars(text.data(), end, number);
  return number;
}

namespace {

// The labels that apply to input `i`, the most probable first, each with its uncertainty.
OrderedJson assigned(const Prediction& prediction, std::size_t i, const std::vector<std::string>& labels) {
  const std::size_t start = i * labels.size();
  std::vector<std::size_t> places;
  for (std::size_t c = 0; prediction.assigned && c < labels.size(); ++c) {
    if ((*prediction.assigned)[start + c]) places.push_back(c);
  }
  const auto& probabilities = prediction.probabilities;
  std::stable_sort(places.begin(), places.end(),
                   [&](auto a, auto b) { return probabilities[start + a] > probabilities[start + b]; });
  OrderedJson found = OrderedJson::array();
  for (const std::size_t c : places) {
    OrderedJson each;
    each["label"] = labels[c];
    each["probability"] = shortest(probabilities[start + c]);
    each["entropy"] = shortest(prediction.label_entropy[start + c]);
    each["mutual_information"] = shortest(prediction.label_mutual_information[start + c]);
    found.push_back(std::move(each));
  }
  return found;
}

// Adds what is said of input `i`, or of tokens of token `i` among all.
void tell(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i,
          bool probabilities) {
  const std::vector<std::string>& labels = predictor.labels();
  if (predictor.gives_scores()) {
    row["score"] = shortest(prediction.score[i]);
    row["score_variance"] = shortest(prediction.score_variance[i]);
    if (prediction.interval_low) row["interval_low"] = shortest((*prediction.interval_low)[i]);
    if (prediction.interval_high) row["interval_high"] = shortest((*prediction.interval_high)[i]);
  } else {
    if (predictor.gives_labels()) {
      row["labels"] = assigned(prediction, i, labels);
    } else {
      row["label"] = labels[static_cast<std::size_t>(prediction.label[i])];
      row["confidence"] = shortest(prediction.confidence[i]);
    }
    row["predictive_entropy"] = shortest(prediction.predictive_entropy[i]);
    row["expected_entropy"] = shortest(prediction.expected_entropy[i]);
    row["mutual_information"] = shortest(prediction.mutual_information[i]);
    if (!predictor.gives_labels()) row["disagreement"] = shortest(prediction.disagreement[i]);
  }
  if (prediction.energy) row["energy"] = shortest((*prediction.energy)[i]);
  if (prediction.distance) row["distance"] = shortest((*prediction.distance)[i]);
  row["abstain"] = prediction.abstain ? OrderedJson(bool((*prediction.abstain)[i])) : OrderedJson();
  if (prediction.out_of_distribution) row["out_of_distribution"] = bool((*prediction.out_of_distribution)[i]);
  if (prediction.prediction_set) {
    row["prediction_set"] = OrderedJson::array();
    for (std::size_t c = 0; c < labels.size(); ++c) {
      if ((*prediction.prediction_set)[i * labels.size() + c]) row["prediction_set"].push_back(labels[c]);
    }
  }
  for (std::size_t c = 0; probabilities && !predictor.gives_scores() && c < labels.size(); ++c) {
    row["probabilities"][labels[c]] = shortest(prediction.probabilities[i * labels.size() + c]);
  }
}

// What is said of each real token of input `i`, by its place in the text.
OrderedJson tokens_of(const Predictor& predictor, const Prediction& prediction, std::size_t i, bool probabilities) {
  OrderedJson found = OrderedJson::array();
  for (std::size_t token = 0; token < prediction.tokens; ++token) {
    const std::size_t place = i * prediction.tokens + token;
    if (!(*prediction.mask)[place]) continue;
    OrderedJson each;
    each["token"] = token;
    tell(each, predictor, prediction, place, probabilities);
    found.push_back(std::move(each));
  }
  return found;
}

}  // namespace

std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<OrderedJson>& inputs, std::size_t first,
                                         bool probabilities) {
  std::vector<OrderedJson> rows;
  for (std::size_t i = 0; i < prediction.size(); ++i) {
    OrderedJson row;
    row["index"] = first + i;
    row["input"] = inputs[i];
    if (predictor.tags_tokens()) {
      row["tokens"] = tokens_of(predictor, prediction, i, probabilities);
    } else {
      tell(row, predictor, prediction, i, probabilities);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

OrderedJson skipped_json(const Predictor& predictor) {
  OrderedJson skipped = OrderedJson::array();
  for (const Fallback& each : predictor.fallbacks())
    skipped.push_back({{"backend", each.backend}, {"reason", each.reason}});
  return skipped;
}

std::string to_line(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace hydrant
