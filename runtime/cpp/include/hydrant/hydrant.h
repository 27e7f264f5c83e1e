// Predictions from a hydrant bundle in C++17, without Python.
//
//   #include <hydrant/hydrant.h>
//
//   hydrant::Predictor predictor("out/");                        // checks digests, picks a backend
//   hydrant::Prediction p = predictor.predict(hydrant::read_tensors("x.npz"));
//   for (std::size_t i = 0; i < p.size(); ++i)
//     std::cout << predictor.labels()[p.label[i]] << ' ' << p.confidence[i] << ' ' << p.mutual_information[i] << '\n';
//
// Images: predictor.predict_images({"cat.jpg", "dog.png"}). Every failure throws a hydrant::Error whose text
// names the problem, the expected value and the fix.
//
// Axes: batch B, classes C, members M, tokens T. Entropies are in nats. Arrays are row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace hydrant {

// Error
// ├── InputError     an invalid file, image, tensor or option
// ├── BundleError    a missing, incomplete, altered or hostile bundle
// └── BackendError   an unknown backend, or one that cannot run here
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};
class InputError : public Error {
  using Error::Error;
};
class BundleError : public Error {
  using Error::Error;
};
class BackendError : public Error {
  using Error::Error;
};

// An array in row-major order: pixels and features as float, token ids and masks as int64, raw images as uint8.
struct Tensor {
  std::vector<std::int64_t> shape;
  std::variant<std::vector<float>, std::vector<std::int64_t>, std::vector<std::uint8_t>> data;
};

// A model's inputs by name: `input_ids`, `attention_mask` and maybe `token_type_ids` [B, T], or `pixel_values`
// [B, channels, height, width].
using Tensors = std::map<std::string, Tensor>;

// A text or a pair of texts. For token classification, a text may be a list of words.
struct Text {
  std::string text;
  std::optional<std::string> pair;
  std::optional<std::vector<std::string>> words = std::nullopt;  // replaces `text`
};

// One image with 8 bits per channel.
struct Image {
  int height = 0;
  int width = 0;
  int channels = 3;                  // 1 (grey) or 3 (red, green, blue)
  std::vector<std::uint8_t> pixels;  // [height, width, channels]
};

// Predictions with their uncertainty for B inputs; the same fields as `hydrant.Prediction` in Python.
// Classification leaves `score` and later fields empty. Regression leaves `probabilities` to `energy` empty.
// Multi-label models fill `assigned` and the label fields instead of `label`, `confidence` and `disagreement`; their
// entropies, mutual information and energy are sums over the labels.
// Token classification adds an axis T after B: `probabilities` [B, T, C], `label` and the scores [B, T],
// `member_probabilities` [B, M, T, C]. Where `mask` is false, values are NaN and labels −1.
struct Prediction {
  std::size_t classes = 0;                     // C
  std::size_t members = 0;                     // M
  std::vector<float> probabilities;            // [B, C], mean of the members' softmax outputs, or sigmoids
  std::vector<std::int64_t> label;             // [B], argmax of `probabilities`
  std::vector<float> confidence;               // [B], max of `probabilities`
  std::vector<float> predictive_entropy;       // [B], nats: total uncertainty
  std::vector<float> expected_entropy;         // [B], nats: aleatoric part
  std::vector<float> mutual_information;       // [B], nats, ≥ 0: epistemic part, the difference of the two
  std::vector<float> disagreement;             // [B], share of members whose argmax differs from the ensemble's
  std::optional<std::vector<float>> energy;    // [B], nats: −mean log Σ exp z; empty for graphs of hydrant 0.1
  std::optional<std::vector<float>> distance;  // [B], distance to the training data; empty until fitted
  // [B], standardised log number of tokens, negative: shorter; empty unless the distance depends on the length
  std::optional<std::vector<float>> length_deviation;
  std::optional<std::vector<bool>> abstain;                // [B]; empty without an abstention threshold
  std::optional<std::vector<bool>> out_of_distribution;    // [B]; empty without an OOD threshold
  std::optional<std::vector<float>> member_probabilities;  // [B, M, C]; empty unless the graph returns them
  std::optional<std::vector<bool>> prediction_set;         // [B, C]; empty unless calibrated

  std::vector<float> score;                         // [B], mean of the members' scores
  std::vector<float> score_variance;                // [B], ≥ 0, variance of the members' scores
  std::optional<std::vector<float>> interval_low;   // [B]; empty unless calibrated
  std::optional<std::vector<float>> interval_high;  // [B]; empty unless calibrated
  std::optional<std::vector<float>> member_scores;  // [B, M]; empty unless the graph returns them

  std::optional<std::vector<bool>> assigned;    // [B, C], labels with a probability above their threshold
  std::vector<float> label_entropy;             // [B, C], nats: total uncertainty of each label
  std::vector<float> label_mutual_information;  // [B, C], nats, ≥ 0: its epistemic part

  std::size_t tokens = 0;                 // T for token classification; otherwise 0
  std::optional<std::vector<bool>> mask;  // [B, T], false at padding; empty without tokens
  // Set for texts, empty for ready tensors: index of each token's word or −1, [B, T]; start and end characters of each
  // token, [B, T, 2]. Lists of words are joined by spaces.
  std::optional<std::vector<std::int64_t>> words, offsets;

  // Logits of the ensemble's `probabilities`, as other libraries expect them of a model: their softmax (multi-label:
  // sigmoid) gives the probabilities back. [B, C], for tokens [B, T, C]: log p, multi-label: log p − log(1 − p), with p
  // clipped to positive float32 below 1. Regression: the score, [B, 1].
  std::vector<float> logits() const;

  std::size_t size() const {  // B
    return (score.empty() ? predictive_entropy.size() : score.size()) / (tokens == 0 ? 1 : tokens);
  }
};

// How token predictions are aggregated into words: the first token, their mean, or the most confident token.
enum class Aggregation { first, mean, max };

// The words of one text, W of them.
struct Words {
  std::vector<std::int64_t> index;       // [W], position in the text; truncated words are left out
  std::vector<std::int64_t> start, end;  // [W], start and end characters, as in the offsets
  Prediction prediction;                 // as in classification, with W instead of B
};

// Consecutive words of one text with tags of one type, such as a named entity. Its confidence is that of its least
// confident word; it passes a threshold if one of its words does.
struct Span {
  std::string label;                                 // the type, without the prefix of a tag ("PER" of "B-PER")
  std::int64_t start = 0, end = 0;                   // start and end characters
  std::int64_t first_word = 0, last_word = 0;        // index in the text
  float confidence = 0;                              // lowest of its words; the scores below: largest
  float predictive_entropy = 0;                      // nats
  float expected_entropy = 0;                        // nats
  float mutual_information = 0;                      // nats
  float disagreement = 0;                            // share of members
  std::optional<float> energy, distance;             // empty unless the graph returns them
  std::optional<bool> abstain, out_of_distribution;  // empty without a threshold
};

// Options for opening a bundle.
struct Options {
  std::string backend = "auto";            // "auto", or one of `backend_names()`
  std::optional<std::string> precision;    // "fp32", "fp16", "bf16" or "int8"; empty for the backend's choice
  std::optional<int> threads;              // per run; empty for the backend's default
  std::size_t batch_size = 32;             // maximum inputs per run; memory grows with it
  std::filesystem::path provider_library;  // ONNX Runtime plug-in for "tensorrt-rtx" without an engine
  std::filesystem::path trust;             // PEM file with the signer's public key or issuers; empty: unchecked
};

// A skipped backend and the reason.
struct Fallback {
  std::string backend;
  std::string reason;
};

// Predictions from one bundle on one backend. Methods are const and thread-safe; the predictor must outlive every call.
// A moved-from predictor throws BackendError.
class Predictor {
 public:
  // Throws BundleError: missing, altered or malformed; BackendError: unknown, or none can run; InputError: an option is
  // out of range.
  explicit Predictor(const std::filesystem::path& bundle, Options options = {});
  ~Predictor();
  Predictor(Predictor&&) noexcept;
  Predictor& operator=(Predictor&&) noexcept;

  // Predicts ready tensors; `token_type_ids` defaults to zeros.
  // Throws InputError: an invalid name, shape, type or value; BackendError: the backend failed.
  Prediction predict(const Tensors& inputs) const;
  // The same for a model with one input, `pixel_values` [B, channels, height, width].
  Prediction predict(const Tensor& input) const;
  // Predicts texts with the bundle's tokenizer.onnx and ONNX Runtime's extensions library, named by the variable
  // ORTEXTENSIONS_LIBRARY. Throws as above; messages count inputs from `first`.
  Prediction predict_texts(const std::vector<Text>& texts, std::size_t first = 0) const;
  // Aggregates this predictor's token predictions into words, and decides for each word.
  // Throws InputError: not a token prediction, or made from ready tensors, which have no words.
  std::vector<Words> words(const Prediction& prediction, Aggregation aggregation = Aggregation::first) const;
  // The spans of those words, as in seqeval's default mode. Throws as above.
  std::vector<std::vector<Span>> spans(const Prediction& prediction,
                                       Aggregation aggregation = Aggregation::first) const;
  // Tokenized texts as model inputs.
  Tensors prepare_texts(const std::vector<Text>& texts, std::size_t first = 0) const;
  // Predicts images with the bundle's preprocessing. Throws as above; messages count inputs from `first`.
  Prediction predict_images(const std::vector<Image>& images, std::size_t first = 0) const;
  // The same for an array of images, as `as_images` reads it; images are copied one at a time.
  Prediction predict_images(const Tensor& array, std::size_t first = 0) const;
  // The same for JPEG and PNG files, decoded one at a time.
  Prediction predict_images(const std::vector<std::filesystem::path>& files, std::size_t first = 0) const;
  Prediction predict_images(std::initializer_list<std::filesystem::path> files, std::size_t first = 0) const;
  // The same for the bytes of such files.
  Prediction predict_encoded_images(const std::vector<std::string>& files, std::size_t first = 0) const;

  // Preprocessed images: `pixel_values` [B, channels, height, width].
  Tensors prepare(const std::vector<Image>& images, std::size_t first = 0) const;

  const std::vector<std::string>& labels() const;  // class names in order; for regression one name
  const std::string& backend() const;              // name of the running backend
  const std::string& precision() const;            // of weights and activations
  const std::vector<Fallback>& fallbacks() const;  // skipped backends
  const std::string& family() const;               // "bert", "vit", …
  std::size_t members() const;                     // M
  bool reads_images() const;                       // false: token ids
  bool reads_texts() const;                        // has a tokenizer and the library for it
  bool prepares_images() const;                    // reads images and has an image processor
  bool gives_scores() const;                       // regression
  bool gives_labels() const;                       // multi-label
  bool tags_tokens() const;                        // token classification

  // A synthetic batch without padding: token ids [batch, sequence], or standard normal pixels. For measurements.
  Tensors synthetic(std::size_t batch, std::size_t sequence, std::uint64_t seed) const;
  std::size_t longest() const;  // maximum tokens of an input; for images the fixed number
  std::size_t chunk(std::size_t batch, std::size_t sequence) const;  // maximum inputs per run
  // Runs the backend alone on one whole batch, without checking names, types and values. For measurements.
  void run(const Tensors& inputs) const;

 private:
  struct State;
  const State& state() const;
  std::unique_ptr<const State> state_;
};

// All backends, in the order in which "auto" tries them.
const std::vector<std::string>& backend_names();

// The reason why a backend cannot run on this machine; nothing if it can. Needs no bundle.
std::optional<std::string> why_unavailable(const std::string& backend, const Options& options = {});

// Version of the loaded ONNX Runtime, such as "1.31.1".
std::string onnxruntime_version();

// Reads a .npz file (its arrays by name), or a .npy file (one array under the name "").
// Throws InputError: unreadable, malformed, or an unsupported type or order.
Tensors read_tensors(const std::filesystem::path& file);

// The images in an array of uint8 [height, width] or [height, width, 3], or a stack of either.
// Throws InputError: another type or shape, or an ambiguous one such as [3, height, width].
std::vector<Image> as_images(const Tensor& tensor);

// Reads a JPEG or PNG file as Pillow does: orientation applied, alpha dropped.
// Throws InputError: unreadable, damaged or unsupported.
Image read_image(const std::filesystem::path& file, int channels = 3);

// The same for the bytes of such a file; messages use `name`.
Image decode_image(const std::string& bytes, const std::string& name, int channels = 3);

// This library's version, that of the Python package.
const char* version();

}  // namespace hydrant
