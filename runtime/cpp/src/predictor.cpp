// The public interface: opening a bundle, and predictions in batches.
#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <random>
#include <thread>

#include "architecture.h"
#include "backend.h"
#include "bundle.h"
#include "calibration.h"
#include "hydrant/hydrant.h"
#include "image.h"
#include "messages.h"
#include "pixels.h"
#include "signature.h"
#include "tensors.h"
#include "tokenizer.h"
#include "words.h"

namespace hydrant {
namespace {

void check_options(const Options& options) {
  const int most = 4 * static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
  if (options.threads && (*options.threads < 1 || *options.threads > most))
    throw InputError(concat("threads is ", *options.threads, "; expected 1 to ", most, ", four for each core"));
  if (options.batch_size < 1) throw InputError("batch_size is 0; expected 1 or more");
}

template <typename Value>
void extend(std::vector<Value>& whole, const std::vector<Value>& part) {
  whole.insert(whole.end(), part.begin(), part.end());
}

// Appends rows, padded with −1 to a width.
void extend_padded(std::vector<std::int64_t>& whole, const Tensor& rows, std::size_t width) {
  const auto& values = std::get<std::vector<std::int64_t>>(rows.data);
  const std::size_t length = values.size() / static_cast<std::size_t>(rows.shape[0]);
  for (auto row = values.begin(); row != values.end(); row += static_cast<std::ptrdiff_t>(length)) {
    whole.insert(whole.end(), row, row + static_cast<std::ptrdiff_t>(length));
    whole.insert(whole.end(), width - length, -1);
  }
}

// Moves out an output with `width` values for each input.
std::vector<float> taken(Outputs& outputs, const std::string& name, std::size_t batch, std::size_t width) {
  std::vector<float>& values = outputs[name];
  if (values.size() == batch * width) return std::move(values);
  throw BackendError(concat("the graph returns ", values.size(), " values of ", name, " for ", batch,
                            " inputs; expected ", batch * width, "; export it again with `hydrant export`"));
}

enum Task : unsigned { kClasses = 1, kLabels = 2, kScores = 4, kAll = 7 };  // tokens: kClasses

// An output of the graph and its field in a prediction; `perhaps`: optional outputs.
struct Field {
  const char* name = nullptr;
  std::vector<float> Prediction::* always = nullptr;
  std::optional<std::vector<float>> Prediction::* perhaps = nullptr;
  unsigned tasks = 0;
  bool by_class = false, by_member = false;

  std::size_t width(const Prediction& p) const { return (by_class ? p.classes : 1) * (by_member ? p.members : 1); }
};

constexpr Field kFields[] = {
    {"probabilities", &Prediction::probabilities, nullptr, kClasses | kLabels, true},
    {"predictive_entropy", &Prediction::predictive_entropy, nullptr, kClasses | kLabels},
    {"expected_entropy", &Prediction::expected_entropy, nullptr, kClasses | kLabels},
    {"mutual_information", &Prediction::mutual_information, nullptr, kClasses | kLabels},
    {"disagreement", &Prediction::disagreement, nullptr, kClasses},
    {"label_entropy", &Prediction::label_entropy, nullptr, kLabels, true},
    {"label_mutual_information", &Prediction::label_mutual_information, nullptr, kLabels, true},
    {"score", &Prediction::score, nullptr, kScores},
    {"score_variance", &Prediction::score_variance, nullptr, kScores},
    {"energy", nullptr, &Prediction::energy, kClasses | kLabels},
    {"distance", nullptr, &Prediction::distance, kAll},
    {"length_deviation", nullptr, &Prediction::length_deviation, kAll},
    {"member_probabilities", nullptr, &Prediction::member_probabilities, kClasses | kLabels, true, true},
    {"member_scores", nullptr, &Prediction::member_scores, kScores, false, true},
};

// Appends the outputs of one batch.
void append(Prediction& prediction, Outputs outputs, std::size_t batch, Task task) {
  for (const Field& field : kFields) {
    if ((field.tasks & task) == 0 || (field.perhaps != nullptr && outputs.count(field.name) == 0)) continue;
    const std::vector<float> values = taken(outputs, field.name, batch, field.width(prediction));
    extend(field.perhaps == nullptr ? prediction.*field.always : (prediction.*field.perhaps).value(), values);
  }
  if (task != kClasses) return;
  const auto classes = static_cast<std::ptrdiff_t>(prediction.classes);
  const auto& all = prediction.probabilities;
  for (auto start = all.end() - static_cast<std::ptrdiff_t>(batch) * classes; start != all.end(); start += classes) {
    const auto best = std::max_element(start, start + classes);
    prediction.label.push_back(std::isnan(*start) ? -1 : best - start);
    prediction.confidence.push_back(*best);
  }
}

// Appends token outputs of one batch; tokens outside `mask` [B, t], and from t to T, become NaN.
void append_tokens(Prediction& prediction, Outputs outputs, const View& mask) {
  const auto batch = static_cast<std::size_t>(mask.shape[0]), length = static_cast<std::size_t>(mask.shape[1]);
  const auto* const marks = std::get<const std::int64_t*>(mask.data);
  const std::size_t most = prediction.tokens;
  for (const Field& field : kFields) {
    const auto output = outputs.find(field.name);
    if (output == outputs.end()) continue;
    const std::size_t members = field.by_member ? prediction.members : 1;
    const std::size_t width = field.by_class ? prediction.classes : 1;
    const std::vector<float> values = taken(outputs, field.name, batch, members * length * width);
    output->second.assign(batch * members * most * width, std::numeric_limits<float>::quiet_NaN());
    for (std::size_t row = 0; row < batch * members; ++row) {
      for (std::size_t token = 0; token < length; ++token) {
        if (marks[row / members * length + token] == 0) continue;
        const auto from = values.begin() + static_cast<std::ptrdiff_t>((row * length + token) * width);
        std::copy_n(from, width, output->second.begin() + static_cast<std::ptrdiff_t>((row * most + token) * width));
      }
    }
  }
  for (std::size_t row = 0; row < batch; ++row) {
    for (std::size_t token = 0; token < most; ++token)
      prediction.mask.value().push_back(token < length && marks[row * length + token] != 0);
  }
  append(prediction, std::move(outputs), batch * most, kClasses);
}

// Throws BundleError: the calibration is for another task.
void check_task(const Calibration& calibration, const Architecture& architecture, const std::string& bundle) {
  const char* excess = nullptr;
  const bool classes = !architecture.score && !architecture.multi_label && !architecture.tokens;
  if (!classes && calibration.conformal) excess = "prediction sets";
  if (!architecture.score && calibration.intervals) excess = "intervals";
  if (!architecture.multi_label && calibration.labels) excess = "thresholds of labels";
  if (excess == nullptr) return;
  const char* task = architecture.score         ? "regression"
                     : architecture.multi_label ? "multi-label classification"
                     : architecture.tokens      ? "token classification"
                                                : "classification";
  throw BundleError(concat("bundle ", bundle, " is for ", task, ", but its calibration.json has ", excess,
                           "; calibrate again with `hydrant calibrate`"));
}

void check_finite(const Outputs& outputs, const std::string& backend) {
  for (const Field& field : kFields) {
    const auto output = outputs.find(field.name);
    const auto finite = [](float value) { return std::isfinite(value); };
    if (field.by_member || output == outputs.end() || std::all_of(output->second.begin(), output->second.end(), finite))
      continue;
    throw BackendError(concat("backend ", backend, " returned values of ", spaced(field.name),
                              " that are not finite; check the inputs, or compare backends with `hydrant verify`"));
  }
}

}  // namespace

struct [[gnu::visibility("hidden")]] Predictor::State {
  Bundle bundle;
  Architecture architecture;
  Options options;
  std::vector<Fallback> fallbacks;
  std::unique_ptr<const Backend> backend;
  Calibration calibration;
  std::optional<ImageProcessor> images;
  mutable std::mutex opening;
  mutable std::unique_ptr<const Tokenizer> opened;

  State(const std::filesystem::path& folder, Options chosen)
      : bundle(Bundle::open(folder)), options(std::move(chosen)) {
    if (!options.trust.empty()) Trust(options.trust).check(bundle);
    architecture = Architecture::of(bundle);
    if (bundle.labels().size() != static_cast<std::size_t>(architecture.classes)) {
      throw BundleError(concat("bundle ", folder.string(), " has ", bundle.labels().size(), " labels for ",
                               architecture.classes, " classes; make it again with `hydrant fuse`"));
    }
    calibration = Calibration::of(bundle);
    check_task(calibration, architecture, folder.string());
    if (architecture.multi_label && !calibration.labels)
      calibration.labels = LabelThresholds{std::vector<float>(bundle.labels().size(), kUnfitted)};
    const bool processor = !bundle.processor().empty();
    if (processor && architecture.image) images.emplace(bundle, architecture);
    check_all_graphs(bundle);
    backend = open_backend(bundle, architecture, options, fallbacks);
    if (const auto longest = backend->longest()) architecture.limit(backend->name(), *longest);
  }

  Task task() const { return architecture.score ? kScores : architecture.multi_label ? kLabels : kClasses; }

  // A prediction without inputs, with all its optional fields.
  Prediction empty_prediction() const {
    Prediction prediction;
    prediction.classes = bundle.labels().size();
    prediction.members = static_cast<std::size_t>(bundle.members());
    if (architecture.tokens) prediction.mask.emplace();
    for (const std::string& name : backend->outputs()) {
      for (const Field& field : kFields)
        if (field.perhaps != nullptr && (field.tasks & task()) != 0 && name == field.name)
          (prediction.*field.perhaps).emplace();
    }
    return prediction;
  }

  // Appends predictions of checked tensors, in batches.
  void run(const Views& inputs, Prediction& prediction) const {
    const std::size_t size = batch_of(inputs);
    for (std::size_t first = 0; first < size; first += options.batch_size) {
      const std::size_t last = std::min(first + options.batch_size, size);
      const Views rows = rows_of(inputs, first, last);
      Outputs outputs = backend->run(rows);
      check_finite(outputs, backend->name());
      if (architecture.tokens) {
        append_tokens(prediction, std::move(outputs), rows.at("attention_mask"));
      } else {
        append(prediction, std::move(outputs), last - first, task());
      }
    }
  }

  Prediction predict(const Views& inputs) const {
    Prediction prediction = empty_prediction();
    if (architecture.tokens) prediction.tokens = tokens_of(inputs).value_or(0);
    run(inputs, prediction);
    calibration.decide(prediction);
    return prediction;
  }

  const ImageProcessor& processor() const {
    if (images) return *images;
    const std::string path = bundle.path().string();
    if (!architecture.image) throw InputError("bundle " + path + " reads texts or token ids, not images");
    throw InputError("bundle " + path + " has no processor; use ready tensors, or fuse with a processor");
  }

  // The tokenizer, opened on first use.
  const Tokenizer& tokenizer() const {
    if (architecture.image) throw InputError("bundle " + bundle.path().string() + " reads images, not texts");
    const std::lock_guard<std::mutex> lock(opening);
    if (!opened) opened = std::make_unique<const Tokenizer>(bundle, architecture);
    return *opened;
  }

  // Predicts texts in batches; messages count from `index`.
  Prediction predict_texts(const std::vector<Text>& texts, std::size_t index) const {
    const Tokenizer& prepares = tokenizer();
    Prediction prediction = empty_prediction();
    std::vector<Tensors> batches;
    for (std::size_t first = 0; first < texts.size(); first += options.batch_size) {
      Tensors ids = prepares.encode(texts, first, std::min(first + options.batch_size, texts.size()), index);
      if (architecture.tokens) {  // run later, padded to the longest text
        prediction.tokens = std::max(prediction.tokens, static_cast<std::size_t>(ids.at("input_ids").shape[1]));
        batches.push_back(std::move(ids));
      } else {
        run(checked_tensors(ids, architecture).views, prediction);
      }
    }
    if (architecture.tokens) run_tokens(std::move(batches), prediction);
    calibration.decide(prediction);
    return prediction;
  }

  // Appends token predictions of tokenized batches, with words and offsets.
  void run_tokens(std::vector<Tensors> batches, Prediction& prediction) const {
    prediction.words.emplace();
    prediction.offsets.emplace();
    for (Tensors& batch : batches) {
      extend_padded(prediction.words.value(), batch.extract("words").mapped(), prediction.tokens);
      extend_padded(prediction.offsets.value(), batch.extract("offsets").mapped(), prediction.tokens * 2);
      run(checked_tensors(batch, architecture).views, prediction);
    }
  }

  // Preprocesses images [first, last); `picture` loads one, so that only one is in memory at a time.
  template <typename Picture>
  Tensors prepared(std::size_t first, std::size_t last, std::size_t index, const Picture& picture) const {
    const ImageProcessor& prepares = processor();
    std::vector<float> values;
    for (std::size_t i = first; i < last; ++i) {
      prepares.append(picture(i), index + i, values);
      if (i == first) values.reserve(values.size() * (last - first));
    }
    return prepares.collated(std::move(values), last - first);
  }

  // Predicts images in batches; messages count from `index`.
  template <typename Picture>
  Prediction predict_pictures(std::size_t count, std::size_t index, const Picture& picture) const {
    processor();  // throws before an image is read
    Prediction prediction = empty_prediction();
    for (std::size_t first = 0; first < count; first += options.batch_size) {
      const Tensors pixels = prepared(first, std::min(first + options.batch_size, count), index, picture);
      run(views_of(pixels), prediction);
    }
    calibration.decide(prediction);
    return prediction;
  }
};

Predictor::Predictor(const std::filesystem::path& bundle, Options options) {
  check_options(options);
  state_ = std::make_unique<const State>(bundle, std::move(options));
}

Predictor::~Predictor() = default;
Predictor::Predictor(Predictor&&) noexcept = default;
Predictor& Predictor::operator=(Predictor&&) noexcept = default;

const Predictor::State& Predictor::state() const {
  if (state_) return *state_;
  throw BackendError("this predictor was moved; use the predictor that it was moved to");
}

Prediction Predictor::predict(const Tensors& inputs) const {
  return state().predict(checked_tensors(inputs, state().architecture).views);
}

Prediction Predictor::predict(const Tensor& input) const {
  if (!state().architecture.image)
    throw InputError("this model reads " + join(state().architecture.input_names()) + "; name them, as in a .npz file");
  return state().predict(checked_pixels(input, state().architecture));
}

Prediction Predictor::predict_texts(const std::vector<Text>& texts, std::size_t first) const {
  return state().predict_texts(texts, first);
}

Tensors Predictor::prepare_texts(const std::vector<Text>& texts, std::size_t first) const {
  Tensors tensors = state().tokenizer().encode(texts, 0, texts.size(), first);
  tensors.erase("words");
  tensors.erase("offsets");
  return tensors;
}

std::vector<Words> Predictor::words(const Prediction& prediction, Aggregation aggregation) const {
  if (prediction.classes != labels().size()) {
    throw InputError(concat("this prediction has ", prediction.classes, " classes, and this model ", labels().size(),
                            "; use the predictor that made it"));
  }
  return words_of(prediction, aggregation, state().calibration);
}

std::vector<std::vector<Span>> Predictor::spans(const Prediction& prediction, Aggregation aggregation) const {
  std::vector<std::vector<Span>> all;
  for (const Words& each : words(prediction, aggregation)) all.push_back(spans_of(each, labels()));
  return all;
}

Prediction Predictor::predict_images(const std::vector<Image>& images, std::size_t first) const {
  return state().predict_pictures(images.size(), first, [&](std::size_t i) -> const Image& { return images[i]; });
}

Prediction Predictor::predict_images(const std::vector<std::filesystem::path>& files, std::size_t first) const {
  const int channels = static_cast<int>(state().architecture.channels);
  return state().predict_pictures(files.size(), first, [&](std::size_t i) { return read_image(files[i], channels); });
}

Prediction Predictor::predict_images(std::initializer_list<std::filesystem::path> files, std::size_t first) const {
  return predict_images(std::vector<std::filesystem::path>(files), first);
}

Prediction Predictor::predict_encoded_images(const std::vector<std::string>& files, std::size_t first) const {
  const int channels = static_cast<int>(state().architecture.channels);
  const auto decoded = [&](std::size_t i) {
    return decode_image(files[i], "input " + std::to_string(first + i), channels);
  };
  return state().predict_pictures(files.size(), first, decoded);
}

Prediction Predictor::predict_images(const Tensor& array, std::size_t first) const {
  const Pictures pictures(array);
  return state().predict_pictures(pictures.size(), first, [&](std::size_t i) { return pictures[i]; });
}

Tensors Predictor::prepare(const std::vector<Image>& images, std::size_t first) const {
  return state().prepared(0, images.size(), first, [&](std::size_t i) -> const Image& { return images[i]; });
}

const std::vector<std::string>& Predictor::labels() const { return state().bundle.labels(); }
const std::string& Predictor::backend() const { return state().backend->name(); }
const std::string& Predictor::precision() const { return state().backend->precision(); }
const std::vector<Fallback>& Predictor::fallbacks() const { return state().fallbacks; }
const std::string& Predictor::family() const { return state().bundle.family(); }
std::size_t Predictor::members() const { return static_cast<std::size_t>(state().bundle.members()); }
bool Predictor::reads_images() const { return state().architecture.image; }
bool Predictor::reads_texts() const {
  if (reads_images() || !state().bundle.has("tokenizer.onnx")) return false;
  try {
    state().tokenizer();
    return true;
  } catch (const InputError&) {  // no library
    return false;
  }
}
bool Predictor::prepares_images() const { return state().images.has_value(); }
bool Predictor::gives_scores() const { return state().architecture.score; }
bool Predictor::gives_labels() const { return state().architecture.multi_label; }
bool Predictor::tags_tokens() const { return state().architecture.tokens; }
std::size_t Predictor::longest() const { return static_cast<std::size_t>(state().architecture.max_sequence()); }

std::size_t Predictor::chunk(std::size_t batch, std::size_t sequence) const {
  return state().backend->chunk(batch, sequence);
}

void Predictor::run(const Tensors& inputs) const { state().backend->run(views_of(inputs)); }

Tensors Predictor::synthetic(std::size_t batch, std::size_t sequence, std::uint64_t seed) const {
  const Architecture& a = state().architecture;
  std::mt19937_64 random(seed);
  const auto rows = static_cast<std::int64_t>(batch), tokens = static_cast<std::int64_t>(sequence);
  if (a.image) {
    const std::vector<std::int64_t> shape{rows, a.channels, a.image_height, a.image_width};
    std::vector<float> pixels(count_of(shape));
    std::normal_distribution<float> normal;
    std::generate(pixels.begin(), pixels.end(), [&] { return normal(random); });
    return {{"pixel_values", {shape, std::move(pixels)}}};
  }
  std::vector<std::int64_t> ids(batch * sequence);
  std::uniform_int_distribution<std::int64_t> any(0, a.vocabulary - 1);
  std::generate(ids.begin(), ids.end(), [&] {
    const std::int64_t id = any(random);
    return id == a.padding_token ? (id + 1) % a.vocabulary : id;
  });
  const std::vector<std::int64_t> shape{rows, tokens}, ones(ids.size(), 1), zeros(ids.size(), 0);
  Tensors inputs{{"input_ids", {shape, ids}}, {"attention_mask", {shape, ones}}};
  if (a.token_types > 1) inputs["token_type_ids"] = {shape, zeros};
  return inputs;
}

std::vector<float> Prediction::logits() const {
  std::vector<float> values = score.empty() ? probabilities : score;
  constexpr float kSmallest = std::numeric_limits<float>::min(), kHighest = 1 - 0x1p-24F;
  for (float& value : values) {
    if (!label_entropy.empty()) {
      value = std::clamp(value, kSmallest, kHighest);
      value = std::log(value) - std::log(1 - value);
    } else if (score.empty()) {
      value = std::log(std::max(value, kSmallest));  // keeps NaN at padding
    }
  }
  return values;
}

const char* version() { return HYDRANT_VERSION; }

}  // namespace hydrant
