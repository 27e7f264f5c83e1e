#include "rows.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "../src/messages.h"

namespace hydrant {

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

// Adds how sure it is of input `i`, or of token `i` among all.
void tell_scores(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i) {
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
}

void tell_probabilities(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i) {
  if (predictor.gives_scores()) return;
  const std::vector<std::string>& labels = predictor.labels();
  OrderedJson found = OrderedJson::object();
  auto& named = found.get_ref<OrderedJson::object_t&>();  // appended to: by its name each is sought among all before it
  named.reserve(labels.size());
  for (std::size_t c = 0; c < labels.size(); ++c)
    named.emplace_back(labels[c], shortest(prediction.probabilities[i * labels.size() + c]));
  row["probabilities"] = std::move(found);
}

OrderedJson flag(const std::optional<bool>& value) { return value ? OrderedJson(*value) : OrderedJson(); }

// Adds all that is said of input `i`, or of token `i` among all.
void tell(OrderedJson& row, const Predictor& predictor, const Prediction& prediction, std::size_t i,
          const Telling& telling) {
  const std::vector<std::string>& labels = predictor.labels();
  tell_scores(row, predictor, prediction, i);
  row["abstain"] = prediction.abstain ? OrderedJson(bool((*prediction.abstain)[i])) : OrderedJson();
  if (prediction.out_of_distribution) row["out_of_distribution"] = bool((*prediction.out_of_distribution)[i]);
  if (prediction.prediction_set) {
    row["prediction_set"] = OrderedJson::array();
    for (std::size_t c = 0; c < labels.size(); ++c) {
      if ((*prediction.prediction_set)[i * labels.size() + c]) row["prediction_set"].push_back(labels[c]);
    }
  }
  if (telling.probabilities) tell_probabilities(row, predictor, prediction, i);
}

// What is said of each real token of input `i`, by its place in the text.
OrderedJson tokens_of(const Predictor& predictor, const Prediction& prediction, std::size_t i, const Telling& telling) {
  OrderedJson found = OrderedJson::array();
  for (std::size_t token = 0; token < prediction.tokens; ++token) {
    const std::size_t place = i * prediction.tokens + token;
    if (!prediction.mask.value()[place]) continue;
    OrderedJson each;
    each["token"] = token;
    tell(each, predictor, prediction, place, telling);
    found.push_back(std::move(each));
  }
  return found;
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

// The text of an input, which may be a list of its words.
std::string text_of(const OrderedJson& input) {
  if (!input.is_array()) return input.get<std::string>();
  return join(input.get<std::vector<std::string>>(), " ");
}

OrderedJson words_json(const Predictor& predictor, const Words& words, const std::string& text,
                       const Telling& telling) {
  OrderedJson found = OrderedJson::array();
  for (std::size_t i = 0; i < words.index.size(); ++i) {
    OrderedJson each;
    each["word"] = words.index[i];
    each["text"] = part_of(text, words.start[i], words.end[i]);
    each["start"] = words.start[i];
    each["end"] = words.end[i];
    tell_scores(each, predictor, words.prediction, i);
    if (telling.probabilities) tell_probabilities(each, predictor, words.prediction, i);
    found.push_back(std::move(each));
  }
  return found;
}

OrderedJson spans_json(const std::vector<Span>& spans, const std::string& text) {
  OrderedJson found = OrderedJson::array();
  for (const Span& span : spans) {
    OrderedJson each;
    each["label"] = span.label;
    each["text"] = part_of(text, span.start, span.end);
    each["start"] = span.start;
    each["end"] = span.end;
    each["first_word"] = span.first_word;
    each["last_word"] = span.last_word;
    each["confidence"] = shortest(span.confidence);
    each["predictive_entropy"] = shortest(span.predictive_entropy);
    each["expected_entropy"] = shortest(span.expected_entropy);
    each["mutual_information"] = shortest(span.mutual_information);
    each["disagreement"] = shortest(span.disagreement);
    each["energy"] = span.energy ? OrderedJson(shortest(*span.energy)) : OrderedJson();
    if (span.distance) each["distance"] = shortest(*span.distance);
    each["abstain"] = flag(span.abstain);
    each["out_of_distribution"] = flag(span.out_of_distribution);
    found.push_back(std::move(each));
  }
  return found;
}

// Refuses an aggregation where there are no words to make.
void check_words(const Predictor& predictor, const Prediction& prediction) {
  if (!predictor.tags_tokens())
    throw InputError("aggregation is for models that tag tokens; this one answers for whole inputs; leave it out");
  if (prediction.mask && !prediction.words)
    throw InputError("aggregation is of tokens to words, which ready tensors do not tell; leave it out, or give texts");
}

}  // namespace

Aggregation aggregation_of(const std::string& name) {
  if (name == "first") return Aggregation::first;
  if (name == "mean") return Aggregation::mean;
  if (name == "max") return Aggregation::max;
  throw InputError("aggregation is " + cut(name) + "; expected first, mean or max");
}

std::vector<OrderedJson> prediction_rows(const Predictor& predictor, const Prediction& prediction,
                                         const std::vector<OrderedJson>& inputs, std::size_t first,
                                         const Telling& telling) {
  if (telling.aggregation) check_words(predictor, prediction);
  std::vector<Words> words;
  std::vector<std::vector<Span>> spans;
  if (prediction.words) {
    const Aggregation aggregation = telling.aggregation.value_or(Aggregation::first);
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
      row["words"] = words_json(predictor, words[i], text, telling);
      row["spans"] = spans_json(spans[i], text);
    } else if (predictor.tags_tokens()) {
      row["tokens"] = tokens_of(predictor, prediction, i, telling);
    } else {
      tell(row, predictor, prediction, i, telling);
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
