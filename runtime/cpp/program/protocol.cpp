#include "protocol.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <system_error>

#include "../src/bytes.h"
#include "../src/json.h"
#include "../src/messages.h"
#include "datatypes.h"
#include "http.h"

namespace hydrant {
namespace {

constexpr std::size_t kMostDimensions = 8, kMostInputs = 16;
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

// The bytes behind the JSON, which tensors take one after the other.
class Tail {
 public:
  // `marked`: whether a header says where the JSON ends.
  Tail(std::string_view bytes, bool marked) : bytes_(bytes), marked_(marked) {}

  // The next bytes, as many as the size says.
  std::string_view take(const std::string& what, const Json& size) {
    if (!marked_)
      throw InputError(what + " has " + kSize + ", but the request has no header " + kLengthHeader + "; expected both");
    const auto count = integer(size, 0, static_cast<std::int64_t>(bytes_.size()));
    if (!count) {
      throw InputError(what + " has " + kSize + " " + shown(size) + "; expected a whole number up to " +
                       std::to_string(bytes_.size()) + ", the bytes that are left");
    }
    const std::string_view taken = bytes_.substr(0, static_cast<std::size_t>(*count));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  // Refuses bytes that no tensor took.
  void check_end() const {
    if (!bytes_.empty()) {
      throw InputError(std::to_string(bytes_.size()) + " bytes stand behind the last tensor; expected as many as the " +
                       kSize + " of all inputs say");
    }
  }

 private:
  std::string_view bytes_;
  bool marked_;
};

// Bytes of JSON at the beginning of a body, as the header says; without it all of them.
std::size_t json_size(std::string_view body, const std::optional<std::string>& header) {
  if (!header) return body.size();
  std::uint64_t size = 0;
  const char* const end = header->data() + header->size();
  const auto [last, failed] = std::from_chars(header->data(), end, size);
  if (failed != std::errc() || last != end)
    throw InputError(std::string(kLengthHeader) + " is " + cut(*header) + "; expected the length of the JSON in bytes");
  if (size < 1 || size > body.size()) {
    throw InputError(std::string(kLengthHeader) + " is " + std::to_string(size) +
                     "; expected the length of the JSON, 1 to " + std::to_string(body.size()) +
                     ", the length of the body");
  }
  return static_cast<std::size_t>(size);
}

// The parameters of an object, those refused that would change the answer.
const Json& parameters_of(const Json& object, const std::string& where) {
  const Json& parameters = member(object, "parameters");
  if (!parameters.is_null() && !parameters.is_object())
    throw InputError(where + " has parameters = " + shown(parameters) + "; expected a JSON object");
  for (const char* name : {"classification", "sequence_id", "shared_memory_region"}) {
    const Json& value = member(parameters, name);
    // NOLINTNEXTLINE(readability-container-size-empty): JSON, whose empty() is another question
    if (!value.is_null() && value != 0 && value != "" && value != false)
      throw InputError(where + " has parameter " + name + ", which is not served here; leave it out");
  }
  return parameters;
}

std::optional<bool> flag(const Json& parameters, const char* name, const std::string& where) {
  const Json& value = member(parameters, name);
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) throw InputError(where + " has " + name + " " + shown(value) + "; expected true or false");
  return value.get<bool>();
}

GivenTensor read_tensor(const Json& input, std::size_t index, Tail& tail) {
  const std::string where = "inputs[" + std::to_string(index) + "]";
  if (!input.is_object())
    throw InputError(where + " is " + shown(input) + "; expected an object with name, datatype, shape and data");
  const Json& name = required(input, "name", where, "the name of an input");
  if (!name.is_string()) throw InputError(where + " has name = " + shown(name) + "; expected a string");
  const Json& parameters = parameters_of(input, where);
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
  GivenTensor given{name.get<std::string>(), type.get<std::string>(), std::move(sizes), nullptr, {}};
  const std::string what = "input " + cut(given.name);
  const bool binary = parameters.is_object() && parameters.contains(kSize);
  if (!binary) {
    given.data = &required(input, "data", what, "an array of values, or binary_data_size among its parameters");
  } else if (input.contains("data")) {
    throw InputError(what + " has data and " + kSize + "; expected one of them");
  } else {
    given.bytes = tail.take(what, parameters[kSize]);
  }
  return given;
}

constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// Whether bytes are base64, in one line or in lines as programs break them, which no image file is.
bool is_base64(std::string_view bytes) {
  constexpr std::size_t kShortestPart = 64, kLongestPart = 76;
  while (true) {
    const std::size_t length = std::min(bytes.find_first_not_of(kAlphabet), bytes.size());
    std::string_view rest = bytes.substr(length);
    const std::size_t line_end = rest.substr(0, 1) == "\n" ? 1 : rest.substr(0, 2) == "\r\n" ? 2 : 0;
    if (line_end > 0 && rest.size() > line_end && length >= kShortestPart && length <= kLongestPart) {
      bytes = rest.substr(line_end);
      continue;
    }
    const std::size_t padding = std::min(rest.find_first_not_of('='), rest.size());
    rest.remove_prefix(padding);
    return length > 0 && padding <= 2 && (rest.empty() || rest == "\n" || rest == "\r\n" || rest == "\r");
  }
}

// The bytes of an image file, which in JSON stand in base64, and as bytes may.
std::string image_file(const GivenTensor& given, const std::string& element) {
  if (given.data != nullptr) return from_base64(element, "input image");
  if (!is_base64(element)) return element;
  try {
    return from_base64(element, "input image");
  } catch (const InputError&) {  // a file after all, if of no kind that is known
    return element;
  }
}

void check_count(std::size_t count, std::size_t most) {
  if (count <= most) return;
  throw TooMuch("the request has " + std::to_string(count) + " inputs; at most " + std::to_string(most) +
                " are taken at once; send them in parts, or start the server with a larger --max-inputs");
}

// Inputs of a tensor.
std::size_t rows_of(const std::vector<std::int64_t>& shape) { return static_cast<std::size_t>(shape.front()); }

Asked asked_of(const Json& inputs, Tail& tail, std::size_t most) {
  if (!inputs.is_array() || inputs.empty() || inputs.size() > kMostInputs)
    throw InputError("inputs is " + shown(inputs) + "; expected an array of 1 to 16 tensors");
  Asked asked;
  std::set<std::string> names;
  std::vector<std::string> texts, pairs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const GivenTensor given = read_tensor(inputs[i], i, tail);
    if (!names.insert(given.name).second)
      throw InputError("input " + cut(given.name) + " is given twice; expected each once");
    if (given.shape.front() == 0)
      throw InputError("input " + cut(given.name) + " has shape " + shape_text(given.shape) +
                       "; expected 1 input or more");
    const auto elements = [&] {
      check_count(rows_of(given.shape), most);
      return elements_of(given);
    };
    if (given.name == kText) {
      texts = elements();
    } else if (given.name == kPair) {
      pairs = elements();
    } else if (given.name == kImage) {
      for (const std::string& element : elements()) asked.images.push_back(image_file(given, element));
    } else {
      asked.tensors[given.name] = numbers_of(given);
      check_count(rows_of(given.shape), most);
    }
  }
  tail.check_end();
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

// An array that is nested as deep as tensors are: token ids [B, T], or pixels [B, channels, height, width].
Tensor plain_tensor(const std::string& name, const Json& data, std::size_t most) {
  std::vector<std::int64_t> shape;
  const Json* part = &data;
  for (; part->is_array() && shape.size() < kMostDimensions; part = &part->front()) {
    shape.push_back(static_cast<std::int64_t>(part->size()));
    if (part->empty()) throw InputError("input " + cut(name) + " is empty; expected a nested array of numbers");
  }
  if (shape.empty())
    throw InputError("input " + cut(name) + " is " + shown(data) + "; expected a nested array of numbers");
  check_count(rows_of(shape), most);
  return numbers_of({name, name == "pixel_values" ? "FP32" : "INT64", shape, &data, {}});
}

}  // namespace

std::string from_base64(const std::string& given, const std::string& what) {
  std::string text;
  std::copy_if(given.begin(), given.end(), std::back_inserter(text),
               [](char each) { return each != ' ' && each != '\n' && each != '\r' && each != '\t'; });
  static const std::array<int, 256> places = [] {
    std::array<int, 256> found{};
    found.fill(-1);
    for (std::size_t i = 0; i < kAlphabet.size(); ++i)
      found[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int>(i);
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

InferRequest read_infer(std::string_view body, const std::optional<std::string>& header_length, std::size_t most) {
  const std::size_t size = json_size(body, header_length);
  const Json found = decoded(body.substr(0, size));
  Tail tail(body.substr(size), header_length.has_value());
  InferRequest request;
  const Json& id = member(found, "id");
  if (!id.is_null() && !id.is_string()) throw InputError("id is " + shown(id) + "; expected a string");
  if (id.is_string()) request.id = id.get<std::string>();
  const Json& outputs = member(found, "outputs");
  if (!outputs.is_null() && !outputs.is_array())
    throw InputError("outputs is " + shown(outputs) + "; expected an array of {\"name\": …}");
  std::set<std::string> names;
  for (const Json& output : outputs) {
    const Json& name = member(output, "name");
    if (!name.is_string()) throw InputError("outputs holds " + shown(output) + "; expected {\"name\": …}");
    const std::string what = "output " + cut(name.get<std::string>());
    if (!names.insert(name.get<std::string>()).second)
      throw InputError(what + " is asked for twice; expected each once");
    request.outputs.push_back({name.get<std::string>(), flag(parameters_of(output, what), "binary_data", what)});
  }
  const char* const whole = "the request";
  request.binary = flag(parameters_of(found, whole), "binary_data_output", whole).value_or(false);
  request.asked = asked_of(required(found, "inputs", whole, "an array of tensors"), tail, most);
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

// A text, or the list of its words: "…", ["…", …], {"text": "…"} or {"tokens": ["…", …]}.
Text words_of(const Json& input, const std::string& where) {
  const bool named = input.is_object() && input.size() == 1 && (input.contains(kText) || input.contains(kWordList));
  const Json& given = named ? input.front() : input;
  if (given.is_string()) return {given.get<std::string>(), std::nullopt};
  const auto text = [](const Json& each) { return each.is_string(); };
  if (!given.is_array() || !std::all_of(given.begin(), given.end(), text))
    throw InputError(where + " is " + shown(input) + "; expected a text, or its words as an array of strings");
  return {"", std::nullopt, given.get<std::vector<std::string>>()};
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

PlainRequest read_plain(const std::string& body, Reads reads, std::size_t most) {
  const Json found = decoded(body);
  refuse_unknown(found, {"aggregation", "inputs", "model", "probabilities", "version"}, "the request");
  PlainRequest request;
  const Json& probabilities = member(found, "probabilities");
  if (!probabilities.is_null() && !probabilities.is_boolean())
    throw InputError("probabilities is " + shown(probabilities) + "; expected true or false");
  request.telling.probabilities = probabilities == true;
  if (const auto named = string_option(found, "aggregation")) request.telling.aggregation = aggregation_of(*named);
  request.model = string_option(found, "model");
  request.version = string_option(found, "version");
  const Json& inputs = required(found, "inputs", "the request", "an array of inputs");
  if (inputs.is_object() && !inputs.empty()) {
    for (const auto& [name, data] : inputs.items()) request.asked.tensors[name] = plain_tensor(name, data, most);
    return request;
  }
  if (!inputs.is_array())
    throw InputError("inputs is " + shown(inputs) + "; expected an array of inputs, or an object of tensors by name");
  check_count(inputs.size(), most);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::string where = "input " + std::to_string(i);
    if (reads == Reads::images) {
      request.asked.images.push_back(image_of(inputs[i], where));
      request.names.emplace_back("image " + std::to_string(i));
      continue;
    }
    Text text = reads == Reads::words ? words_of(inputs[i], where) : text_of(inputs[i], where);
    request.names.push_back(name_of(text));
    request.asked.texts.push_back(std::move(text));
  }
  return request;
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

namespace {

// The head of a PNG file stands in its first chunk called IHDR.
PictureSize size_of_png(std::string_view file) {
  constexpr std::size_t kSignature = 8, kHead = 8, kChecksum = 4;  // a chunk's head is its length and its name
  for (std::size_t at = kSignature; at + kHead <= file.size();) {
    if (file.substr(at + 4, 4) == "IHDR") return {number_at(file, at + kHead, 4), number_at(file, at + kHead + 4, 4)};
    at += kHead + static_cast<std::size_t>(number_at(file, at, 4)) + kChecksum;
  }
  return {};
}

// Where the marker ends that comes next; bytes that belong to none are passed over.
std::size_t next_marker(std::string_view file, std::size_t at) {
  while (true) {
    at = std::min(file.find('\xFF', at), file.size());
    at = std::min(file.find_first_not_of('\xFF', at), file.size());
    if (at == file.size()) return at;
    if (file[at++] != '\0') return at;
  }
}

// The size of a JPEG file stands in its first frame.
PictureSize size_of_jpeg(std::string_view file) {
  constexpr std::uint64_t kTemporary = 0x01, kRestart = 0xD0, kEnd = 0xD9, kScan = 0xDA;
  for (std::size_t at = next_marker(file, 2); at < file.size(); at = next_marker(file, at)) {
    const std::uint64_t marker = number_at(file, at - 1, 1);
    if (marker == kTemporary || (marker >= kRestart && marker < kRestart + 8)) continue;  // with nothing behind it
    if (marker == kEnd || marker == kScan) break;
    const bool other = marker == 0xC4 || marker == 0xC8 || marker == 0xCC;  // tables among the frames
    if (marker >= 0xC0 && marker <= 0xCF && !other) return {number_at(file, at + 5, 2), number_at(file, at + 3, 2)};
    at += static_cast<std::size_t>(std::max<std::uint64_t>(number_at(file, at, 2), 2));
  }
  return {};
}

}  // namespace

PictureSize picture_size(std::string_view file) {
  if (file.substr(0, 3) == "\xFF\xD8\xFF") return size_of_jpeg(file);
  return file.substr(0, 8) == "\x89PNG\r\n\x1A\n" ? size_of_png(file) : PictureSize{};
}

}  // namespace hydrant
