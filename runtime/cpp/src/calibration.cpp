#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "messages.h"
#include "schema.h"

namespace hydrant {
namespace {

using Values = const std::vector<float>*;

template <std::vector<float> Prediction::* field>
Values always(const Prediction& prediction) {
  return &(prediction.*field);
}

template <std::optional<std::vector<float>> Prediction::* field>
Values perhaps(const Prediction& prediction) {
  const std::optional<std::vector<float>>& values = prediction.*field;
  return values ? &*values : nullptr;
}

// Numbers are compared and computed with in float32: these are the ends of its normal numbers.
constexpr double kLeastFloat = std::numeric_limits<float>::min(), kMostFloat = std::numeric_limits<float>::max();

struct Score {
  const char* name;
  Values (*values)(const Prediction&);
  bool below;
};

constexpr Score kScores[] = {
    {"confidence", always<&Prediction::confidence>, true},
    {"predictive_entropy", always<&Prediction::predictive_entropy>, false},
    {"expected_entropy", always<&Prediction::expected_entropy>, false},
    {"mutual_information", always<&Prediction::mutual_information>, false},
    {"energy", perhaps<&Prediction::energy>, false},
    {"distance", perhaps<&Prediction::distance>, false},
    {"score_variance", always<&Prediction::score_variance>, false},
};

// Reads `calibration.json` and says what is wrong with it, and where.
class Reader {
 public:
  Reader(std::string file, std::size_t classes) : file_(std::move(file)), classes_(classes) {}

  Calibration read(const Json& data) const {
    if (!data.is_object()) throw BundleError(file_ + " is a JSON " + data.type_name() + "; expected an object");
    if (data.contains("schema") && !reads_schema(data["schema"]))
      throw BundleError(file_ +
                        refused_schema(data["schema"], nullptr, ", or calibrate again with `hydrant calibrate`"));
    const auto temperature = number(member(data, "temperature"));
    if (!temperature || *temperature < kLeastFloat || *temperature > kMostFloat) {
      throw BundleError(file_ + " has temperature " + shown(member(data, "temperature")) +
                        "; expected a positive finite number that float32 holds (1.2e-38 to 3.4e38)");
    }
    Calibration found;
    const Json& thresholds = member(data, "thresholds");
    if (!thresholds.is_object() && data.contains("thresholds"))
      throw malformed("thresholds = " + shown(thresholds) + ", which is no JSON object");
    for (const auto& [name, entry] : thresholds.items()) {
      if ((name != "abstain" && name != "ood") || !entry.is_object()) {
        throw malformed("the threshold " + cut(name) + " = " + shown(entry) +
                        ", not an object under 'abstain' or 'ood'");
      }
      (name == "ood" ? found.out_of_distribution : found.abstain) = threshold(entry);
    }
    const Json& conformal = member(data, "conformal");
    if (!conformal.is_null()) found.conformal = sets(conformal);
    const Json& intervals = member(data, "intervals");
    if (!intervals.is_null()) found.intervals = ends(intervals);
    const Json& labels = member(data, "labels");
    if (!labels.is_null()) found.labels = of_labels(labels);
    const Json& fitted = member(data, "fitted");
    if (!fitted.is_null() && !fitted.is_object())
      throw malformed("fitted = " + shown(fitted) + ", which is no JSON object");
    const Json& reference = member(data, "reference");  // which Python alone compares traffic with
    if (!reference.is_null() && !reference.is_object())
      throw malformed("reference = " + shown(reference) + ", which is no JSON object");
    return found;
  }

 private:
  BundleError malformed(const std::string& what) const {
    return BundleError(file_ + " has " + what + "; calibrate again with `hydrant calibrate`");
  }

  Threshold threshold(const Json& entry) const {
    const Json& name = member(entry, "score");
    const auto score =
        std::find_if(std::begin(kScores), std::end(kScores), [&](const Score& each) { return name == each.name; });
    if (score == std::end(kScores)) {
      throw malformed("a threshold on " + shown(name) +
                      ", which is none of confidence, predictive_entropy, expected_entropy, mutual_information, "
                      "energy, distance, score_variance");
    }
    const char* side = score->below ? "below" : "above";
    if (entry.contains("side") && entry["side"] != side) {
      throw malformed(std::string("a threshold on ") + score->name + " with side " + shown(entry["side"]) +
                      ", which is not '" + side + "'");
    }
    notes(entry, {"target", "measured"});
    return {score->name, score->values, score->below, value(entry, "value", -kMostFloat)};
  }

  Conformal sets(const Json& entry) const {
    if (!entry.is_object()) throw malformed("conformal = " + shown(entry) + ", which is no JSON object");
    const Json& method = member(entry, "method");
    if (method != "lac" && method != "aps")
      throw malformed("conformal method " + shown(method) + ", which is none of lac, aps");
    notes(entry, {"measured"});
    value(entry, "alpha", 0);
    return {method == "aps", value(entry, "quantile", 0)};
  }

  Intervals ends(const Json& entry) const {
    if (!entry.is_object()) throw malformed("intervals = " + shown(entry) + ", which is no JSON object");
    if (const float share = value(entry, "confidence", 0); share <= 0 || share >= 1)
      throw malformed("intervals of confidence " + shown(entry["confidence"]) + ", which is no share");
    const auto factor = number(member(entry, "factor"));  // of likelihoods, which Python alone computes, in float64
    if (!factor || *factor < 0)
      throw malformed("factor = " + shown(member(entry, "factor")) + ", which is no finite number in range");
    notes(entry, {"measured"});
    Intervals found{value(entry, "quantile", 0), value(entry, "floor", 0), std::nullopt};
    const Json& bounds = member(entry, "bounds");
    if (bounds.is_null()) return found;
    const auto low = bounds.is_array() && bounds.size() == 2 ? number(bounds[0]) : std::nullopt;
    const auto high = low ? number(bounds[1]) : std::nullopt;
    if (!low || !high || *low > *high || *low < -kMostFloat || *high > kMostFloat)
      throw malformed("bounds = " + shown(bounds) + ", which are not two numbers of which the first is the smaller");
    found.bounds = {static_cast<float>(*low), static_cast<float>(*high)};
    return found;
  }

  LabelThresholds of_labels(const Json& entry) const {
    if (!entry.is_object()) throw malformed("labels = " + shown(entry) + ", which is no JSON object");
    notes(entry, {"target", "measured"});
    numbers(entry, "temperatures", kLeastFloat, kMostFloat);
    return {numbers(entry, "thresholds", 0, 1)};
  }

  // One number for each label.
  std::vector<float> numbers(const Json& entry, const char* key, double least, double most) const {
    const Json& values = member(entry, key);
    if (!values.is_array() || values.size() != classes_) {
      throw malformed(std::string(key) + " = " + shown(values) + ", which are not " + std::to_string(classes_) +
                      " numbers, one for each label");
    }
    std::vector<float> found;
    for (const Json& each : values) {
      const auto value = number(each);
      if (!value || *value < least || *value > most)
        throw malformed(std::string(key) + " = " + shown(each) + ", which is no finite number in range");
      found.push_back(static_cast<float>(*value));
    }
    return found;
  }

  // Notes for people: objects of figures, and a number of examples.
  void notes(const Json& entry, std::initializer_list<const char*> keys) const {
    for (const char* key : keys) {
      if (entry.contains(key) && !entry[key].is_object())
        throw malformed(std::string(key) + " = " + shown(entry[key]) + ", which is no JSON object");
      for (const auto& [name, figure] : member(entry, key).items()) {
        if (!number(figure))
          throw malformed(cut(name) + " = " + shown(figure) + ", which is no finite number in range");
      }
    }
    if (entry.contains("n") && !integer(entry["n"], 0, INT32_MAX))
      throw malformed("n = " + shown(entry["n"]) + ", which is no number of examples");
  }

  float value(const Json& entry, const char* key, double least) const {
    const auto found = number(member(entry, key));
    if (!found || *found < least || *found > kMostFloat)
      throw malformed(std::string(key) + " = " + shown(member(entry, key)) + ", which is no finite number in range");
    return static_cast<float>(*found);
  }

  std::string file_;
  std::size_t classes_;
};

// Marks the classes of one input's set; `probabilities` are its C values.
void mark(const Conformal& conformal, const float* probabilities, std::size_t classes,
          std::vector<bool>::iterator marks) {
  if (!conformal.adaptive) {
    for (std::size_t i = 0; i < classes; ++i) {
      marks[static_cast<std::ptrdiff_t>(i)] =
          static_cast<float>(1.0 - static_cast<double>(probabilities[i])) <= conformal.quantile;
    }
    return;
  }
  std::vector<std::ptrdiff_t> order(classes);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return probabilities[a] > probabilities[b]; });
  double better = 0;  // the probability of this class and all better ones; half of its own is taken back
  for (const std::ptrdiff_t choice : order) {
    const auto own = static_cast<double>(probabilities[choice]);
    better += own;
    marks[choice] = static_cast<float>(better - own / 2) <= conformal.quantile;
  }
  marks[order.front()] = true;
}

}  // namespace

std::vector<bool> Threshold::beyond(const Prediction& prediction) const {
  std::vector<bool> found;
  const std::size_t count = prediction.size() * std::max<std::size_t>(prediction.tokens, 1);
  if (count == 0) return found;
  const std::vector<float>* const values = score(prediction);
  if (values == nullptr || values->size() != count) {
    throw BackendError(std::string("a threshold of this bundle stands on ") + name +
                       ", which its graph or engine does not give; export it again with `hydrant export` (and build "
                       "engines again), or calibrate on another score");
  }
  for (const float each : *values) found.push_back(below ? each < value : each > value);
  return found;
}

std::vector<bool> Conformal::sets(const Prediction& prediction) const {
  std::vector<bool> found(prediction.probabilities.size());
  for (std::size_t row = 0; row < prediction.size(); ++row) {
    const std::size_t start = row * prediction.classes;
    mark(*this, prediction.probabilities.data() + start, prediction.classes,
         found.begin() + static_cast<std::ptrdiff_t>(start));
  }
  return found;
}

void Intervals::surround(Prediction& prediction) const {
  std::vector<float> low, high;
  for (std::size_t i = 0; i < prediction.score.size(); ++i) {
    const float half = quantile * std::sqrt(prediction.score_variance[i] + floor);
    low.push_back(prediction.score[i] - half);
    high.push_back(prediction.score[i] + half);
    if (!bounds) continue;
    low.back() = std::clamp(low.back(), bounds->first, bounds->second);
    high.back() = std::clamp(high.back(), bounds->first, bounds->second);
  }
  prediction.interval_low = std::move(low);
  prediction.interval_high = std::move(high);
}

std::vector<bool> LabelThresholds::assigned(const Prediction& prediction) const {
  std::vector<bool> found;
  for (std::size_t i = 0; i < prediction.probabilities.size(); ++i) {
    found.push_back(prediction.probabilities[i] > values[i % values.size()]);
  }
  return found;
}

Calibration Calibration::of(const Bundle& bundle) {
  const std::string name = "calibration.json";
  return Reader((bundle.path() / name).string(), bundle.labels().size()).read(bundle.read_json(name));
}

void Calibration::decide(Prediction& prediction) const {
  if (abstain) prediction.abstain = abstain->beyond(prediction);
  if (out_of_distribution) prediction.out_of_distribution = out_of_distribution->beyond(prediction);
  if (conformal) prediction.prediction_set = conformal->sets(prediction);
  if (intervals) intervals->surround(prediction);
  if (labels) prediction.assigned = labels->assigned(prediction);
}

}  // namespace hydrant
