#include "architecture.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fields.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

constexpr std::int64_t kMax = INT32_MAX;
constexpr const char* kFuseAgain = "make the bundle again with `hydrant fuse`";

// A whole number: its key, field, and minimum for text and image models.
struct Number {
  const char* key;
  std::int64_t Architecture::* field;
  std::int64_t min_text, min_image;
};

constexpr Number kNumbers[] = {
    {"classes", &Architecture::classes, 1, 1},
    {"vocabulary", &Architecture::vocabulary, 1, 0},
    {"positions", &Architecture::positions, 1, 0},
    {"token_types", &Architecture::token_types, 0, 0},
    {"padding_token", &Architecture::padding_token, 0, 0},
    {"image_height", &Architecture::image_height, 0, 1},
    {"image_width", &Architecture::image_width, 0, 1},
    {"channels", &Architecture::channels, 0, 1},
    {"layers", &Architecture::layers, 1, 1},
    {"patch_height", &Architecture::patch_height, 0, 1},
    {"patch_width", &Architecture::patch_width, 0, 1},
    {"prefix_tokens", &Architecture::prefix_tokens, 0, 0},
};

constexpr std::size_t kTracedNumbers = 8;  // the first ones, which traced models have too

// Keys of traced models that a runtime does not read.
constexpr const char* kTracedKeys[] = {"family",     "model_class", "form",          "modality", "width",
                                       "classifier", "inputs",      "blocks",        "task",     "score_activation",
                                       "shortest",   "spectrogram", "hidden_states", "traced"};

// Keys that a runtime does not read.
constexpr const char* kUnusedKeys[][6] = {
    {"family", "modality", "task", "score_activation", "heads", "head_width"},
    {"width", "mlp_width", "activation", "pre_norm", "norm_eps", "qkv_bias"},
    {"pooling", "hidden_dropout", "attention_dropout", "classifier_dropout", "position_padding", "patch_bias"},
    {"patch_norm", "pooled_width", "token_pooling", "final_norm", "embedding_width", "registers"},
    {"rotary", "windows", "gated_mlp", "bias_free", "first_norm", "pooler_norm"}};

std::vector<Field> fields_of(bool image, bool traced) {
  std::vector<Field> fields;
  for (const Number& number : kNumbers) {
    if (traced && fields.size() == kTracedNumbers) break;
    const std::int64_t min = image ? number.min_image : number.min_text;
    fields.push_back({number.key, Is::whole, true, static_cast<double>(min), static_cast<double>(kMax)});
  }
  if (traced) {
    for (const char* key : kTracedKeys) fields.push_back({key, Is::any});
    return fields;
  }
  for (const auto& row : kUnusedKeys)
    for (const char* key : row) fields.push_back({key, Is::any, false});
  return fields;
}

// Sets a traced model's token types. Throws BundleError: a schema or inputs that C++ cannot run.
void check_traced(const Json& data, Architecture& architecture) {
  check_schema(data["traced"], "the bundle's config.json");
  const Json ids = {"input_ids", "attention_mask"}, types = {"input_ids", "attention_mask", "token_type_ids"};
  const Json& inputs = data["inputs"];
  const bool reads_types = inputs == types;
  if (architecture.image ? inputs != Json{"pixel_values"} : inputs != ids && !reads_types) {
    throw BundleError("the bundle's model reads " + inputs.dump() + ", which C++ cannot give; expected " +
                      "pixel_values, or input_ids and attention_mask; use hydrant predict or hydrant.load");
  }
  architecture.token_types = reads_types ? std::max<std::int64_t>(architecture.token_types, 2) : 0;
}

}  // namespace

Architecture Architecture::of(const Bundle& bundle) {
  const Json data = bundle.read_json("config.json");
  const Json& task = member(data, "task");
  constexpr const char* kTasks[] = {"classification", "score", "tokens", "multi_label"};
  const auto is = [&](const char* name) { return task == name; };
  if (!task.is_null() && std::none_of(std::begin(kTasks), std::end(kTasks), is)) {
    throw BundleError("the bundle's config.json has task " + shown(task) + "; expected classification, score, tokens " +
                      "or multi_label; use the version of hydrant that made the bundle");
  }
  const bool traced = data.is_object() && data.contains("traced");
  const auto malformed = [&](const char* key, const std::string& expected) {
    return BundleError(std::string("the bundle's config.json has ") + key + " = " + shown(member(data, key)) +
                       "; expected " + expected + "; " + kFuseAgain);
  };
  Architecture architecture;
  architecture.traced = traced;
  architecture.image = member(data, "modality") == "image";
  if (!architecture.image && member(data, "modality") != "text") throw malformed("modality", "text or image");
  const std::vector<Field> fields = fields_of(architecture.image, traced);
  check_fields(data, fields, "the bundle's config.json", kFuseAgain);
  for (std::size_t place = 0; place < (traced ? kTracedNumbers : std::size(kNumbers)); ++place)
    architecture.*kNumbers[place].field = data[kNumbers[place].key].get<std::int64_t>();
  architecture.score = task == "score";
  architecture.multi_label = task == "multi_label";
  architecture.tokens = task == "tokens";
  if (architecture.score != (architecture.classes == 1))
    throw malformed("classes", "1 for a score, otherwise 2 or more");
  if (traced) {
    check_traced(data, architecture);
    return architecture;
  }
  if (architecture.tokens) {
    constexpr const char* kDense[] = {"none", "tanh", "relu", "gelu"};
    const auto is_pooling = [&](const char* name) { return member(data, "pooling") == name; };
    if (architecture.image) throw malformed("modality", "text of task tokens");
    if (std::none_of(std::begin(kDense), std::end(kDense), is_pooling))
      throw malformed("pooling", "none, tanh, relu, gelu of task tokens");
    if (data.contains("token_pooling") && data["token_pooling"] != "first")
      throw malformed("token_pooling", "first of task tokens");
  }
  if (const Json& padding = member(data, "position_padding"); !padding.is_null()) {
    architecture.position_padding = integer(padding, 0, kMax);
    if (!architecture.position_padding) throw malformed("position_padding", "a token id or null");
  }
  if (architecture.max_sequence() < 1) throw malformed("positions", "room for at least one token");
  return architecture;
}

std::vector<std::string> Architecture::input_names() const {
  if (image) return {"pixel_values"};
  if (token_types > 1) return {"input_ids", "attention_mask", "token_type_ids"};
  return {"input_ids", "attention_mask"};
}

std::int64_t Architecture::max_sequence() const {
  if (image && traced) return 0;
  if (image) return prefix_tokens + (image_height / patch_height) * (image_width / patch_width);
  return positions - (position_padding ? *position_padding + 1 : 0);
}

void Architecture::limit(const std::string& backend, std::size_t longest) {
  const std::int64_t excess = max_sequence() - static_cast<std::int64_t>(longest);
  if (image || excess <= 0) return;
  positions -= excess;
  reader = "this bundle's " + backend + " engine takes";
}

}  // namespace hydrant
