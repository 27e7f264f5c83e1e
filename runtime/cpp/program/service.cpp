#include "service.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "../src/messages.h"
#include "ascii.h"
#include "outputs.h"
#include "protocol.h"

namespace hydrant {
namespace {

constexpr const char* kVersion = "1";  // of the one bundle that is served
constexpr const char* kModels = "/v2/models/";
constexpr const char *kLive = "/v2/health/live", *kReady = "/v2/health/ready";

HttpReply ok(const OrderedJson& body) { return {200, to_line(body), "", std::nullopt}; }

using Answer = std::function<HttpReply()>;

HttpReply not_allowed(const HttpRequest& request, const char* methods) {
  HttpReply refused =
      http_error(405, cut(request.method) + " is not allowed at " + cut(request.path) + "; expected " + methods);
  refused.allow = methods;
  return refused;
}

// What is only read; of an answer to HEAD the server sends the headers alone.
HttpReply read(const HttpRequest& request, const Answer& answer) {
  return request.method == "GET" || request.method == "HEAD" ? answer() : not_allowed(request, "GET, HEAD");
}

HttpReply posted(const HttpRequest& request, const Answer& answer) {
  return request.method == "POST" ? answer() : not_allowed(request, "POST");
}

HttpReply unknown(const HttpRequest& request) {
  return http_error(
      404, "there is no " + cut(request.path) +
               "; expected /v2/health/live, /v2/health/ready, /v2, /v2/models/NAME[/versions/1][/ready|/infer] "
               "or /predict");
}

bool starts(const std::string& text, const std::string& start) { return text.compare(0, start.size(), start) == 0; }

// Whether two secrets are the same; how long that takes tells nothing of where they differ.
bool same(const std::string& given, const std::string& secret) {
  unsigned different = given.size() == secret.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i)
    different |= static_cast<unsigned>(given[i] ^ secret[i % secret.size()]);
  return different == 0;
}

// Whether `Authorization` is `Bearer` and the token; the scheme may be written small.
bool has_token(const std::string& authorization, const std::string& token) {
  const std::size_t space = std::min(authorization.find(' '), authorization.size());
  const std::size_t start = std::min(authorization.find_first_not_of(' ', space), authorization.size());
  const bool right = same(authorization.substr(start, authorization.find_last_not_of(' ') + 1 - start), token);
  return right && is_alike(authorization.substr(0, space), "Bearer");
}

// Bytes of a text, of both of a pair, or of a list of words.
std::size_t length_of(const Text& text) {
  std::size_t length = text.text.size() + (text.pair ? text.pair->size() : 0);
  if (!text.words) return length;
  for (const std::string& word : *text.words) length += word.size() + 1;
  return length;
}

// Refuses pictures that take too much memory or time, very long strips among them.
std::optional<HttpReply> too_many_pixels(const std::vector<std::string>& files, std::uint64_t most) {
  constexpr std::uint64_t kLongestSide = 65535;
  std::uint64_t left = most;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const PictureSize size = picture_size(files[i]);
    if (std::max(size.width, size.height) > kLongestSide) {
      return http_error(413, "image input " + std::to_string(i) + " has " + std::to_string(size.width) + " by " +
                                 std::to_string(size.height) + " pixels; expected at most " +
                                 std::to_string(kLongestSide) + " on each side; cut it up");
    }
    if (size.width * size.height > left) {
      return http_error(413, "the pictures of the request have more than " + std::to_string(most) +
                                 " pixels, the most that are decoded for one; send them in parts, make them smaller, "
                                 "or start the server with a larger --max-pixels");
    }
    left -= size.width * size.height;
  }
  return std::nullopt;
}

HttpReply no_model(const std::string& asked, const std::string& name) {
  return http_error(404, "model " + cut(asked) + " is unknown; this server has " + cut(name));
}

HttpReply no_version(const std::string& asked, const std::string& name) {
  return http_error(404, "model " + cut(name) + " has no version " + cut(asked) + "; it has " + kVersion);
}

// What the metadata say of a model's inputs, the names alone.
std::string names_in(const OrderedJson& inputs) {
  std::vector<std::string> names;
  for (const OrderedJson& input : inputs) names.push_back(input["name"].get<std::string>());
  return listing(names);
}

std::vector<std::string> names_of(const std::vector<Output>& outputs) {
  std::vector<std::string> names;
  for (const Output& output : outputs) names.push_back(output.name);
  return names;
}

Prediction predicted(const Predictor& predictor, const Asked& asked) {
  if (!asked.images.empty()) return predictor.predict_encoded_images(asked.images);
  if (!asked.texts.empty()) return predictor.predict_texts(asked.texts);
  return predictor.predict(asked.tensors);
}

}  // namespace

bool is_loopback(const std::string& host) {
  const bool six = !host.empty() && host[0] == '[';
  const std::string bare = lowered(six ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':')));
  const bool four = bare.find_first_not_of("0123456789.") == std::string::npos;  // an address, and no name like one
  return bare == "localhost" || bare == "[::1]" || (four && starts(bare, "127."));
}

Service::Service(const Predictor& predictor, std::string name, bool local, const HttpLimits& limits)
    : predictor_(predictor),
      name_(std::move(name)),
      local_(local),
      token_(limits.token),
      most_inputs_(limits.inputs),
      most_pixels_(limits.pixels),
      longest_text_(limits.text),
      reads_texts_(predictor.reads_texts()),
      prepares_images_(predictor.prepares_images()) {
  Prediction warm = predictor.predict(predictor.synthetic(1, std::min<std::size_t>(predictor.longest(), 8), 0));
  if (warm.mask && reads_texts_) {  // what texts have beside ready tensors
    warm.words.emplace(warm.label.size());
    warm.offsets.emplace(warm.label.size() * 2);
  }
  std::vector<Output> given = outputs_of(predictor, std::move(warm));
  outputs_ = names_of(given);
  OrderedJson outputs = OrderedJson::array();
  for (Output& output : given) {
    output.shape.front() = -1;
    if (predictor.tags_tokens()) output.shape[token_axis(output.name)] = -1;
    outputs.push_back({{"name", output.name}, {"datatype", output.datatype()}, {"shape", output.shape}});
  }
  metadata_ = {{"name", name_},
               {"versions", OrderedJson::array({kVersion})},
               {"platform", "hydrant_" + predictor.backend()},
               {"inputs", inputs_metadata(predictor)},
               {"outputs", outputs},
               {"parameters",
                {{"task", predictor.gives_scores()   ? "score"
                          : predictor.gives_labels() ? "multi_label"
                          : predictor.tags_tokens()  ? "tokens"
                                                     : "classification"},
                 {"modality", predictor.reads_images() ? "image" : "text"},
                 {"labels", predictor.labels()}}}};
}

HttpReply Service::answer(const HttpRequest& request) const {
  try {
    return routed(request);
  } catch (const TooMuch& error) {
    return http_error(413, error.what());
  } catch (const InputError& error) {
    return http_error(400, error.what());
  }
}

HttpReply Service::ready(OrderedJson body) const {
  if (leaving_) return http_error(503, "the service is about to end; ask another one");
  body["ready"] = true;
  return ok(body);
}

// Refuses another host name for a local service without a token (DNS rebinding).
std::optional<HttpReply> Service::renamed(const HttpRequest& request) const {
  if (!local_ || token_ || !request.host || is_loopback(*request.host)) return std::nullopt;
  return http_error(403, "the host " + cut(*request.host) +
                             " is not this machine; ask at 127.0.0.1, or start the server with --token-file");
}

// Refuses requests that a page of another site makes a browser send: the origin must be the host that is asked, and
// for a local service without a token also this machine (against DNS rebinding).
std::optional<HttpReply> Service::foreign(const HttpRequest& request) const {
  if (!request.origin) return std::nullopt;
  const std::string host = request.host.value_or("");
  const bool own = *request.origin == "http://" + host || *request.origin == "https://" + host;
  if (own && (!local_ || token_ || is_loopback(host))) return std::nullopt;
  return http_error(403, "a page of another site asks, which is not allowed");
}

std::optional<HttpReply> Service::refused(const HttpRequest& request) const {
  if (auto reply = foreign(request)) return reply;
  if (auto reply = renamed(request)) return reply;
  const bool open = request.path == kLive || request.path == kReady;  // probes have no token
  if (token_ && !open && !has_token(request.authorization.value_or(""), *token_))
    return http_error(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN");
  if (request.encoding && !is_alike(trimmed(*request.encoding), "identity"))
    return http_error(415, "the body is compressed; send it as it is, without Content-Encoding");
  return std::nullopt;
}

HttpReply Service::routed(const HttpRequest& request) const {
  const std::string& path = request.path;
  if (path == kLive) return read(request, [] { return ok({{"live", true}}); });
  if (path == kReady) return read(request, [&] { return ready(OrderedJson::object()); });
  if (path == "/v2") {
    return read(request, [] {
      return ok(
          {{"name", "hydrant"}, {"version", version()}, {"extensions", OrderedJson::array({"binary_tensor_data"})}});
    });
  }
  if (path == "/predict") return posted(request, [&] { return predict(request); });
  if (starts(path, kModels)) return of_model(request, path.substr(std::string(kModels).size()));
  return unknown(request);
}

HttpReply Service::of_model(const HttpRequest& request, const std::string& rest) const {
  const std::size_t end = std::min(rest.find('/'), rest.size());
  if (rest.substr(0, end) != name_) return no_model(rest.substr(0, end), name_);
  std::string verb = rest.substr(end);
  if (starts(verb, "/versions/")) {
    const std::size_t start = std::string("/versions/").size(), stop = std::min(verb.find('/', start), verb.size());
    const std::string version = verb.substr(start, stop - start);
    if (version != kVersion) return no_version(version, name_);
    verb = verb.substr(stop);
  }
  if (verb.empty()) return read(request, [&] { return ok(metadata_); });
  if (verb == "/ready") return read(request, [&] { return ready({{"name", name_}, {"version", kVersion}}); });
  if (verb == "/infer") return posted(request, [&] { return infer(request); });
  return unknown(request);
}

// Refuses what the model does not read, and texts and pictures that would take too much memory.
std::optional<HttpReply> Service::unfit(const Asked& asked) const {
  const bool texts = !asked.texts.empty() && !reads_texts_, images = !asked.images.empty() && !prepares_images_;
  if (texts || images) {
    return http_error(400, std::string("the request has ") + (texts ? "texts" : "images") + ", but this model reads " +
                               names_in(metadata_["inputs"]) + " here; send these");
  }
  if (auto reply = too_many_pixels(asked.images, most_pixels_)) return reply;
  for (std::size_t i = 0; i < asked.texts.size(); ++i) {
    const std::size_t length = length_of(asked.texts[i]);
    if (length <= longest_text_) continue;
    return http_error(413, "input " + std::to_string(i) + " has " + std::to_string(length) + " bytes of text; send " +
                               std::to_string(longest_text_) + " at most, the part that the model reads");
  }
  return std::nullopt;
}

HttpReply Service::infer(const HttpRequest& request) const {
  const InferRequest asked = read_infer(request.body, request.header_length, most_inputs_);
  check_outputs(asked, outputs_);
  if (auto refused = unfit(asked.asked)) return *refused;
  const std::vector<Output> outputs = outputs_of(predictor_, predicted(predictor_, asked.asked));
  check_outputs(asked, names_of(outputs));  // ready tensors have no words
  InferAnswer answer = infer_answer(name_, kVersion, asked, outputs);
  return {200, std::move(answer.body), "", answer.json_size};
}

HttpReply Service::predict(const HttpRequest& request) const {
  const std::string given = request.type.value_or("");
  const std::string_view type = trimmed(std::string_view(given).substr(0, given.find(';')));
  if (!type.empty() && !is_alike(type, "application/json"))
    return http_error(415, "the Content-Type is " + cut(type) + "; expected application/json");
  const Reads reads = predictor_.reads_images()  ? Reads::images
                      : predictor_.tags_tokens() ? Reads::words
                                                 : Reads::texts;
  PlainRequest asked = read_plain(request.body, reads, most_inputs_);
  if (asked.model && *asked.model != name_) return no_model(*asked.model, name_);
  if (asked.version && *asked.version != kVersion) return no_version(*asked.version, name_);
  if (auto refused = unfit(asked.asked)) return *refused;
  Prediction prediction;
  if (!asked.names.empty() || !asked.asked.tensors.empty()) prediction = predicted(predictor_, asked.asked);
  for (std::size_t i = asked.names.size(); i < prediction.size(); ++i)
    asked.names.emplace_back("row " + std::to_string(i));
  OrderedJson rows = prediction_rows(predictor_, prediction, asked.names, 0, asked.telling);
  return ok({{"model", name_},
             {"version", kVersion},
             {"backend", predictor_.backend()},
             {"fallbacks", skipped_json(predictor_)},
             {"predictions", std::move(rows)}});
}

}  // namespace hydrant
