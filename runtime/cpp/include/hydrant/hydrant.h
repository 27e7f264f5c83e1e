// Predicting with a hydrant bundle from C++17, without Python.
//
//   #include <hydrant/hydrant.h>
//
//   hydrant::Predictor predictor("out/");                        // checks digests, picks a backend
//   hydrant::Prediction p = predictor.predict(hydrant::read_tensors("x.npz"));
//   for (std::size_t i = 0; i < p.size(); ++i)
//     std::cout << predictor.labels()[p.label[i]] << ' ' << p.confidence[i] << ' ' << p.mutual_information[i] << '\n';
//
// Images: predictor.predict_images({"cat.jpg", "dog.png"}). Everything that fails throws a hydrant::Error whose text
// says what was found, what was expected and what to do.
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
// ├── InputError     a file, image, tensor or option given by the user
// ├── BundleError    a bundle that is missing, incomplete, altered or hostile
// └── BackendError   a backend that is unknown or cannot run here
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

// A text, or a pair of texts; or, for a model that tags tokens, a text as a list of its words.
struct Text {
  std::string text;
  std::optional<std::string> pair;
  std::optional<std::vector<std::string>> words = std::nullopt;  // in the place of `text`
};

// One picture of 8 bits per channel.
struct Image {
  int height = 0;
  int width = 0;
  int channels = 3;                  // 1 (grey) or 3 (red, green, blue)
  std::vector<std::uint8_t> pixels;  // [height, width, channels]
};

// What a model answers and how sure it is, for B inputs; the same fields as `hydrant.Prediction` in Python. A
// classifier leaves `score` and what follows it empty; a model of one output all from `probabilities` to `energy`. A
// multi-label model has `assigned` and what follows, in place of `label`, `confidence` and `disagreement`; its
// entropies, mutual information and energy are sums over the labels.
//
// A model that tags tokens gives what a classifier gives, for each token: every array has an axis T behind B
// (`probabilities` [B, T, C], `label` and the scores [B, T], `member_probabilities` [B, M, T, C]), and `mask` says
// which tokens are real. At the others stands NaN, and −1 for the label.
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
  std::optional<std::vector<float>> energy;    // [B], nats: −mean log Σ exp z; empty from a graph of hydrant 0.1
  std::optional<std::vector<float>> distance;  // [B], of the features from the training data; empty until fitted
  std::optional<std::vector<bool>> abstain;    // [B]; empty without an abstention threshold
  std::optional<std::vector<bool>> out_of_distribution;    // [B]; empty without a threshold for that
  std::optional<std::vector<float>> member_probabilities;  // [B, M, C]; empty where the graph does not give them
  std::optional<std::vector<bool>> prediction_set;         // [B, C]; empty where no sets were calibrated

  std::vector<float> score;                         // [B], mean of the members' scores
  std::vector<float> score_variance;                // [B], ≥ 0, of the members' scores around it
  std::optional<std::vector<float>> interval_low;   // [B]; empty where no intervals were calibrated
  std::optional<std::vector<float>> interval_high;  // [B]; likewise
  std::optional<std::vector<float>> member_scores;  // [B, M]; empty where the graph does not give them

  std::optional<std::vector<bool>> assigned;    // [B, C], labels whose probability lies above their threshold
  std::vector<float> label_entropy;             // [B, C], nats: total uncertainty of each label
  std::vector<float> label_mutual_information;  // [B, C], nats, ≥ 0: its epistemic part

  std::size_t tokens = 0;                 // T of a model that tags tokens; otherwise 0
  std::optional<std::vector<bool>> mask;  // [B, T], of such a model: no padding
  // Of texts, as opposed to ready tensors: [B, T], index of the word that each token belongs to, −1 for none; and
  // [B, T, 2], its first character and the one behind its last, of words given as a list in these joined by spaces.
  std::optional<std::vector<std::int64_t>> words, offsets;

  std::size_t size() const {  // B
    return (score.empty() ? predictive_entropy.size() : score.size()) / (tokens == 0 ? 1 : tokens);
  }
};

// What a word takes of its tokens: the first, the mean of their probabilities and scores, or the most confident one.
enum class Aggregation { first, mean, max };

// The words of one text, W of them.
struct Words {
  std::vector<std::int64_t> index;       // [W], of each in the text; one that the model did not read is left out
  std::vector<std::int64_t> start, end;  // [W], its first character, and the one behind its last, as of the offsets
  Prediction prediction;                 // what is said of each, as a classifier says it; its first axis is W
};

// Words of one text that have tags of one type, one behind the other, such as a named entity. A span is as sure as its
// least sure word, and lies beyond a threshold where a word of it does.
struct Span {
  std::string label;                                 // the type, without the prefix of a tag ("PER" of "B-PER")
  std::int64_t start = 0, end = 0;                   // its first character, and the one behind its last
  std::int64_t first_word = 0, last_word = 0;        // index in the text
  float confidence = 0;                              // the least of its words; of what follows the largest
  float predictive_entropy = 0;                      // nats
  float expected_entropy = 0;                        // nats
  float mutual_information = 0;                      // nats
  float disagreement = 0;                            // share of members
  std::optional<float> energy, distance;             // empty where the graph gives none
  std::optional<bool> abstain, out_of_distribution;  // empty without a threshold
};

// How a bundle is opened.
struct Options {
  std::string backend = "auto";            // "auto", or one of `backend_names()`
  std::optional<std::string> precision;    // "fp32", "fp16", "bf16" or "int8"; empty for the backend's choice
  std::optional<int> threads;              // within one run; empty for the backend's default
  std::size_t batch_size = 32;             // most inputs per run; memory grows with it
  std::filesystem::path provider_library;  // plug-in of ONNX Runtime that runs "tensorrt-rtx" without an engine
  std::filesystem::path trust;             // PEM file: public key or issuers that the bundle must be signed by; or none
};

// A backend that was skipped, and why.
struct Fallback {
  std::string backend;
  std::string reason;
};

// Predicts with one bundle on one backend, and frees both when it is destroyed. Every method is const and may be called
// from many threads at once; no call may outlast the predictor. One that was moved from throws BackendError.
class Predictor {
 public:
  // Opens a bundle. Throws BundleError: missing, altered or malformed; BackendError: unknown, or none can run;
  // InputError: an option out of range.
  explicit Predictor(const std::filesystem::path& bundle, Options options = {});
  ~Predictor();
  Predictor(Predictor&&) noexcept;
  Predictor& operator=(Predictor&&) noexcept;

  // Predicts ready tensors; `token_type_ids` may be left out (zeros).
  // Throws InputError: a name, shape, type or value that the model cannot take; BackendError: the backend failed.
  Prediction predict(const Tensors& inputs) const;
  // The same for a model with one input, `pixel_values` [B, channels, height, width].
  Prediction predict(const Tensor& input) const;
  // Predicts texts, by the bundle's tokenizer.onnx and the library of ONNX Runtime's extensions, which the variable
  // ORTEXTENSIONS_LIBRARY names. Throws as above; messages name an input by its index.
  Prediction predict_texts(const std::vector<Text>& texts, std::size_t first = 0) const;
  // The words of every text of this predictor's prediction of tokens, with the decisions of its thresholds.
  // Throws InputError: a prediction of whole inputs, or of ready tensors, whose words are not known.
  std::vector<Words> words(const Prediction& prediction, Aggregation aggregation = Aggregation::first) const;
  // Their spans, read as seqeval does in its default mode. Throws as above.
  std::vector<std::vector<Span>> spans(const Prediction& prediction,
                                       Aggregation aggregation = Aggregation::first) const;
  // The tensors that texts become.
  Tensors prepare_texts(const std::vector<Text>& texts, std::size_t first = 0) const;
  // Predicts pictures, prepared by the bundle's own preprocessing. Throws as above; messages name an input by its
  // index.
  Prediction predict_images(const std::vector<Image>& images, std::size_t first = 0) const;
  // The same for an array of pictures, as `as_images` reads it; one at a time is copied.
  Prediction predict_images(const Tensor& array, std::size_t first = 0) const;
  // The same for JPEG and PNG files, of which one at a time is decoded.
  Prediction predict_images(const std::vector<std::filesystem::path>& files, std::size_t first = 0) const;
  Prediction predict_images(std::initializer_list<std::filesystem::path> files, std::size_t first = 0) const;
  // The same for the bytes of such files.
  Prediction predict_encoded_images(const std::vector<std::string>& files, std::size_t first = 0) const;

  // The tensors that pictures become: `pixel_values` [B, channels, height, width].
  Tensors prepare(const std::vector<Image>& images, std::size_t first = 0) const;

  const std::vector<std::string>& labels() const;  // class names in class order; or the one name of a score
  const std::string& backend() const;              // name of the one that runs
  const std::string& precision() const;            // of weights and activations
  const std::vector<Fallback>& fallbacks() const;  // backends that were skipped
  const std::string& family() const;               // "bert", "vit", …
  std::size_t members() const;                     // M
  bool reads_images() const;                       // otherwise token ids
  bool reads_texts() const;                        // has a tokenizer, and the library for it was found
  bool prepares_images() const;                    // reads images, and holds their preprocessing
  bool gives_scores() const;                       // otherwise classes or labels
  bool gives_labels() const;                       // any of several, each by itself
  bool tags_tokens() const;                        // a class for each token

  // A synthetic batch without padding: token ids [batch, sequence], or standard normal pixels. For measuring only.
  Tensors synthetic(std::size_t batch, std::size_t sequence, std::uint64_t seed) const;
  std::size_t longest() const;  // most tokens of an input; for images their fixed number
  std::size_t chunk(std::size_t batch, std::size_t sequence) const;  // most inputs of a batch that run at once
  // The backend alone, on one whole batch. For measuring only: names, types and values are not checked.
  void run(const Tensors& inputs) const;

 private:
  struct State;
  const State& state() const;
  std::unique_ptr<const State> state_;
};

// Every backend, in the order in which "auto" tries them.
const std::vector<std::string>& backend_names();

// Why a backend cannot run on this machine, or nothing if it can; no bundle is needed.
std::optional<std::string> why_unavailable(const std::string& backend, const Options& options = {});

// Version of ONNX Runtime that is loaded, such as "1.31.1".
std::string onnxruntime_version();

// Reads a .npz file (its arrays by name), or a .npy file (one array under the name "").
// Throws InputError: unreadable, malformed, or of a type or order that is not supported.
Tensors read_tensors(const std::filesystem::path& file);

// The pictures in an array of uint8 [height, width] or [height, width, 3], or a stack of either. Throws InputError
// otherwise, and for what may be one picture or several, such as [3, height, width].
std::vector<Image> as_images(const Tensor& tensor);

// Reads a JPEG or PNG file as Pillow does: orientation applied, alpha dropped.
// Throws InputError: unreadable, damaged, or of a kind that is not supported.
Image read_image(const std::filesystem::path& file, int channels = 3);

// The same for the bytes of such a file; `name` stands for it in messages.
Image decode_image(const std::string& bytes, const std::string& name, int channels = 3);

// This library's version, that of the Python package.
const char* version();

}  // namespace hydrant
