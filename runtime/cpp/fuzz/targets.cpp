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

constexpr std::int64_t kMostPixels = 1 << 20;  // of a picture: larger ones cost time and find nothing else
constexpr std::size_t kMostInputs = 1024;      // of a request

// Something that cannot be was taken for good.
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
  const Json found = parsed(bytes);
  hold(parse_json(found.dump()) == found, "JSON that was written is read as something else");
  hold(shown(found).size() < 100, "a value in a message is not cut");
  integer(found, INT64_MIN, INT64_MAX);
  if (const auto value = number(found)) hold(std::isfinite(*value), "a number that is not finite");
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
  const Architecture found = Architecture::of(place.with("config.json", bytes));
  hold(found.max_sequence() >= 1 && found.classes >= 1 && !found.input_names().empty(), "a model that reads nothing");
  hold(!found.tokens || (!found.image && found.classes > 1), "tokens of images, or of one class");
}

// What a classifier of three classes and two members gives for two inputs, and what a model of one output gives.
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

// The same of a model that tags tokens: one real token and a padded one.
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
  const Calibration found = Calibration::of(place.with("calibration.json", bytes));
  Prediction classes = of_classes(), scores = of_scores(), tokens = of_tokens();
  try {
    found.decide(classes);
    found.decide(tokens);
    for (const auto& flags : {tokens.abstain, tokens.out_of_distribution})
      hold(!flags || (flags->size() == 2 && !(*flags)[1]), "padding is flagged");
  } catch (const BackendError&) {  // a threshold on a score that no classifier gives
  }
  if (classes.prediction_set && found.conformal && found.conformal->adaptive) {
    for (std::size_t row = 0; row < 2; ++row) {
      const auto start = classes.prediction_set->begin() + static_cast<std::ptrdiff_t>(row * classes.classes);
      hold(std::any_of(start, start + 3, [](bool in) { return in; }), "a prediction set is empty");
    }
  }
  if (!found.intervals) return;
  found.intervals->surround(scores);
  const std::vector<float> low = scores.interval_low.value(), high = scores.interval_high.value();
  for (std::size_t row = 0; row < 2; ++row) hold(low[row] <= high[row], "an interval ends before it begins");
}

void processor(const std::string& bytes) {
  static Forged place(whole_bundle());
  Architecture reads;
  reads.image = true;
  reads.image_height = reads.image_width = 12;
  reads.channels = 3;
  const ImageProcessor found(place.with("processor/preprocessor_config.json", bytes), reads);
  std::vector<float> values;
  found.append({5, 7, 1, std::vector<std::uint8_t>(35, 200)}, 0, values);
  hold(values.size() == std::size_t{3} * 12 * 12, "a picture becomes another number of values");
  hold(all_finite(values), "a picture becomes values that are not finite");
}

void engine(const std::string& bytes) {
  const Json found = parsed(bytes);
  const Profiles profiles(EngineFile::of(found, "one.json").profiles, {"hydrant", "build"});
  for (const std::size_t rows : {1U, 7U, 70U}) {
    for (const std::size_t tokens : {1U, 9U, 500U}) {
      std::size_t next = 0;
      try {
        for (const Part& part : profiles.parts(rows, tokens)) {
          hold(part.start == next && part.stop > next && part.rows >= part.stop - part.start, "rows are left out");
          next = part.stop;
        }
        hold(next == rows, "rows are left out at the end");
      } catch (const BackendError&) {  // longer than any profile takes
      }
    }
  }
}

void graph(const std::string& bytes) {
  static Forged place(whole_bundle());
  check_graph(place.with("model.fp32.onnx", bytes), "model.fp32.onnx");
}

// A bundle whose members adapters make: on the query of the second layer, from the first layer on alike.
fs::path adapted_bundle() {
  static const Forged place(whole_bundle());
  Json manifest = Json::parse(bytes_of(whole_bundle() / "hydrant.json").value());
  manifest["fusion"]["adapted"]["layers.1.query"] = {{"rank", 4}, {"low_rank", true}};
  place.write("hydrant.json", manifest.dump());
  return place.path();
}

// Of a model of texts, of one of images with as many layers, and of one whose members adapters make.
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

// What OpenSSL had to say of a call does not stay with the thread, where whoever uses OpenSSL next would find it.
template <typename Call>
void hold_no_errors(const Call& call) {
  try {
    call();
  } catch (const Error&) {
    hold(ERR_peek_error() == 0, "a refusal leaves errors of OpenSSL's behind");
    throw;
  }
  hold(ERR_peek_error() == 0, "errors of OpenSSL's are left behind");
}

// Against a key and against an issuer, which a first byte tells apart: 'k' or another.
void signature(const std::string& bytes) {
  static const Forged place(whole_bundle());
  static const Bundle bundle = Bundle::open(place.path());
  static const Trust key(whole_bundle().parent_path() / "trust.pub"),
      issuer(whole_bundle().parent_path() / "trust.pem");
  place.write("hydrant.sig", bytes.substr(std::min<std::size_t>(bytes.size(), 1)));
  hold_no_errors([&] { (bytes.substr(0, 1) == "k" ? key : issuer).check(bundle); });
}

// A whole signature of the corpus, by a key or with a certificate.
std::string signature_by(const char* name) {
  const fs::path file = whole_bundle().parent_path() / "corpus" / "signature" / name;
  const auto bytes = bytes_of(file);
  if (!bytes) throw std::runtime_error("cannot read " + file.string());
  return bytes->substr(1);
}

// A key or certificates, against what a key and what a certificate has signed.
void trust(const std::string& bytes) {
  static const Forged place(whole_bundle()), beside(whole_bundle());  // the key is no file of the bundle
  static const Bundle bundle = Bundle::open(place.path());
  static const std::string by_key = signature_by("key"), by_certificate = signature_by("certificate");
  beside.write("trusted.pem", bytes);
  std::unique_ptr<Trust> found;
  hold_no_errors([&] { found = std::make_unique<Trust>(beside.path() / "trusted.pem"); });
  place.write("hydrant.sig", by_key);
  try {
    found->check(bundle);
  } catch (const Error&) {  // signed by another, or trusted otherwise
    place.write("hydrant.sig", by_certificate);
    found->check(bundle);
  }
}

void arrays(const std::string& bytes) {
  static const Forged place(whole_bundle());
  place.write("arrays", bytes);
  const Tensors tensors = read_tensors(place.path() / "arrays");
  hold(!tensors.empty(), "a file of no arrays");
  hold_tensors(tensors);
  for (const auto& [name, tensor] : tensors) {
    try {
      for (const Image& image : as_images(tensor)) hold_image(image);
    } catch (const InputError&) {  // no pictures
    }
  }
}

void decoded(Decoded (*decode)(std::string_view bytes, std::int64_t most), const std::string& bytes) {
  try {
    const Decoded found = decode(bytes, kMostPixels);
    hold_image(found.image);
    const PictureSize said = picture_size(bytes);
    const auto is = [](int side, std::uint64_t other) { return static_cast<std::uint64_t>(side) == other; };
    hold(is(found.image.width, said.width) && is(found.image.height, said.height), "a picture of another size");
    hold(found.orientation >= 1 && found.orientation <= 8, "an orientation that there is not");
    const Image turned = upright(found.image, found.orientation);
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
  for (const auto found : {exif_orientation(bytes), exif_orientation(raw_profile(bytes)), xmp_orientation(bytes)})
    hold(!found || (*found >= 1 && *found <= 8), "an orientation that there is not");
}

// What stands before the first brace is the header that gives the length of the JSON, where there is one; = stands for
// the length of the first line.
void infer(const std::string& bytes) {
  const std::size_t start = std::min(bytes.find('{'), bytes.size());
  const std::string body = bytes.substr(start);
  std::optional<std::string> header;
  if (start > 0) header = bytes.substr(0, start);
  if (header == "=") header = std::to_string(std::min(body.find('\n'), body.size() - 1) + 1);
  const InferRequest found = read_infer(body, header, kMostInputs);
  hold_tensors(found.asked.tensors);
  hold(!found.asked.tensors.empty() || !found.asked.texts.empty() || !found.asked.images.empty(), "nothing is asked");
}

// Of a model that reads images, words, or texts, which a first byte tells apart: 'i', 'w' or another.
void plain(const std::string& bytes) {
  const Reads reads = bytes[0] == 'i' ? Reads::images : bytes[0] == 'w' ? Reads::words : Reads::texts;
  const PlainRequest found = read_plain(bytes.substr(std::min<std::size_t>(bytes.size(), 1)), reads, kMostInputs);
  hold_tensors(found.asked.tensors);
  const std::size_t inputs = found.asked.texts.size() + found.asked.images.size();
  hold(found.names.size() == inputs, "an input without a name");
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
