#include "tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include "messages.h"

namespace hydrant {
namespace {

constexpr const char* kGraph = "tokenizer.onnx";
constexpr const char *kWords = "words", *kOffsets = "offsets";
constexpr const char* kVariable = "ORTEXTENSIONS_LIBRARY";
constexpr const char* kIds =
    "or use token ids from Python: numpy.savez(\"x.npz\", **tokenizer(texts, padding=True, return_tensors=\"np\"))";

// As Python's str.isspace.
bool is_space(std::int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

void check_text(const std::string& text, const std::string& empty, std::size_t index) {
  const std::string where = "input " + std::to_string(index);
  bool blank = true;
  for (std::size_t place = 0; place < text.size();) {
    const std::int32_t character = next_character(text, place);
    if (character < 0) throw InputError(where + ", " + cut(text) + ", is not UTF-8; decode the text again");
    if (character == 0)
      throw InputError(where + ", " + cut(text) + ", has the character NUL, which tokenizer.onnx rejects; remove it");
    blank = blank && is_space(character);
  }
  if (blank) throw InputError(where + " is " + empty + "; expected at least one word");
}

// Characters of UTF-8.
std::int64_t length_of(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; });
}

// Joins words to one text. Throws InputError: no words, or an empty one.
std::string joined(const std::vector<std::string>& words, std::size_t index) {
  const std::string where = "input " + std::to_string(index);
  if (words.empty()) throw InputError(where + " is an empty list; expected at least one word");
  for (const std::string& word : words) check_text(word, "a list with an empty word", index);
  return join(words, " ");
}

// Replaces the tokenizer's words by those of the list: each token belongs to the word around it.
void regroup(std::vector<std::int64_t>& owners, const std::vector<std::int64_t>& offsets,
             const std::vector<std::string>& words) {
  std::vector<std::int64_t> ends{0};  // of each word, with its space
  for (const std::string& word : words) ends.push_back(ends.back() + length_of(word) + 1);
  for (std::size_t token = 0; token < owners.size(); ++token) {
    if (owners[token] < 0) continue;
    owners[token] = std::upper_bound(ends.begin(), ends.end(), offsets[2 * token]) - ends.begin() - 1;
  }
}

// Values per token of an output.
std::size_t width_of(const std::string& name) { return name == kOffsets ? 2 : 1; }

std::string library_name() {
  const char* named = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  return named == nullptr || *named == '\0' ? "libortextensions.so" : named;
}

// The source of tokenizer.onnx, as `hydrant export` records it.
std::string source_of(const Bundle& bundle) {
  std::string source = bundle.digest("processor/tokenizer.json");
  const std::string config = "processor/tokenizer_config.json";
  return bundle.has(config) ? source + " " + bundle.digest(config) : source;
}

}  // namespace

Tokenizer::Tokenizer(const Bundle& bundle, const Architecture& architecture)
    : names_(architecture.input_names()),
      tags_(architecture.tokens),
      longest_(architecture.max_sequence()),
      reader_(architecture.reader),
      padding_(architecture.padding_token) {
  if (tags_) names_.insert(names_.end(), {kWords, kOffsets});
  const std::string path = bundle.path().string();
  if (!bundle.has(kGraph)) {
    throw InputError(
        concat("bundle ", path, " has no ", kGraph, "; make it with `hydrant export --tokenizer`, ", kIds));
  }
  const std::filesystem::path graph = bundle.file(kGraph);
  try {
    session_ = std::make_unique<const TextSession>(graph, library_name());
  } catch (const BackendError& error) {
    throw InputError(concat("texts need ONNX Runtime's extensions library: ", error.what(), "; name its file in ",
                            kVariable, " (libortextensions.so of Microsoft.ML.OnnxRuntime.Extensions), ", kIds));
  }
  if (session_->metadata("hydrant.tokenizer") != source_of(bundle)) {
    throw BundleError(concat(graph.string(), " was made from another tokenizer than processor/ holds; make it again ",
                             "with `hydrant export ", path, " --tokenizer`"));
  }
  const std::string unsupported = session_->metadata("hydrant.unread");
  for (std::size_t start = 0; start < unsupported.size();) {
    const std::size_t end = std::min(unsupported.find('\n', start), unsupported.size());
    if (end > start) unsupported_.push_back(unsupported.substr(start, end - start));
    start = end + 1;
  }
}

std::map<std::string, std::vector<std::int64_t>> Tokenizer::encode_one(const Text& text, std::size_t index) const {
  if ((tags_ && text.pair) || (!tags_ && text.words)) {
    throw InputError(concat("input ", index,
                            tags_ ? " is a pair of texts; token classification reads a text, or a list of words"
                                  : " is a list of words, which is for token classification; expected a text"));
  }
  std::vector<std::string> parts{text.words ? joined(*text.words, index) : text.text};
  check_text(parts[0], text.pair ? "a pair whose first text is empty" : "an empty text", index);
  if (text.pair) {
    check_text(*text.pair, "a pair whose second text is empty", index);
    parts.push_back(*text.pair);
  }
  for (const std::string& part : parts) {
    for (const std::string& token : unsupported_) {
      if (part.find(token) != std::string::npos)
        throw InputError(concat("input ", index, " has the special token ", cut(token),
                                ", which tokenizer.onnx does not support; remove it, or use Python"));
    }
  }
  auto outputs = session_->run(parts);
  const std::vector<std::int64_t>& counts = outputs["counts"];
  if (counts.size() != parts.size() ||
      std::any_of(counts.begin(), counts.end(), [](auto count) { return count < 1; })) {
    throw InputError(concat("input ", index, ", ", cut(parts[0]), ", has no token that the model knows",
                            text.pair ? " in one of its texts" : "", "; expected readable text"));
  }
  for (const std::string& name : names_) {
    if (outputs[name].empty() || outputs[name].size() != outputs[names_.front()].size() * width_of(name))
      throw BackendError("tokenizer.onnx returns no " + name + "; make it again with `hydrant export --tokenizer`");
  }
  if (text.words) regroup(outputs[kWords], outputs[kOffsets], *text.words);
  return outputs;
}

Tensors Tokenizer::encode(const std::vector<Text>& texts, std::size_t first, std::size_t last,
                          std::size_t index) const {
  std::vector<std::map<std::string, std::vector<std::int64_t>>> rows;
  std::size_t longest = 0;
  for (std::size_t i = first; i < last; ++i) {
    rows.push_back(encode_one(texts[i], index + i));
    const std::size_t tokens = rows.back()[names_.front()].size();
    if (static_cast<std::int64_t>(tokens) > longest_) {
      throw InputError(concat("input ", index + i, " has ", tokens, " tokens; ", reader_, " at most ", longest_,
                              ": shorten it, or build an engine for longer texts (`hydrant build --sequence`)"));
    }
    longest = std::max(longest, tokens);
  }
  Tensors tensors;
  for (const std::string& name : names_) {
    const std::size_t width = longest * width_of(name);
    const std::int64_t blank = name == kWords || name == kOffsets ? -1 : name == "input_ids" ? padding_ : 0;
    std::vector<std::int64_t> values(rows.size() * width, blank);
    for (std::size_t i = 0; i < rows.size(); ++i)
      std::copy(rows[i][name].begin(), rows[i][name].end(), values.begin() + static_cast<std::ptrdiff_t>(i * width));
    std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)};
    if (name == kOffsets) shape.push_back(2);
    tensors[name] = {std::move(shape), std::move(values)};
  }
  return tensors;
}

}  // namespace hydrant
