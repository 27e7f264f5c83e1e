#include "protocol.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>

#include "../src/bytes.h"
#include "../src/image.h"
#include "../src/json.h"
#include "../src/messages.h"
#include "ascii.h"
#include "datatypes.h"
#include "http.h"

namespace hydrant {
namespace {

constexpr std::size_t kMaxDimensions = 8, kMaxTensors = 16;
constexpr const char* kText = "text";
constexpr const char* kPair = "text_pair";
constexpr const char* kWordList = "tokens";
constexpr const char* kImage = "image";
constexpr const char* kSize = "binary_data_size";

const Json& required(const Json& object, const char* key, const std::string& where, const char* expected) {
  const Json& value = member(object, key);
  if (value.is_null()) throw InputError(where + " has no " + key + "; expected " + expected);
  return value;
}

Json decoded(std::string_view body) {
  try {
    Json request = parse_json(body);
    if (request.is_object()) return request;
    throw InputError(concat("the request is a JSON ", request.type_name(), "; expected an object"));
  } catch (const std::invalid_argument& error) {
    throw InputError("the request is not JSON (" + one_line(error.what()) + "); expected one JSON object");
  }
}

void check_keys(const Json& object, const std::vector<std::string>& keys, const std::string& where) {
  for (const auto& [key, value] : object.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      throw InputError(where + " has the key " + cut(key) + "; expected " + listing(keys));
}

// The bytes after the JSON, read tensor by tensor.
class Tail {
 public:
  // `marked`: a header has the length of the JSON.
  Tail(std::string_view bytes, bool marked) : bytes_(bytes), marked_(marked) {}

  // The next bytes of this size.
  std::string_view take(const std::string& what, const Json& size) {
    if (!marked_)
      throw InputError(what + " has " + kSize + ", but the request has no header " + kLengthHeader + "; expected both");
    const auto count = integer(size, 0, static_cast<std::int64_t>(bytes_.size()));
    if (!count) {
      throw InputError(concat(what, " has ", kSize, " ", shown(size), "; expected a whole number up to the remaining ",
                              bytes_.size(), " bytes"));
    }
    const std::string_view taken = bytes_.substr(0, static_cast<std::size_t>(*count));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  // Throws InputError: bytes are left.
  void check_end() const {
    if (!bytes_.empty())
      throw InputError(concat(bytes_.size(), " bytes follow the last tensor; expected the sum of all ", kSize));
  }

 private:
  std::string_view bytes_;
  bool marked_;
};

// Size of the JSON in a body, from the header; without it the whole body.
std::size_t json_size(std::string_view body, const std::optional<std::string>& header) {
  if (!header) return body.size();
  const auto size = decimal(*header);
  if (size && *size >= 1 && *size <= body.size()) return static_cast<std::size_t>(*size);
  throw InputError(
      concat(kLengthHeader, " is ", cut(*header), "; expected the length of the JSON in bytes, 1 to ", body.size()));
}

// The parameters of an object. Throws InputError: an unsupported one.
const Json& parameters_of(const Json& object, const std::string& where) {
  const Json& parameters = member(object, "parameters");
  if (!parameters.is_null() && !parameters.is_object())
    throw InputError(where + " has parameters = " + shown(parameters) + "; expected a JSON object");
  for (const char* name : {"classification", "sequence_id", "shared_memory_region"}) {
    const Json& value = member(parameters, name);
    // NOLINTNEXTLINE(readability-container-size-empty): JSON's empty() differs
    if (!value.is_null() && value != 0 && value != "" && value != false)
      throw InputError(where + " has parameter " + name + ", which is not supported; leave it out");
  }
  return parameters;
}

std::optional<bool> flag(const Json& parameters, const char* name, const std::string& where) {
  const Json& value = member(parameters, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) throw InputError(where + " has " + name + " " + shown(value) + "; expected true or false");
  return value.get<bool>();
}

std::optional<std::string> string_option(const Json& request, const char* name) {
  const Json& value = member(request, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_string()) throw InputError(concat(name, " is ", shown(value), "; expected a string"));
  return value.get<std::string>();
}

RequestTensor read_tensor(const Json& input, std::size_t index, Tail& tail) {
  const std::string where = "inputs[" + std::to_string(index) + "]";
  if (!input.is_object())
    throw InputError(where + " is " + shown(input) + "; expected an object with name, datatype, shape and data");
  const Json& name = required(input, "name", where, "the name of an input");
  if (!name.is_string()) throw InputError(where + " has name = " + shown(name) + "; expected a string");
  const Json& parameters = parameters_of(input, where);
  const Json& type = required(input, "datatype", where, "one such as INT64, FP32 or BYTES");
  if (!type.is_string()) throw InputError(where + " has datatype = " + shown(type) + "; expected a string");
  const Json& shape = required(input, "shape", where, "an array of sizes");
  if (!shape.is_array() || shape.empty() || shape.size() > kMaxDimensions)
    throw InputError(where + " has shape = " + shown(shape) + "; expected an array of 1 to 8 sizes");
  std::vector<std::int64_t> sizes;
  for (const Json& size : shape) {
    const auto number = integer(size, 0, std::numeric_limits<std::int32_t>::max());
    if (!number) throw InputError(where + " has shape = " + shown(shape) + "; expected whole numbers, 0 or more");
    sizes.push_back(*number);
  }
  RequestTensor tensor{name.get<std::string>(), type.get<std::string>(), std::move(sizes), nullptr, {}};
  const std::string what = "input " + cut(tensor.name);
  const bool binary = parameters.is_object() && parameters.contains(kSize);
  if (!binary) {
    tensor.data = &required(input, "data", what, "an array of values, or binary_data_size among its parameters");
  } else if (input.contains("data")) {
    throw InputError(what + " has data and " + kSize + "; expected one of them");
  } else {
    tensor.bytes = tail.take(what, parameters[kSize]);
  }
  return tensor;
}

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Returns true for base64 on one line or on lines of usual length; image files never are.
bool is_base64(std::string_view bytes) {
  constexpr std::size_t kMinLine = 64, kMaxLine = 76;
  while (true) {
    const std::size_t length = std::min(bytes.find_first_not_of(kAlphabet), bytes.size());
    std::string_view rest = bytes.substr(length);
    const std::size_t line_end = rest.substr(0, 1) == "\n" ? 1 : rest.substr(0, 2) == "\r\n" ? 2 : 0;
    if (line_end > 0 && rest.size() > line_end && length >= kMinLine && length <= kMaxLine) {
      bytes = rest.substr(line_end);
      continue;
    }
    const std::size_t padding = std::min(rest.find_first_not_of('='), rest.size());
    rest.remove_prefix(padding);
    return length > 0 && padding <= 2 && (rest.empty() || rest == "\n" || rest == "\r\n" || rest == "\r");
  }
}

// The bytes of an image file: base64 in JSON, optional in binary form.
std::string image_file(const RequestTensor& tensor, const std::string& element) {
  if (tensor.data != nullptr) return from_base64(element, "input image");
  if (!is_base64(element)) return element;
  try {
    return from_base64(element, "input image");
  } catch (const InputError&) {  // an unknown file, not base64
    return element;
  }
}

void check_count(std::size_t count, std::size_t most) {
  if (count <= most) return;
  throw TooManyInputs(concat("the request has ", count, " inputs; expected at most ", most,
                             "; send them in parts, or start the server with a larger --max-inputs"));
}

// Inputs of a tensor.
std::size_t rows_of(const std::vector<std::int64_t>& shape) { return static_cast<std::size_t>(shape.front()); }

RequestInputs request_inputs(const Json& inputs, Tail& tail, std::size_t most) {
  if (!inputs.is_array() || inputs.empty() || inputs.size() > kMaxTensors)
    throw InputError("inputs is " + shown(inputs) + "; expected an array of 1 to 16 tensors");
  RequestInputs request;
  std::set<std::string> names;
  std::vector<std::string> texts, pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const RequestTensor tensor = read_tensor(inputs[i], i, tail);
    if (!names.insert(tensor.name).second)
      throw InputError("input " + cut(tensor.name) + " occurs twice; expected each once");
    if (tensor.shape.front() == 0)
      throw InputError("input " + cut(tensor.name) + " has shape " + shape_text(tensor.shape) +
                       "; expected 1 input or more");
    const auto elements = [&] {
      check_count(rows_of(tensor.shape), most);
      return elements_of(tensor);
    };
    if (tensor.name == kText) {
      texts = elements();
    } else if (tensor.name == kPair) {
      pairs = elements();
    } else if (tensor.name == kImage) {
      for (const std::string& element : elements()) request.images.push_back(image_file(tensor, element));
    } else {
      request.tensors[tensor.name] = numbers_of(tensor);
      check_count(rows_of(tensor.shape), most);
    }
  }
  tail.check_end();
  const bool text = names.count(kText) > 0, pair = names.count(kPair) > 0, image = names.count(kImage) > 0;
  if (pair && (!text || pairs.size() != texts.size()))
    throw InputError(
        concat("input text_pair has ", pairs.size(), " texts, but text ", texts.size(), "; expected equal numbers"));
  if ((text || image) && names.size() != (pair ? 2U : 1U))
    throw InputError("inputs are " + listing({names.begin(), names.end()}) +
                     "; expected one of text, image and the graph's own tensors");
  for (std::size_t i = 0; i < texts.size(); ++i)
    request.texts.push_back(
        {std::move(texts[i]), pair ? std::optional<std::string>(std::move(pairs[i])) : std::nullopt});
  return request;
}

// A nested array: token ids [B, T], or pixels [B, channels, height, width].
Tensor plain_tensor(const std::string& name, const Json& data, std::size_t most) {
  std::vector<std::int64_t> shape;
  const Json* part = &data;
  for (; part->is_array() && shape.size() < kMaxDimensions; part = &part->front()) {
    shape.push_back(static_cast<std::int64_t>(part->size()));
    if (part->empty()) throw InputError("input " + cut(name) + " is empty; expected a nested array of numbers");
  }
  if (shape.empty())
    throw InputError("input " + cut(name) + " is " + shown(data) + "; expected a nested array of numbers");
  check_count(rows_of(shape), most);
  return numbers_of({name, name == "pixel_values" ? "FP32" : "INT64", shape, &data, {}});
}

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

// A text, or the list of its words: "…", ["…", …], {"text": "…"} or {"tokens": ["…", …]}.
Text words_of(const Json& input, const std::string& where) {
  const bool named = input.is_object() && input.size() == 1 && (input.contains(kText) || input.contains(kWordList));
  const Json& words = named ? input.front() : input;
  if (words.is_string()) return {words.get<std::string>(), std::nullopt};
  const auto text = [](const Json& each) { return each.is_string(); };
  if (!words.is_array() || !std::all_of(words.begin(), words.end(), text))
    throw InputError(where + " is " + shown(input) + "; expected a text, or its words as an array of strings");
  return {"", std::nullopt, words.get<std::vector<std::string>>()};
}

// The bytes of an image: base64, a data: URL, or {"image": base64}.
std::string image_of(const Json& input, const std::string& where) {
  const Json& image = input.is_object() && input.size() == 1 && input.contains(kImage) ? input[kImage] : input;
  if (!image.is_string()) throw InputError(where + " is " + shown(input) + "; expected an image file in base64");
  const auto& text = image.get_ref<const std::string&>();
  const std::size_t comma = text.compare(0, 5, "data:") == 0 ? text.find(',') : std::string::npos;
  return from_base64(comma == std::string::npos ? text : text.substr(comma + 1), where);
}

// Reads the first IHDR chunk of a PNG file.
PictureSize size_of_png(std::string_view file) {
  constexpr std::size_t kSignature = 8, kHead = 8, kChecksum = 4;  // a chunk's head: length and name
  for (std::size_t at = kSignature; at + kHead <= file.size();) {
    if (file.substr(at + 4, 4) == "IHDR") return {number_at(file, at + kHead, 4), number_at(file, at + kHead + 4, 4)};
    at += kHead + static_cast<std::size_t>(number_at(file, at, 4)) + kChecksum;
  }
  return {};
}

// The end of the next marker; skips other bytes.
std::size_t next_marker(std::string_view file, std::size_t at) {
  while (true) {
    at = std::min(file.find('\xFF', at), file.size());
    at = std::min(file.find_first_not_of('\xFF', at), file.size());
    if (at == file.size()) return at;
    if (file[at++] != '\0') return at;
  }
}

// Reads the first frame of a JPEG file.
PictureSize size_of_jpeg(std::string_view file) {
  constexpr std::uint64_t kTemporary = 0x01, kRestart = 0xD0, kEnd = 0xD9, kScan = 0xDA;
  for (std::size_t at = next_marker(file, 2); at < file.size(); at = next_marker(file, at)) {
    const std::uint64_t marker = number_at(file, at - 1, 1);
    if (marker == kTemporary || (marker >= kRestart && marker < kRestart + 8)) continue;  // without contents
    if (marker == kEnd || marker == kScan) break;
    const bool other = marker == 0xC4 || marker == 0xC8 || marker == 0xCC;  // tables among the frames
    if (marker >= 0xC0 && marker <= 0xCF && !other) return {number_at(file, at + 5, 2), number_at(file, at + 3, 2)};
    at += static_cast<std::size_t>(std::max<std::uint64_t>(number_at(file, at, 2), 2));
  }
  return {};
}

}  // namespace

std::string from_base64(const std::string& encoded, const std::string& what) {
  std::string text;
  std::copy_if(encoded.begin(), encoded.end(), std::back_inserter(text),
               [](char each) { return each != ' ' && each != '\n' && each != '\r' && each != '\t'; });
  static const std::array<int, 256> places = [] {
    std::array<int, 256> values{};
    values.fill(-1);
    for (std::size_t i = 0; i < kAlphabet.size(); ++i)
      values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int>(i);
    return values;
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
      throw InputError(what + " is not base64 (" + cut(text, 24) + "); expected a JPEG or PNG file in base64");
    bits = (bits << 6U | static_cast<unsigned>(place)) & 0xFFFFU;
    held += 6;
    if (held >= 8) bytes.push_back(static_cast<char>(bits >> static_cast<unsigned>(held -= 8) & 0xFFU));
  }
  if (text.size() % 4 != 0 || length % 4 == 1 || text.size() - length > 2)
    throw InputError(concat(what, " is not base64: it has ", text.size(),
                            " characters; expected a multiple of four, padded with ="));
  return bytes;
}

InferRequest read_infer(std::string_view body, const std::optional<std::string>& header_length,
                        std::size_t max_inputs) {
  const std::size_t size = json_size(body, header_length);
  const Json data = decoded(body.substr(0, size));
  Tail tail(body.substr(size), header_length.has_value());
  InferRequest request;
  request.id = string_option(data, "id");
  const Json& outputs = member(data, "outputs");
  if (!outputs.is_null() && !outputs.is_array())
    throw InputError("outputs is " + shown(outputs) + "; expected an array of {\"name\": …}");
  std::set<std::string> names;
  for (const Json& output : outputs) {
    const Json& name = member(output, "name");
    if (!name.is_string()) throw InputError("outputs holds " + shown(output) + "; expected {\"name\": …}");
    const std::string what = "output " + cut(name.get<std::string>());
    if (!names.insert(name.get<std::string>()).second) throw InputError(what + " occurs twice; expected each once");
    request.outputs.push_back({name.get<std::string>(), flag(parameters_of(output, what), "binary_data", what)});
  }
  const char* const whole = "the request";
  request.binary = flag(parameters_of(data, whole), "binary_data_output", whole).value_or(false);
  request.inputs = request_inputs(required(data, "inputs", whole, "an array of tensors"), tail, max_inputs);
  return request;
}

PlainRequest read_plain(const std::string& body, Reads reads, std::size_t max_inputs) {
  const Json object = decoded(body);
  check_keys(object, {"aggregation", "inputs", "model", "probabilities", "version"}, "the request");
  PlainRequest request;
  request.options.probabilities = flag(object, "probabilities", "the request").value_or(false);
  if (const auto named = string_option(object, "aggregation")) request.options.aggregation = aggregation_of(*named);
  request.model = string_option(object, "model");
  request.version = string_option(object, "version");
  const Json& inputs = required(object, "inputs", "the request", "a text or an array of inputs");
  const Json one = inputs.is_string() ? Json::array({inputs}) : Json();
  const Json& list = inputs.is_string() ? one : inputs;
  if (list.is_object() && !list.empty()) {
    for (const auto& [name, data] : list.items()) request.inputs.tensors[name] = plain_tensor(name, data, max_inputs);
    return request;
  }
  if (!list.is_array())
    throw InputError("inputs is " + shown(list) +
                     "; expected a text, an array of inputs, or an object of tensors by name");
  check_count(list.size(), max_inputs);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = "input " + std::to_string(i);
    if (reads == Reads::images) {
      request.inputs.images.push_back(image_of(list[i], where));
      request.names.emplace_back("image " + std::to_string(i));
      continue;
    }
    Text text = reads == Reads::words ? words_of(list[i], where) : text_of(list[i], where);
    request.names.push_back(name_of(text));
    request.inputs.texts.push_back(std::move(text));
  }
  return request;
}

OrderedJson inputs_metadata(const Predictor& predictor) {
  OrderedJson inputs = OrderedJson::array();
  const auto add = [&](const std::string& name, const char* datatype, const std::vector<std::int64_t>& shape) {
    inputs.push_back({{"name", name}, {"datatype", datatype}, {"shape", shape}});
  };
  if (predictor.reads_texts()) {
    add(kText, "BYTES", {-1});
    return inputs;
  }
  if (predictor.prepares_images()) {
    add(kImage, "BYTES", {-1});
    return inputs;
  }
  for (const auto& [name, tensor] : predictor.synthetic(1, 1, 0)) {
    const bool pixels = std::holds_alternative<std::vector<float>>(tensor.data);
    std::vector<std::int64_t> shape = tensor.shape;
    shape[0] = -1;
    if (!pixels) shape[1] = -1;
    add(name, pixels ? "FP32" : "INT64", shape);
  }
  return inputs;
}

PictureSize picture_size(std::string_view file) {
  return is_jpeg(file) ? size_of_jpeg(file) : is_png(file) ? size_of_png(file) : PictureSize{};
}

}  // namespace hydrant
