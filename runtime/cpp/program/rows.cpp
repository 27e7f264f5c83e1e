#include "rows.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "../src/messages.h"

namespace hydrant {

namespace {

// The assigned labels of input `i` with their uncertainty, most probable first.
OrderedJson assigned(const Prediction& prediction, std::size_t i, const std::vector<std::string>& labels) {
  const std::size_t start = i * labels.size();
  std::vector<std::size_t> places;
  for (std::size_t c = 0; prediction.assigned && c < labels.size(); ++c)
    if ((*prediction.assigned)[start + c]) places.push_back(c);
  const auto& probabilities = prediction.probabilities;
  std::stable_sort(places.begin(), places.end(),
                   [&](auto a, auto b) { return probabilities[start + a] > probabilities[start + b]; });
  OrderedJson all = OrderedJson::array();
  for (const std::size_t c : places) {
    all.push_back({{"label", labels[c]},
                   {"probability", shortest(probabilities[start + c])},
                   {"entropy", shortest(prediction.label_entropy[start + c])},
                   {"mutual_information", shortest(prediction.label_mutual_information[start + c])}});
  }
  return all;
}

// Adds the scores of input `i`, or of token `i`.
void add_scores(OrderedJson& row, const Predictor& predictor, const Prediction& p, std::size_t i) {
  const auto add = [&](const char* name, const std::vector<float>& values) {
    if (!values.empty()) row[name] = shortest(values[i]);
  };
  const auto add_if = [&](const char* name, const std::optional<std::vector<float>>& values) {
    if (values) row[name] = shortest((*values)[i]);
  };
  add("score", p.score);
  add("score_variance", p.score_variance);
  add_if("interval_low", p.interval_low);
  add_if("interval_high", p.interval_high);
  if (predictor.gives_labels()) row["labels"] = assigned(p, i, predictor.labels());
  if (!p.label.empty()) row["label"] = predictor.labels()[static_cast<std::size_t>(p.label[i])];
  add("confidence", p.confidence);
  add("predictive_entropy", p.predictive_entropy);
  add("expected_entropy", p.expected_entropy);
  add("mutual_information", p.mutual_information);
  add("disagreement", p.disagreement);
  add_if("energy", p.energy);
  add_if("distance", p.distance);
  add_if("length_deviation", p.length_deviation);
}

void add_probabilities(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i) {
  if (predictor.gives_scores()) return;
  const std::vector<std::string>& labels = predictor.labels();
  OrderedJson all = OrderedJson::object();
  auto& named = all.get_ref<OrderedJson::object_t&>();  // appended directly: operator[] searches all keys
  named.reserve(labels.size());
  for (std::size_t c = 0; c < labels.size(); ++c)
    named.emplace_back(labels[c], shortest(prediction.probabilities[i * labels.size() + c]));
  row["probabilities"] = std::move(all);
}

OrderedJson flag(const std::optional<bool>& value) { return value ? OrderedJson(*value) : OrderedJson(); }

// Adds scores and decisions of input `i`, or of token `i`.
void add_fields(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i,
                const RowOptions& options) {
  const std::vector<std::string>& labels = predictor.labels();
  add_scores(row, predictor, prediction, i);
  row["abstain"] = prediction.abstain ? OrderedJson(bool((*prediction.abstain)[i])) : OrderedJson();
  if (prediction.out_of_distribution) row["out_of_distribution"] = bool((*prediction.out_of_distribution)[i]);
  if (prediction.prediction_set) {
    row["prediction_set"] = OrderedJson::array();
    for (std::size_t c = 0; c < labels.size(); ++c)
      if ((*prediction.prediction_set)[i * labels.size() + c]) row["prediction_set"].push_back(labels[c]);
  }
  if (options.probabilities) add_probabilities(row, predictor, prediction, i);
}

// The real tokens of input `i`, with their positions.
OrderedJson tokens_of(const Predictor& predictor, const Prediction& prediction, std::size_t i,
                      const RowOptions& options) {
  OrderedJson tokens = OrderedJson::array();
  for (std::size_t token = 0; token < prediction.tokens; ++token) {
    const std::size_t place = i * prediction.tokens + token;
    if (!prediction.mask.value()[place]) continue;
    OrderedJson each{{"token", token}};
    add_fields(each, predictor, prediction, place, options);
    tokens.push_back(std::move(each));
  }
  return tokens;
}

// Characters [start, end) of UTF-8.
std::string part_of(const std::string& text, std::int64_t start, std::int64_t end) {
  std::string part;
  std::int64_t character = -1;
  for (const char byte : text) {
    if ((static_cast<unsigned char>(byte) & 0xC0U) != 0x80U) ++character;
    if (character >= end) break;
    if (character >= start) part += byte;
  }
  return part;
}

// An input's text; words are joined.
std::string text_of(const OrderedJson& input) {
  if (!input.is_array()) return input.get<std::string>();
  return join(input.get<std::vector<std::string>>(), " ");
}

OrderedJson words_json(const Predictor& predictor, const Words& words, const std::string& text,
                       const RowOptions& options) {
  OrderedJson all = OrderedJson::array();
  for (std::size_t i = 0; i < words.index.size(); ++i) {
    OrderedJson each{{"word", words.index[i]},
                     {"text", part_of(text, words.start[i], words.end[i])},
                     {"start", words.start[i]},
                     {"end", words.end[i]}};
    add_scores(each, predictor, words.prediction, i);
    if (options.probabilities) add_probabilities(each, predictor, words.prediction, i);
    all.push_back(std::move(each));
  }
  return all;
}

OrderedJson spans_json(const std::vector<Span>& spans, const std::string& text) {
  OrderedJson all = OrderedJson::array();
  for (const Span& span : spans) {
    OrderedJson each{{"label", span.label},
                     {"text", part_of(text, span.start, span.end)},
                     {"start", span.start},
                     {"end", span.end},
                     {"first_word", span.first_word},
                     {"last_word", span.last_word},
                     {"confidence", shortest(span.confidence)},
                     {"predictive_entropy", shortest(span.predictive_entropy)},
                     {"expected_entropy", shortest(span.expected_entropy)},
                     {"mutual_information", shortest(span.mutual_information)},
                     {"disagreement", shortest(span.disagreement)},
                     {"energy", span.energy ? OrderedJson(shortest(*span.energy)) : OrderedJson()}};
    if (span.distance) each["distance"] = shortest(*span.distance);
    each["abstain"] = flag(span.abstain);
    each["out_of_distribution"] = flag(span.out_of_distribution);
    all.push_back(std::move(each));
  }
  return all;
}

// Throws InputError: an aggregation, but no words.
void check_words(const Predictor& predictor, const Prediction& prediction) {
  if (!predictor.tags_tokens()) throw InputError("aggregation is for token classification only; leave it out");
  if (prediction.mask && !prediction.words)
    throw InputError("aggregation needs words, which ready tensors do not have; leave it out, or send texts");
}

}  // namespace

OrderedJson name_of(const Text& text) {
  if (text.words) return *text.words;
  return text.pair ? OrderedJson::array({text.text, *text.pair}) : OrderedJson(text.text);
}

double shortest(float value) {
  std::array<char, 32> text{};
  const auto [end, failed] = std::to_chars(text.data(), text.data() + text.size(), value);
  double number = value;
  if (failed == std::errc()) std::from_chars(text.data(), end, number);
  return number;
}

Aggregation aggregation_of(const std::string& name) {
  if (name == "first") return Aggregation::first;
  if (name == "mean") return Aggregation::mean;
  if (name == "max") return Aggregation::max;
  throw InputError("aggregation is " + cut(name) + "; expected first, mean or max");
}

std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<OrderedJson>& inputs, std::size_t first,
                                         const RowOptions& options) {
  if (options.aggregation) check_words(predictor, prediction);
  std::vector<Words> words;
  std::vector<std::vector<Span>> spans;
  if (prediction.words) {
    const Aggregation aggregation = options.aggregation.value_or(Aggregation::first);
    words = predictor.words(prediction, aggregation);
    spans = predictor.spans(prediction, aggregation);
  }
  std::vector<OrderedJson> rows;
  for (std::size_t i = 0; i < prediction.size(); ++i) {
    OrderedJson row;
    row["index"] = first + i;
    row["input"] = inputs[i];
    if (prediction.words) {
      const std::string text = text_of(inputs[i]);
      row["words"] = words_json(predictor, words[i], text, options);
      row["spans"] = spans_json(spans[i], text);
    } else if (predictor.tags_tokens()) {
      row["tokens"] = tokens_of(predictor, prediction, i, options);
    } else {
      add_fields(row, predictor, prediction, i, options);
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
