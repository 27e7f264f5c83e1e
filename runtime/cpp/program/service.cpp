#include "service.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "../src/messages.h"
#include "ascii.h"
#include "outputs.h"

namespace hydrant {
namespace {

constexpr const char* kVersion = "1";  // of the served bundle
constexpr const char* kModels = "/v2/models/";
constexpr const char *kLive = "/v2/health/live", *kReady = "/v2/health/ready";

HttpReply ok(const OrderedJson& body) { return {200, to_line(body), "", std::nullopt}; }

using Answer = std::function<HttpReply()>;

HttpReply not_allowed(const HttpRequest& request, const char* methods) {
  HttpReply reply =
      http_error(405, cut(request.method) + " is not allowed at " + cut(request.path) + "; expected " + methods);
  reply.allow = methods;
  return reply;
}

// GET and HEAD; the server sends only headers for HEAD.
HttpReply read(const HttpRequest& request, const Answer& answer) {
  return request.method == "GET" || request.method == "HEAD" ? answer() : not_allowed(request, "GET, HEAD");
}

HttpReply posted(const HttpRequest& request, const Answer& answer) {
  return request.method == "POST" ? answer() : not_allowed(request, "POST");
}

HttpReply unknown(const HttpRequest& request) {
  return http_error(404, "unknown path " + cut(request.path) + "; expected /v2/health/live, /v2/health/ready, /v2, " +
                             "/v2/models/NAME[/versions/1][/ready|/infer] or /predict");
}

// Compares secrets; the time does not depend on where they differ.
bool same_secret(const std::string& sent, const std::string& secret) {
  unsigned different = sent.size() == secret.size() ? 0U : 1U;
  for (std::size_t i = 0; i < sent.size(); ++i) different |= static_cast<unsigned>(sent[i] ^ secret[i % secret.size()]);
  return different == 0;
}

// Returns true if `Authorization` is `Bearer` (in any case) and the token.
bool has_token(const std::string& authorization, const std::string& token) {
  const std::size_t space = std::min(authorization.find(' '), authorization.size());
  const std::size_t start = std::min(authorization.find_first_not_of(' ', space), authorization.size());
  const bool right = same_secret(authorization.substr(start, authorization.find_last_not_of(' ') + 1 - start), token);
  return right && is_alike(authorization.substr(0, space), "Bearer");
}

// Bytes of a text, a pair, or a list of words.
std::size_t length_of(const Text& text) {
  std::size_t length = text.text.size() + (text.pair ? text.pair->size() : 0);
  if (!text.words) return length;
  for (const std::string& word : *text.words) length += word.size() + 1;
  return length;
}

// Rejects images with too many pixels or a too long side.
std::optional<HttpReply> too_many_pixels(const std::vector<std::string>& files, std::uint64_t most) {
  constexpr std::uint64_t kMaxSide = 65535;
  std::uint64_t left = most;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const PictureSize size = picture_size(files[i]);
    if (std::max(size.width, size.height) > kMaxSide) {
      return http_error(413, concat("image input ", i, " has ", size.width, " by ", size.height,
                                    " pixels; expected at most ", kMaxSide, " per side; split it"));
    }
    if (size.width * size.height > left) {
      return http_error(413, concat("the images of the request have more than ", most, " pixels; send them in parts, ",
                                    "make them smaller, or start the server with a larger --max-pixels"));
    }
    left -= size.width * size.height;
  }
  return std::nullopt;
}

HttpReply no_model(const std::string& requested, const std::string& name) {
  return http_error(404, "model " + cut(requested) + " is unknown; expected " + cut(name));
}

HttpReply no_version(const std::string& requested, const std::string& name) {
  return http_error(404, "model " + cut(name) + " has no version " + cut(requested) + "; expected " + kVersion);
}

// Names of inputs in a model's metadata.
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

Prediction predicted(const Predictor& predictor, const RequestInputs& inputs) {
  if (!inputs.images.empty()) return predictor.predict_encoded_images(inputs.images);
  if (!inputs.texts.empty()) return predictor.predict_texts(inputs.texts);
  return predictor.predict(inputs.tensors);
}

}  // namespace

bool is_loopback(const std::string& host) {
  const bool six = !host.empty() && host[0] == '[';
  const std::string bare = lowered(six ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':')));
  const bool four = bare.find_first_not_of("0123456789.") == std::string::npos;  // an address, not a similar name
  return bare == "localhost" || bare == "[::1]" || (four && starts_with(bare, "127."));
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
  if (warm.mask && reads_texts_) {  // fields of texts only
    warm.words.emplace(warm.label.size());
    warm.offsets.emplace(warm.label.size() * 2);
  }
  std::vector<Output> fields = outputs_of(predictor, std::move(warm));
  outputs_ = names_of(fields);
  OrderedJson outputs = OrderedJson::array();
  for (Output& output : fields) {
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
  } catch (const TooManyInputs& error) {
    return http_error(413, error.what());
  } catch (const InputError& error) {
    return http_error(400, error.what());
  }
}

HttpReply Service::ready(OrderedJson body) const {
  if (stopping_) return http_error(503, "the server is stopping; use another server");
  body["ready"] = true;
  return ok(body);
}

// Rejects other host names for a local service without a token (DNS rebinding).
std::optional<HttpReply> Service::wrong_host(const HttpRequest& request) const {
  if (!local_ || token_ || !request.host || is_loopback(*request.host)) return std::nullopt;
  return http_error(403, "the host " + cut(*request.host) +
                             " is not this machine; use 127.0.0.1, or start the server with --token-file");
}

// Rejects browser requests from other sites, and for a local service without a token from other hosts (DNS rebinding).
std::optional<HttpReply> Service::wrong_origin(const HttpRequest& request) const {
  if (!request.origin) return std::nullopt;
  const std::string host = request.host.value_or("");
  const bool own = *request.origin == "http://" + host || *request.origin == "https://" + host;
  if (own && (!local_ || token_ || is_loopback(host))) return std::nullopt;
  return http_error(403, "requests from pages of another site are not allowed");
}

std::optional<HttpReply> Service::rejected(const HttpRequest& request) const {
  if (auto reply = wrong_origin(request)) return reply;
  if (auto reply = wrong_host(request)) return reply;
  const bool open = request.path == kLive || request.path == kReady;  // probes need no token
  if (token_ && !open && !has_token(request.authorization.value_or(""), *token_))
    return http_error(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN");
  if (request.encoding && !is_alike(trimmed(*request.encoding), "identity"))
    return http_error(415, "the body is compressed; send it uncompressed, without Content-Encoding");
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
  if (starts_with(path, kModels)) return of_model(request, path.substr(std::string(kModels).size()));
  return unknown(request);
}

HttpReply Service::of_model(const HttpRequest& request, const std::string& rest) const {
  const std::size_t end = std::min(rest.find('/'), rest.size());
  if (rest.substr(0, end) != name_) return no_model(rest.substr(0, end), name_);
  std::string verb = rest.substr(end);
  if (starts_with(verb, "/versions/")) {
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

// Rejects inputs that the model does not read, and too large texts and images.
std::optional<HttpReply> Service::unsupported(const RequestInputs& inputs) const {
  const bool texts = !inputs.texts.empty() && !reads_texts_, images = !inputs.images.empty() && !prepares_images_;
  if (texts || images) {
    return http_error(
        400, concat("the request has ", texts ? "texts" : "images", "; expected ", names_in(metadata_["inputs"])));
  }
  if (auto reply = too_many_pixels(inputs.images, most_pixels_)) return reply;
  for (std::size_t i = 0; i < inputs.texts.size(); ++i) {
    const std::size_t length = length_of(inputs.texts[i]);
    if (length <= longest_text_) continue;
    return http_error(413, concat("input ", i, " has ", length, " bytes of text; expected at most ", longest_text_));
  }
  return std::nullopt;
}

HttpReply Service::infer(const HttpRequest& request) const {
  const InferRequest infer = read_infer(request.body, request.header_length, most_inputs_);
  check_outputs(infer, outputs_);
  if (auto reply = unsupported(infer.inputs)) return *reply;
  const std::vector<Output> outputs = outputs_of(predictor_, predicted(predictor_, infer.inputs), infer.outputs);
  check_outputs(infer, names_of(outputs));  // ready tensors have no words
  InferAnswer answer = infer_answer(name_, kVersion, infer, outputs);
  return {200, std::move(answer.body), "", answer.json_size};
}

HttpReply Service::predict(const HttpRequest& request) const {
  const std::string header = request.type.value_or("");
  const std::string_view type = trimmed(std::string_view(header).substr(0, header.find(';')));
  if (!type.empty() && !is_alike(type, "application/json"))
    return http_error(415, "the Content-Type is " + cut(type) + "; expected application/json");
  const Reads reads = predictor_.reads_images()  ? Reads::images
                      : predictor_.tags_tokens() ? Reads::words
                                                 : Reads::texts;
  PlainRequest plain = read_plain(request.body, reads, most_inputs_);
  if (plain.model && *plain.model != name_) return no_model(*plain.model, name_);
  if (plain.version && *plain.version != kVersion) return no_version(*plain.version, name_);
  if (auto reply = unsupported(plain.inputs)) return *reply;
  Prediction prediction;
  if (!plain.names.empty() || !plain.inputs.tensors.empty()) prediction = predicted(predictor_, plain.inputs);
  for (std::size_t i = plain.names.size(); i < prediction.size(); ++i)
    plain.names.emplace_back("row " + std::to_string(i));
  OrderedJson rows = prediction_rows(predictor_, prediction, plain.names, 0, plain.options);
  return ok(
      {{"model", name_}, {"version", kVersion}, {"backend", predictor_.backend()}, {"predictions", std::move(rows)}});
}

}  // namespace hydrant
