#include "outputs.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "../src/messages.h"
#include "rows.h"

namespace hydrant {
namespace {

// Appends a value in binary form; hosts are little-endian (npy.cpp).
template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void append(std::string& bytes, const std::string& value) {
  append(bytes, static_cast<std::uint32_t>(value.size()));
  bytes += value;
}

OrderedJson json_of(float value) { return shortest(value); }
template <typename Value>
OrderedJson json_of(const Value& value) {
  return value;
}

// An output as JSON, with its data, or with its data appended to `tail`.
OrderedJson output_json(const Output& output, bool binary, std::string& tail) {
  OrderedJson described{{"name", output.name}, {"datatype", output.datatype()}, {"shape", output.shape}};
  const std::size_t start = tail.size();
  OrderedJson data = OrderedJson::array();
  std::visit(
      [&](const auto& values) {
        for (const auto& value : values) {
          if (binary) {
            append(tail, value);
          } else {
            data.push_back(json_of(value));
          }
        }
      },
      output.values);
  if (binary) {
    described["parameters"] = {{"binary_data_size", tail.size() - start}};
  } else {
    described["data"] = std::move(data);
  }
  return described;
}

bool is_logits(const RequestedOutput& output) { return output.name == "logits"; }

const Output& output_called(const std::vector<Output>& outputs, const std::string& name) {
  return *std::find_if(outputs.begin(), outputs.end(), [&](const Output& each) { return each.name == name; });
}

// Number of tokens of the longest text.
std::size_t longest_of(const Prediction& prediction) {
  std::size_t longest = 0;
  for (std::size_t i = 0; prediction.mask && i < prediction.mask->size(); ++i)
    if ((*prediction.mask)[i]) longest = std::max(longest, i % prediction.tokens + 1);
  return longest;
}

// Keeps the first `count` of every T tokens with `width` values each.
template <typename Value>
std::vector<Value> shortened(const std::vector<Value>& values, std::size_t tokens, std::size_t width,
                             std::size_t count) {
  std::vector<Value> first;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i / width % tokens < count) first.push_back(values[i]);
  return first;
}

}  // namespace

std::size_t token_axis(const std::string& output) { return output == "member_probabilities" ? 2 : 1; }

const char* Output::datatype() const {
  constexpr const char* kNames[] = {"FP32", "INT64", "BOOL", "BYTES"};
  return kNames[values.index()];
}

std::vector<Output> outputs_of(const Predictor& predictor, Prediction p,
                               const std::vector<RequestedOutput>& requested) {
  const auto batch = static_cast<std::int64_t>(p.size()), classes = static_cast<std::int64_t>(p.classes),
             members = static_cast<std::int64_t>(p.members);
  const std::size_t longest = longest_of(p);
  std::vector<Output> all;
  const auto add = [&](const char* name, auto& values, std::vector<std::int64_t> shape) {
    if (values.empty()) return;  // another task's field
    if (p.tokens > 0) {
      const auto tokens = shape.begin() + static_cast<std::ptrdiff_t>(token_axis(name));
      const std::int64_t width = std::accumulate(tokens, shape.end(), std::int64_t{1}, std::multiplies<>());
      values = shortened(values, p.tokens, static_cast<std::size_t>(width), longest);
      shape.insert(tokens, static_cast<std::int64_t>(longest));
    }
    all.push_back({name, std::move(shape), std::move(values)});
  };
  const auto add_if = [&](const char* name, auto& values, std::vector<std::int64_t> shape) {
    if (values) add(name, *values, std::move(shape));
  };
  std::vector<std::string> names;
  for (const std::int64_t label : p.label)
    names.push_back(label < 0 ? "" : predictor.labels()[static_cast<std::size_t>(label)]);
  const bool wants_logits = std::any_of(requested.begin(), requested.end(), is_logits);
  std::vector<float> logits = wants_logits ? p.logits() : std::vector<float>();
  // in the order of the fields of Python's Prediction
  add("probabilities", p.probabilities, {batch, classes});
  add("label", names, {batch});
  add("confidence", p.confidence, {batch});
  add("predictive_entropy", p.predictive_entropy, {batch});
  add("expected_entropy", p.expected_entropy, {batch});
  add("mutual_information", p.mutual_information, {batch});
  add("disagreement", p.disagreement, {batch});
  add_if("energy", p.energy, {batch});
  add_if("distance", p.distance, {batch});
  add_if("length_deviation", p.length_deviation, {batch});
  add_if("abstain", p.abstain, {batch});
  add_if("out_of_distribution", p.out_of_distribution, {batch});
  add_if("member_probabilities", p.member_probabilities, {batch, members, classes});
  add_if("prediction_set", p.prediction_set, {batch, classes});
  add("score", p.score, {batch});
  add("score_variance", p.score_variance, {batch});
  add_if("interval_low", p.interval_low, {batch});
  add_if("interval_high", p.interval_high, {batch});
  add_if("member_scores", p.member_scores, {batch, members});
  add_if("mask", p.mask, {batch});
  add_if("words", p.words, {batch});
  add_if("offsets", p.offsets, {batch, 2});
  add_if("assigned", p.assigned, {batch, classes});
  add("label_entropy", p.label_entropy, {batch, classes});
  add("label_mutual_information", p.label_mutual_information, {batch, classes});
  add("label_index", p.label, {batch});
  add("logits", logits, {batch, p.score.empty() ? classes : 1});
  return all;
}

void check_outputs(const InferRequest& request, const std::vector<std::string>& names) {
  for (const RequestedOutput& output : request.outputs)
    if (!is_logits(output) && std::find(names.begin(), names.end(), output.name) == names.end())
      throw InputError("output " + cut(output.name) + " is unknown; expected " + listing(names, 32));
}

InferAnswer infer_answer(const std::string& model, const std::string& version, const InferRequest& request,
                         const std::vector<Output>& outputs) {
  OrderedJson head{{"model_name", model}, {"model_version", version}};
  if (request.id) head["id"] = *request.id;
  OrderedJson& list = head["outputs"] = OrderedJson::array();
  std::string tail;
  bool marked = request.outputs.empty() && request.binary;
  for (const RequestedOutput& wanted : request.outputs) {
    const bool binary = wanted.binary.value_or(request.binary);
    list.push_back(output_json(output_called(outputs, wanted.name), binary, tail));
    marked = marked || binary;
  }
  if (request.outputs.empty()) {
    for (const Output& output : outputs) list.push_back(output_json(output, request.binary, tail));
  }
  std::string body = to_line(head);
  if (!marked) return {std::move(body), std::nullopt};
  const std::size_t size = body.size();
  return {std::move(body) + tail, size};
}

}  // namespace hydrant
