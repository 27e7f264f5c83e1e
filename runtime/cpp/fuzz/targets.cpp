#include "targets.h"

#include <openssl/err.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <variant>

#include "../program/protocol.h"
#include "../src/architecture.h"
#include "../src/bundle.h"
#include "../src/calibration.h"
#include "../src/engine_file.h"
#include "../src/engine_profiles.h"
#include "../src/files.h"
#include "../src/graph.h"
#include "../src/image.h"
#include "../src/json.h"
#include "../src/pixels.h"
#include "../src/signature.h"
#include "../src/view.h"
#include "forged.h"
#include "hydrant/hydrant.h"

namespace fs = std::filesystem;

namespace hydrant::fuzz {
namespace {

constexpr std::int64_t kMaxPixelsPerImage = 1 << 20;  // of an image; larger ones only cost time
constexpr std::size_t kMaxInputs = 1024;              // of a request

// A reader accepted an impossible value.
struct Finding : std::logic_error {
  using std::logic_error::logic_error;
};

void hold(bool holds, const std::string& what) {
  if (!holds) throw Finding(what);
}

fs::path& whole_bundle() {
  static fs::path folder;
  return folder;
}

template <typename Value>
bool all_finite(const std::vector<Value>& values) {
  return std::all_of(values.begin(), values.end(), [](Value value) { return std::isfinite(value); });
}

void hold_tensors(const Tensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::size_t values = std::visit([](const auto& data) { return data.size(); }, tensor.data);
    hold(count_of(tensor.shape) == values, "a tensor has another number of values than its shape says");
  }
}

void hold_image(const Image& image) {
  hold(image.height > 0 && image.width > 0 && (image.channels == 1 || image.channels == 3), "a picture without size");
  hold(image.pixels.size() == count_of({image.height, image.width, image.channels}), "a picture lacks pixels");
}

Json parsed(const std::string& bytes) {
  try {
    return parse_json(bytes);
  } catch (const std::invalid_argument& error) {
    throw InputError(error.what());
  }
}

void json(const std::string& bytes) {
  const Json value = parsed(bytes);
  hold(parse_json(value.dump()) == value, "written JSON is read differently");
  hold(shown(value).size() < 100, "a value in a message is not cut");
  integer(value, INT64_MIN, INT64_MAX);
  if (const auto amount = number(value)) hold(std::isfinite(*amount), "a number that is not finite");
}

void manifest(const std::string& bytes) {
  static const Forged place(whole_bundle());
  place.write("hydrant.json", bytes);
  const Bundle bundle = Bundle::open(place.path());
  hold(bundle.members() >= 1 && bundle.checkpoints() >= 1, "a bundle without members");
  const std::set<std::string> labels(bundle.labels().begin(), bundle.labels().end());
  hold(!labels.empty() && labels.size() == bundle.labels().size(), "labels are absent or not distinct");
  for (const std::string& name : bundle.names()) {
    const fs::path file = (bundle.path() / name).lexically_normal();
    const auto [folder, rest] = std::mismatch(bundle.path().begin(), bundle.path().end(), file.begin(), file.end());
    hold(folder == bundle.path().end() && rest != file.end(), "a file outside the bundle");
    try {
      bundle.read(name);
    } catch (const Error&) {  // absent or altered
    }
  }
  bundle.processor();
}

void architecture(const std::string& bytes) {
  static Forged place(whole_bundle());
  const Architecture architecture = Architecture::of(place.with("config.json", bytes));
  hold(architecture.max_sequence() >= 1 && architecture.classes >= 1 && !architecture.input_names().empty(),
       "a model that reads nothing");
  hold(!architecture.tokens || (!architecture.image && architecture.classes > 1), "tokens of images, or of one class");
}

// Predictions of three classes and two members for two inputs, and of regression.
Prediction of_classes() {
  Prediction p;
  p.classes = 3;
  p.members = 2;
  p.probabilities = {0.5F, 0.3F, 0.2F, 1, 0, 0};
  p.label = {0, 0};
  p.confidence = {0.5F, 1};
  p.predictive_entropy = p.expected_entropy = {1, 0};
  p.mutual_information = p.disagreement = {0, 0};
  p.energy = p.distance = {-3, 2};
  return p;
}

Prediction of_scores() {
  Prediction p;
  p.score = {-2, 0.5F};
  p.score_variance = {0, 7};
  p.distance = {-3, 2};
  return p;
}

// The same for token classification: a real token and padding.
Prediction of_tokens() {
  Prediction p = of_classes();
  p.tokens = 2;
  p.mask = {true, false};
  for (const auto field : {&Prediction::confidence, &Prediction::predictive_entropy, &Prediction::expected_entropy,
                           &Prediction::mutual_information}) {
    (p.*field)[1] = NAN;
  }
  p.energy = p.distance = {-3, NAN};
  return p;
}

void calibration(const std::string& bytes) {
  static Forged place(whole_bundle());
  const Calibration calibration = Calibration::of(place.with("calibration.json", bytes));
  Prediction classes = of_classes(), scores = of_scores(), tokens = of_tokens();
  try {
    calibration.decide(classes);
    calibration.decide(tokens);
    for (const auto& flags : {tokens.abstain, tokens.out_of_distribution})
      hold(!flags || (flags->size() == 2 && !(*flags)[1]), "padding is flagged");
  } catch (const BackendError&) {  // a threshold on a regression score
  }
  if (classes.prediction_set && calibration.conformal && calibration.conformal->adaptive) {
    for (std::size_t row = 0; row < 2; ++row) {
      const auto start = classes.prediction_set->begin() + static_cast<std::ptrdiff_t>(row * classes.classes);
      hold(std::any_of(start, start + 3, [](bool in) { return in; }), "a prediction set is empty");
    }
  }
  if (!calibration.intervals) return;
  calibration.intervals->surround(scores);
  const std::vector<float> low = scores.interval_low.value(), high = scores.interval_high.value();
  for (std::size_t row = 0; row < 2; ++row) hold(low[row] <= high[row], "an interval ends before it begins");
}

void processor(const std::string& bytes) {
  static Forged place(whole_bundle());
  Architecture reads;
  reads.image = true;
  reads.image_height = reads.image_width = 12;
  reads.channels = 3;
  const ImageProcessor processor(place.with("processor/preprocessor_config.json", bytes), reads);
  std::vector<float> values;
  processor.append({5, 7, 1, std::vector<std::uint8_t>(35, 200)}, 0, values);
  hold(values.size() == std::size_t{3} * 12 * 12, "a picture becomes another number of values");
  hold(all_finite(values), "a picture becomes values that are not finite");
}

void engine(const std::string& bytes) {
  const Json metadata = parsed(bytes);
  const Profiles profiles(EngineFile::of(metadata, "one.json").profiles, {"hydrant", "build"});
  for (const std::size_t rows : {1U, 7U, 70U}) {
    for (const std::size_t tokens : {1U, 9U, 500U}) {
      std::size_t next = 0;
      try {
        for (const Part& part : profiles.parts(rows, tokens)) {
          hold(part.start == next && part.stop > next && part.rows >= part.stop - part.start, "rows are left out");
          next = part.stop;
        }
        hold(next == rows, "rows are left out at the end");
      } catch (const BackendError&) {  // longer than any profile allows
      }
    }
  }
}

void graph(const std::string& bytes) {
  static Forged place(whole_bundle());
  check_graph(place.with("model.fp32.onnx", bytes), "model.fp32.onnx");
}

// A bundle of members with adapters on the query of the second layer.
fs::path adapted_bundle() {
  static const Forged place(whole_bundle());
  Json manifest = Json::parse(bytes_of(whole_bundle() / "hydrant.json").value());
  manifest["fusion"]["adapted"]["layers.1.query"] = {{"rank", 4}, {"low_rank", true}};
  place.write("hydrant.json", manifest.dump());
  return place.path();
}

// For a text model, an image model with as many layers, and a model with adapters.
void plan(const std::string& bytes) {
  static Forged plain(whole_bundle()), adapters(adapted_bundle());
  static const Architecture texts = Architecture::of(Bundle::open(whole_bundle()));
  Architecture pictures = texts;
  pictures.image = true;
  pictures.image_height = pictures.image_width = 12;
  pictures.patch_height = pictures.patch_width = 4;
  const Bundle bundle = plain.with("plan.json", bytes);
  const Microbatch of_texts = Microbatch::of(bundle, texts), of_pictures = Microbatch::of(bundle, pictures),
                   of_adapted = Microbatch::of(adapters.with("plan.json", bytes), texts);
  std::size_t before = of_texts.chunk(0);
  for (const std::size_t tokens : {1U, 9U, 500U}) {
    const std::size_t inputs = of_texts.chunk(tokens);
    hold(inputs >= 1 && inputs <= before, "no input in a run, or more of longer texts");
    hold(of_adapted.chunk(tokens) >= 1 && of_adapted.chunk(tokens) <= inputs, "adapters make fewer streams");
    hold(of_pictures.chunk(tokens) == of_texts.chunk(9), "pictures are of another size than their patches say");
    before = inputs;
  }
}

// Calls must not leave OpenSSL errors on the thread for other users of OpenSSL.
template <typename Call>
void hold_no_errors(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    hold(ERR_peek_error() == 0, "an error leaves OpenSSL errors behind");
    throw;
  }
  hold(ERR_peek_error() == 0, "OpenSSL errors are left behind");
}

// Checks against a key if the first byte is 'k', else against an issuer.
void signature(const std::string& bytes) {
  static const Forged place(whole_bundle());
  static const Bundle bundle = Bundle::open(place.path());
  static const Trust key(whole_bundle().parent_path() / "trust.pub"),
      issuer(whole_bundle().parent_path() / "trust.pem");
  place.write("hydrant.sig", bytes.substr(std::min<std::size_t>(bytes.size(), 1)));
  hold_no_errors([&] { (bytes.substr(0, 1) == "k" ? key : issuer).check(bundle); });
}

// A signature of the corpus, by a key or with a certificate.
std::string signature_by(const char* name) {
  const fs::path file = whole_bundle().parent_path() / "corpus" / "signature" / name;
  const auto bytes = bytes_of(file);
  if (!bytes) throw std::runtime_error("cannot read " + file.string());
  return bytes->substr(1);
}

// A key or certificates, against signatures by a key and with a certificate.
void trust(const std::string& bytes) {
  static const Forged place(whole_bundle()), beside(whole_bundle());  // the key lies outside the bundle
  static const Bundle bundle = Bundle::open(place.path());
  static const std::string by_key = signature_by("key"), by_certificate = signature_by("certificate");
  beside.write("trusted.pem", bytes);
  std::unique_ptr<Trust> trusted;
  hold_no_errors([&] { trusted = std::make_unique<Trust>(beside.path() / "trusted.pem"); });
  place.write("hydrant.sig", by_key);
  try {
    trusted->check(bundle);
  } catch (const Error&) {  // another signer
    place.write("hydrant.sig", by_certificate);
    trusted->check(bundle);
  }
}

void arrays(const std::string& bytes) {
  static const Forged place(whole_bundle());
  place.write("arrays", bytes);
  const Tensors tensors = read_tensors(place.path() / "arrays");
  hold(!tensors.empty(), "a file without arrays");
  hold_tensors(tensors);
  for (const auto& [name, tensor] : tensors) {
    try {
      for (const Image& image : as_images(tensor)) hold_image(image);
    } catch (const InputError&) {  // no images
    }
  }
}

void decoded(Decoded (*decode)(std::string_view bytes, std::int64_t most), const std::string& bytes) {
  try {
    const Decoded picture = decode(bytes, kMaxPixelsPerImage);
    hold_image(picture.image);
    const PictureSize size = picture_size(bytes);
    const auto is = [](int side, std::uint64_t other) { return static_cast<std::uint64_t>(side) == other; };
    hold(is(picture.image.width, size.width) && is(picture.image.height, size.height), "a picture of another size");
    hold(picture.orientation >= 1 && picture.orientation <= 8, "an impossible orientation");
    const Image turned = upright(picture.image, picture.orientation);
    hold_image(turned);
    hold_image(with_channels(turned, 1));
    hold_image(with_channels(turned, 3));
  } catch (const std::invalid_argument& error) {
    throw InputError(error.what());
  }
}

void png(const std::string& bytes) { decoded(decode_png, bytes); }
void jpeg(const std::string& bytes) { decoded(decode_jpeg, bytes); }

void orientation(const std::string& bytes) {
  for (const auto value : {exif_orientation(bytes), exif_orientation(raw_profile(bytes)), xmp_orientation(bytes)})
    hold(!value || (*value >= 1 && *value <= 8), "an impossible orientation");
}

// Text before the first brace is the header with the length of the JSON; = means the length of the first line.
void infer(const std::string& bytes) {
  const std::size_t start = std::min(bytes.find('{'), bytes.size());
  const std::string body = bytes.substr(start);
  std::optional<std::string> header;
  if (start > 0) header = bytes.substr(0, start);
  if (header == "=") header = std::to_string(std::min(body.find('\n'), body.size() - 1) + 1);
  const InferRequest request = read_infer(body, header, kMaxInputs);
  hold_tensors(request.inputs.tensors);
  hold(!request.inputs.tensors.empty() || !request.inputs.texts.empty() || !request.inputs.images.empty(), "no inputs");
}

// The first byte selects the kind of model: 'i' for images, 'w' for words, else texts.
void plain(const std::string& bytes) {
  const Reads reads = bytes[0] == 'i' ? Reads::images : bytes[0] == 'w' ? Reads::words : Reads::texts;
  const PlainRequest request = read_plain(bytes.substr(std::min<std::size_t>(bytes.size(), 1)), reads, kMaxInputs);
  hold_tensors(request.inputs.tensors);
  const std::size_t inputs = request.inputs.texts.size() + request.inputs.images.size();
  hold(request.names.size() == inputs, "an input without a name");
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{{"json", json},
                                       {"manifest", manifest},
                                       {"architecture", architecture},
                                       {"plan", plan},
                                       {"calibration", calibration},
                                       {"processor", processor},
                                       {"engine", engine},
                                       {"graph", graph},
                                       {"signature", signature},
                                       {"trust", trust},
                                       {"arrays", arrays},
                                       {"png", png},
                                       {"jpeg", jpeg},
                                       {"orientation", orientation},
                                       {"infer", infer},
                                       {"predict", plain}};
  return all;
}

void use_bundle(const fs::path& folder) { whole_bundle() = folder; }

}  // namespace hydrant::fuzz
