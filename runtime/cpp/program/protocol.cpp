#include "protocol.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <stdexcept>

#include "../src/json.h"
#include "../src/messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kMostDimensions = 8, kMostInputs = 16;
constexpr const char* kText = "text";
constexpr const char* kPair = "text_pair";
constexpr const char* kImage = "image";
constexpr const char* kBinary =
    "binary tensors are not spoken here; send JSON (in tritonclient: binary_data=False), or use `hydrant serve`";

const Json& required(const Json& object, const char* key, const std::string& where, const char* expected) {
  const Json& value = member(object, key);
  if (value.is_null()) throw InputError(where + " has no " + key + "; expected " + expected);
  return value;
}

Json decoded(const std::string& body) {
  Json found;
  try {
    found = parse_json(body);
  } catch (const std::invalid_argument& error) {
    throw InputError("the request is not JSON (" + one_line(error.what()) + "); expected one JSON object");
  }
  if (!found.is_object())
    throw InputError(std::string("the request is a JSON ") + found.type_name() + "; expected an object");
  return found;
}

void refuse_unknown(const Json& object, const std::set<std::string>& known, const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (known.count(key) == 0)
      throw InputError(where + " has the key " + cut(key) + "; expected " + listing({known.begin(), known.end()}));
  }
}

// Calls `each` with every value of an array that is flat, or nested as its shape says.
void walk(const Json& data, const std::vector<std::int64_t>& shape, std::size_t depth, const std::string& name,
          const std::function<void(const Json&)>& each) {
  if (!data.is_array()) throw InputError("input " + cut(name) + " has data = " + shown(data) + "; expected an array");
  const bool nested = depth + 1 < shape.size() && !data.empty() && data.front().is_array();
  if ((nested || depth > 0) && static_cast<std::int64_t>(data.size()) != shape[depth]) {
    throw InputError("input " + cut(name) + " has shape " + shape_text(shape) + ", but its data has " +
                     std::to_string(data.size()) + " parts on axis " + std::to_string(depth));
  }
  if (depth > 0 && depth + 1 < shape.size() && !nested)
    throw InputError("input " + cut(name) + " has data that is neither flat nor nested as its shape " +
                     shape_text(shape));
  for (const Json& part : data) {
    if (nested) {
      walk(part, shape, depth + 1, name, each);
    } else {
      each(part);
    }
  }
}

// Refuses parameters that would change the answer.
void check_parameters(const Json& object, const std::string& where) {
  const Json& parameters = member(object, "parameters");
  if (!parameters.is_null() && !parameters.is_object())
    throw InputError(where + " has parameters = " + shown(parameters) + "; expected a JSON object");
  for (const char* name : {"classification", "sequence_id", "shared_memory_region"}) {
    const Json& value = member(parameters, name);
    // NOLINTNEXTLINE(readability-container-size-empty): JSON, whose empty() is another question
    if (!value.is_null() && value != 0 && value != "")
      throw InputError(where + " has parameter " + name + ", which is not served here; leave it out");
  }
  for (const char* name : {"binary_data", "binary_data_output"}) {
    if (member(parameters, name) == true) throw InputError(kBinary);
  }
  if (!member(parameters, "binary_data_size").is_null()) throw InputError(kBinary);
}

struct Given {
  std::string name;
  std::string datatype;
  std::vector<std::int64_t> shape;
  const Json& data;

  // Number of values that the shape stands for, at most those that a request can hold.
  std::size_t count() const {
    std::size_t product = 1;
    for (const std::int64_t size : shape) {
      if (size != 0 && product > std::numeric_limits<std::uint32_t>::max() / static_cast<std::size_t>(size))
        throw InputError("input " + cut(name) + " has shape " + shape_text(shape) + ", which no request can hold");
      product *= static_cast<std::size_t>(size);
    }
    return product;
  }

  InputError wrong(const Json& value, const char* expected) const {
    return InputError("input " + cut(name) + " of datatype " + datatype + " holds " + shown(value) + "; expected " +
                      expected);
  }

  // All values, each made by `convert`.
  template <typename Value, typename Convert>
  std::vector<Value> values(const Convert& convert) const {
    const std::size_t wanted = count();
    std::vector<Value> found;
    walk(data, shape, 0, name, [&](const Json& value) {
      if (found.size() == wanted) throw InputError(mismatch("more than " + std::to_string(wanted)));
      found.push_back(convert(value));
    });
    if (found.size() != wanted) throw InputError(mismatch(std::to_string(found.size())));
    return found;
  }

  std::string mismatch(const std::string& values) const {
    return "input " + cut(name) + " has shape " + shape_text(shape) + ", but " + values + " values";
  }
};

Given read_tensor(const Json& input, std::size_t index) {
  const std::string where = "inputs[" + std::to_string(index) + "]";
  if (!input.is_object())
    throw InputError(where + " is " + shown(input) + "; expected an object with name, datatype, shape and data");
  const Json& name = required(input, "name", where, "the name of an input");
  if (!name.is_string()) throw InputError(where + " has name = " + shown(name) + "; expected a string");
  check_parameters(input, where);
  const Json& type = required(input, "datatype", where, "one such as INT64, FP32 or BYTES");
  if (!type.is_string()) throw InputError(where + " has datatype = " + shown(type) + "; expected a string");
  const Json& shape = required(input, "shape", where, "an array of sizes");
  if (!shape.is_array() || shape.empty() || shape.size() > kMostDimensions)
    throw InputError(where + " has shape = " + shown(shape) + "; expected an array of 1 to 8 sizes");
  std::vector<std::int64_t> sizes;
  for (const Json& size : shape) {
    const auto number = integer(size, 0, std::numeric_limits<std::int32_t>::max());
    if (!number) throw InputError(where + " has shape = " + shown(shape) + "; expected whole numbers, 0 or more");
    sizes.push_back(*number);
  }
  const Json& data = required(input, "data", where, "an array of values");
  return {name.get<std::string>(), type.get<std::string>(), sizes, data};
}

struct Range {
  std::int64_t least, most;
};

Tensor tensor_of(const Given& given) {
  static const std::map<std::string, Range> integers{
      {"INT8", {INT8_MIN, INT8_MAX}},    {"INT16", {INT16_MIN, INT16_MAX}}, {"INT32", {INT32_MIN, INT32_MAX}},
      {"INT64", {INT64_MIN, INT64_MAX}}, {"UINT8", {0, UINT8_MAX}},         {"UINT16", {0, UINT16_MAX}},
      {"UINT32", {0, UINT32_MAX}},       {"UINT64", {0, INT64_MAX}}};
  const auto range = integers.find(given.datatype);
  if (range != integers.end()) {
    return {given.shape, given.values<std::int64_t>([&](const Json& value) {
              const auto found = integer(value, range->second.least, range->second.most);
              if (!found) throw given.wrong(value, "whole numbers in its range");
              return *found;
            })};
  }
  if (given.datatype == "FP32" || given.datatype == "FP64") {
    return {given.shape, given.values<float>([&](const Json& value) {
              const auto found = number(value);
              if (!found || std::abs(*found) > std::numeric_limits<float>::max())
                throw given.wrong(value, "finite numbers");
              return static_cast<float>(*found);
            })};
  }
  throw InputError("input " + cut(given.name) + " has datatype " + cut(given.datatype) +
                   "; expected INT64 for token ids, FP32 for pixels, or BYTES for " + kText + ", " + kPair + " and " +
                   kImage);
}

// Strings [B] or [B, 1].
std::vector<std::string> strings_of(const Given& given) {
  const bool column = given.shape.size() == 1 || (given.shape.size() == 2 && given.shape[1] == 1);
  if (given.datatype != "BYTES" || !column) {
    throw InputError("input " + cut(given.name) + " has datatype " + cut(given.datatype) + " and shape " +
                     shape_text(given.shape) + "; expected BYTES [batch] or [batch, 1]");
  }
  return given.values<std::string>([&](const Json& value) {
    if (!value.is_string()) throw given.wrong(value, "strings");
    return value.get<std::string>();
  });
}

Asked asked_of(const Json& inputs) {
  if (!inputs.is_array() || inputs.empty() || inputs.size() > kMostInputs)
    throw InputError("inputs is " + shown(inputs) + "; expected an array of 1 to 16 tensors");
  Asked asked;
  std::set<std::string> names;
  std::vector<std::string> texts, pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Given given = read_tensor(inputs[i], i);
    if (!names.insert(given.name).second)
      throw InputError("input " + cut(given.name) + " is given twice; expected each once");
    if (given.shape.front() == 0)
      throw InputError("input " + cut(given.name) + " has shape " + shape_text(given.shape) +
                       "; expected 1 input or more");
    if (given.name == kText) {
      texts = strings_of(given);
    } else if (given.name == kPair) {
      pairs = strings_of(given);
    } else if (given.name == kImage) {
      for (const std::string& text : strings_of(given)) asked.images.push_back(from_base64(text, "input image"));
    } else {
      asked.tensors[given.name] = tensor_of(given);
    }
  }
  const bool text = names.count(kText) > 0, pair = names.count(kPair) > 0, image = names.count(kImage) > 0;
  if (pair && (!text || pairs.size() != texts.size()))
    throw InputError("input text_pair has " + std::to_string(pairs.size()) + " texts, but text " +
                     std::to_string(texts.size()) + "; expected as many of both");
  if ((text || image) && names.size() != (pair ? 2U : 1U))
    throw InputError("inputs are " + listing({names.begin(), names.end()}) +
                     "; expected text, image, or the graph's own tensors, not several of these");
  for (std::size_t i = 0; i < texts.size(); ++i)
    asked.texts.push_back({std::move(texts[i]), pair ? std::optional<std::string>(std::move(pairs[i])) : std::nullopt});
  return asked;
}

OrderedJson floats(const std::vector<float>& values) {
  OrderedJson found = OrderedJson::array();
  for (const float value : values) found.push_back(shortest(value));
  return found;
}

OrderedJson bools(const std::vector<bool>& values) {
  OrderedJson found = OrderedJson::array();
  for (const bool value : values) found.push_back(value);
  return found;
}

// An array that is nested as deep as tensors are: token ids [B, T], or pixels [B, channels, height, width].
Tensor plain_tensor(const std::string& name, const Json& data) {
  std::vector<std::int64_t> shape;
  const Json* part = &data;
  for (; part->is_array() && shape.size() < kMostDimensions; part = &part->front()) {
    shape.push_back(static_cast<std::int64_t>(part->size()));
    if (part->empty()) throw InputError("input " + cut(name) + " is empty; expected a nested array of numbers");
  }
  if (shape.empty())
    throw InputError("input " + cut(name) + " is " + shown(data) + "; expected a nested array of numbers");
  return tensor_of({name, name == "pixel_values" ? "FP32" : "INT64", shape, data});
}

}  // namespace

std::string from_base64(const std::string& given, const std::string& what) {
  std::string text;
  std::copy_if(given.begin(), given.end(), std::back_inserter(text),
               [](char each) { return each != ' ' && each != '\n' && each != '\r' && each != '\t'; });
  static const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  static const std::array<int, 256> places = [] {
    std::array<int, 256> found{};
    found.fill(-1);
    for (std::size_t i = 0; i < alphabet.size(); ++i)
      found[static_cast<unsigned char>(alphabet[i])] = static_cast<int>(i);
    return found;
  }();
  const std::size_t stop = text.find_last_not_of('=');
  const std::size_t length = stop == std::string::npos ? 0 : stop + 1;
  std::string bytes;
  bytes.reserve(length / 4 * 3 + 3);
  unsigned bits = 0;
  int held = 0;
  for (std::size_t i = 0; i < length; ++i) {
    const int place = places[static_cast<unsigned char>(text[i])];
    if (place < 0)
      throw InputError(what + " is not base64 (" + cut(text, 24) +
                       "); expected the bytes of a JPEG or PNG file in base64");
    bits = (bits << 6U | static_cast<unsigned>(place)) & 0xFFFFU;
    held += 6;
    if (held >= 8) bytes.push_back(static_cast<char>(bits >> static_cast<unsigned>(held -= 8) & 0xFFU));
  }
  if (text.size() % 4 != 0 || length % 4 == 1 || text.size() - length > 2)
    throw InputError(what + " is not base64: it has " + std::to_string(text.size()) +
                     " characters; expected a multiple of four, with = at the end");
  return bytes;
}

InferRequest read_infer(const std::string& body) {
  const Json found = decoded(body);
  InferRequest request;
  const Json& id = member(found, "id");
  if (!id.is_null() && !id.is_string()) throw InputError("id is " + shown(id) + "; expected a string");
  if (id.is_string()) request.id = id.get<std::string>();
  const Json& outputs = member(found, "outputs");
  if (!outputs.is_null() && !outputs.is_array())
    throw InputError("outputs is " + shown(outputs) + "; expected an array of {\"name\": …}");
  for (const Json& output : outputs) {
    const Json& name = member(output, "name");
    if (!name.is_string()) throw InputError("outputs holds " + shown(output) + "; expected {\"name\": …}");
    check_parameters(output, "output " + cut(name.get<std::string>()));
    request.outputs.push_back(name.get<std::string>());
  }
  check_parameters(found, "the request");
  request.asked = asked_of(required(found, "inputs", "the request", "an array of tensors"));
  return request;
}

namespace {

// A text, or a pair: "…", ["…", "…"], {"text": "…"} or {"text": "…", "text_pair": "…"}.
Text text_of(const Json& input, const std::string& where) {
  const bool named = input.is_object() && input.contains(kText) && input.size() == 1U + input.count(kPair);
  const Json& first = named ? input[kText] : input.is_array() && input.size() == 2 ? input[0] : input;
  const Json* second = named ? (input.count(kPair) > 0 ? &input[kPair] : nullptr)
                             : (input.is_array() && input.size() == 2 ? &input[1] : nullptr);
  if (!first.is_string() || (second != nullptr && !second->is_string()))
    throw InputError(where + " is " + shown(input) +
                     "; expected a text, an array of two texts, or an object with text (and text_pair)");
  return {first.get<std::string>(), second == nullptr ? std::nullopt : std::optional(second->get<std::string>())};
}

// The bytes of a picture: base64, which may be that of a data: URL, or {"image": base64}.
std::string image_of(const Json& input, const std::string& where) {
  const Json& given = input.is_object() && input.size() == 1 && input.contains(kImage) ? input[kImage] : input;
  if (!given.is_string()) throw InputError(where + " is " + shown(input) + "; expected an image file in base64");
  const auto& text = given.get_ref<const std::string&>();
  const std::size_t comma = text.compare(0, 5, "data:") == 0 ? text.find(',') : std::string::npos;
  return from_base64(comma == std::string::npos ? text : text.substr(comma + 1), where);
}

std::optional<std::string> string_option(const Json& request, const char* name) {
  const Json& value = member(request, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) throw InputError(std::string(name) + " is " + shown(value) + "; expected a string");
  return value.get<std::string>();
}

}  // namespace

PlainRequest read_plain(const std::string& body, bool images) {
  const Json found = decoded(body);
  refuse_unknown(found, {"inputs", "model", "probabilities", "version"}, "the request");
  PlainRequest request;
  const Json& probabilities = member(found, "probabilities");
  if (!probabilities.is_null() && !probabilities.is_boolean())
    throw InputError("probabilities is " + shown(probabilities) + "; expected true or false");
  request.probabilities = probabilities == true;
  request.model = string_option(found, "model");
  request.version = string_option(found, "version");
  const Json& inputs = required(found, "inputs", "the request", "an array of inputs");
  if (inputs.is_object() && !inputs.empty()) {
    for (const auto& [name, data] : inputs.items()) request.asked.tensors[name] = plain_tensor(name, data);
    return request;
  }
  if (!inputs.is_array())
    throw InputError("inputs is " + shown(inputs) + "; expected an array of inputs, or an object of tensors by name");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string where = "input " + std::to_string(i);
    if (images) {
      request.asked.images.push_back(image_of(inputs[i], where));
      request.names.emplace_back("image " + std::to_string(i));
      continue;
    }
    Text text = text_of(inputs[i], where);
    request.names.push_back(text.pair ? OrderedJson::array({text.text, *text.pair}) : OrderedJson(text.text));
    request.asked.texts.push_back(std::move(text));
  }
  return request;
}

std::vector<Output> outputs_of(const Predictor& predictor, const Prediction& p) {
  const auto batch = static_cast<std::int64_t>(p.size()), classes = static_cast<std::int64_t>(p.classes),
             members = static_cast<std::int64_t>(p.members);
  std::vector<Output> all;
  const auto add = [&](const char* name, const std::vector<float>& values, std::vector<std::int64_t> shape) {
    all.push_back({name, "FP32", std::move(shape), floats(values)});
  };
  const auto add_if = [&](const char* name, const std::optional<std::vector<float>>& values,
                          std::vector<std::int64_t> shape) {
    if (values) add(name, *values, std::move(shape));
  };
  const auto decide = [&](const char* name, const std::optional<std::vector<bool>>& values,
                          std::vector<std::int64_t> shape) {
    if (values) all.push_back({name, "BOOL", std::move(shape), bools(*values)});
  };
  // in the order of the fields of Python's Prediction
  const bool scores = predictor.gives_scores(), labels = predictor.gives_labels();
  if (!scores) add("probabilities", p.probabilities, {batch, classes});
  if (!scores && !labels) {
    OrderedJson names = OrderedJson::array();
    for (const std::int64_t label : p.label) names.push_back(predictor.labels()[static_cast<std::size_t>(label)]);
    all.push_back({"label", "BYTES", {batch}, std::move(names)});
    add("confidence", p.confidence, {batch});
  }
  if (!scores) {
    add("predictive_entropy", p.predictive_entropy, {batch});
    add("expected_entropy", p.expected_entropy, {batch});
    add("mutual_information", p.mutual_information, {batch});
    if (!labels) add("disagreement", p.disagreement, {batch});
  }
  add_if("energy", p.energy, {batch});
  add_if("distance", p.distance, {batch});
  decide("abstain", p.abstain, {batch});
  decide("out_of_distribution", p.out_of_distribution, {batch});
  add_if("member_probabilities", p.member_probabilities, {batch, members, classes});
  decide("prediction_set", p.prediction_set, {batch, classes});
  if (scores) {
    add("score", p.score, {batch});
    add("score_variance", p.score_variance, {batch});
  }
  add_if("interval_low", p.interval_low, {batch});
  add_if("interval_high", p.interval_high, {batch});
  add_if("member_scores", p.member_scores, {batch, members});
  if (labels) {
    decide("assigned", p.assigned, {batch, classes});
    add("label_entropy", p.label_entropy, {batch, classes});
    add("label_mutual_information", p.label_mutual_information, {batch, classes});
  }
  if (!scores && !labels) all.push_back({"label_index", "INT64", {batch}, OrderedJson(p.label)});
  return all;
}

std::string infer_body(const std::string& model, const std::string& version, const InferRequest& request,
                       std::vector<Output> outputs) {
  OrderedJson body{{"model_name", model}, {"model_version", version}};
  if (request.id) body["id"] = *request.id;
  std::vector<std::string> names;
  for (const Output& output : outputs) names.push_back(output.name);
  std::vector<std::string> wanted = request.outputs.empty() ? names : request.outputs;
  body["outputs"] = OrderedJson::array();
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      throw InputError("output " + cut(name) + " is unknown; this model gives " + listing(names, 32));
    Output& output = outputs[static_cast<std::size_t>(found - names.begin())];
    if (output.data.is_null()) throw InputError("output " + cut(name) + " is asked for twice; expected each once");
    body["outputs"].push_back(
        {{"name", name}, {"datatype", output.datatype}, {"shape", output.shape}, {"data", std::move(output.data)}});
    output.data = nullptr;
  }
  return to_line(body);
}

OrderedJson inputs_metadata(const Predictor& predictor) {
  OrderedJson found = OrderedJson::array();
  const auto add = [&](const std::string& name, const char* datatype, const std::vector<std::int64_t>& shape) {
    found.push_back({{"name", name}, {"datatype", datatype}, {"shape", shape}});
  };
  if (predictor.reads_texts()) {
    add(kText, "BYTES", {-1});
    return found;
  }
  if (predictor.prepares_images()) {
    add(kImage, "BYTES", {-1});
    return found;
  }
  for (const auto& [name, tensor] : predictor.synthetic(1, 1, 0)) {
    const bool pixels = std::holds_alternative<std::vector<float>>(tensor.data);
    std::vector<std::int64_t> shape = tensor.shape;
    shape[0] = -1;
    if (!pixels) shape[1] = -1;
    add(name, pixels ? "FP32" : "INT64", shape);
  }
  return found;
}

}  // namespace hydrant
