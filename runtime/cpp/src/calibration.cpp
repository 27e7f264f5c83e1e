#include "calibration.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "fields.h"
#include "messages.h"

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

// Comparisons and arithmetic use float32; these are its smallest and largest normal numbers.
constexpr double kMinFloat = std::numeric_limits<float>::min(), kMaxFloat = std::numeric_limits<float>::max();

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

constexpr const char* kCalibrateAgain = "calibrate again with `hydrant calibrate`";

constexpr Field kCalibrationFields[] = {
    {"schema", Is::any, false},
    {"temperature", Is::number, true, kMinFloat, kMaxFloat},
    {"thresholds", Is::object, false},
    {"conformal", Is::object_or_null, false},
    {"intervals", Is::object_or_null, false},
    {"labels", Is::object_or_null, false},
    {"fitted", Is::object_or_null, false},
    {"reference", Is::object_or_null, false},  // for drift detection, in Python only
};

// Notes for readers.
constexpr Field kTargetField{"target", Is::metrics, false}, kMeasuredField{"measured", Is::metrics, false},
    kExamplesField{"n", Is::whole, false, 0, INT32_MAX};

constexpr Field kBothThresholds[] = {{"abstain", Is::object, false}, {"ood", Is::object, false}};

constexpr Field kThreshold[] = {
    {"score", Is::text},
    {"side", Is::text, false},
    {"value", Is::number, true, -kMaxFloat, kMaxFloat},
    kTargetField,
    kMeasuredField,
    kExamplesField,
};

constexpr Field kConformal[] = {
    {"method", Is::text},
    {"alpha", Is::number, true, 0, kMaxFloat},
    {"quantile", Is::number, true, 0, kMaxFloat},
    kMeasuredField,
    kExamplesField,
};

constexpr Field kIntervals[] = {
    {"confidence", Is::number, true, 0, 1},
    {"quantile", Is::number, true, 0, kMaxFloat},
    {"floor", Is::number, true, 0, kMaxFloat},
    {"factor", Is::number, true, 0},  // for likelihoods, in Python only and in float64
    {"bounds", Is::any, false},
    kMeasuredField,
    kExamplesField,
};

constexpr Field kLabelFields[] = {
    {"temperatures", Is::list}, {"thresholds", Is::list}, kTargetField, kMeasuredField, kExamplesField};

// Reads `calibration.json`; errors name the invalid entry.
class Reader {
 public:
  Reader(std::string file, std::size_t classes) : file_(std::move(file)), classes_(classes) {}

  Calibration read(const Json& data) const {
    if (data.is_object() && data.contains("schema")) check_schema(data["schema"], file_);
    check_fields(data, kCalibrationFields, file_, kCalibrateAgain);
    Calibration calibration;
    if (const Json& thresholds = member(data, "thresholds"); !thresholds.is_null()) {
      check_fields(thresholds, kBothThresholds, file_ + ": thresholds", kCalibrateAgain);
      if (thresholds.contains("abstain")) calibration.abstain = threshold(thresholds["abstain"]);
      if (thresholds.contains("ood")) calibration.out_of_distribution = threshold(thresholds["ood"]);
    }
    if (const Json& conformal = member(data, "conformal"); !conformal.is_null())
      calibration.conformal = prediction_sets(conformal);
    if (const Json& intervals = member(data, "intervals"); !intervals.is_null())
      calibration.intervals = interval_bounds(intervals);
    if (const Json& labels = member(data, "labels"); !labels.is_null()) {
      check_fields(labels, kLabelFields, file_ + ": labels", kCalibrateAgain);
      numbers(labels, "temperatures", kMinFloat, kMaxFloat);
      calibration.labels = {numbers(labels, "thresholds", 0, 1)};
    }
    return calibration;
  }

 private:
  BundleError invalid(const char* key, const Json& value) const {
    return BundleError(file_ + " has " + key + " = " + shown(value) + "; " + kCalibrateAgain);
  }

  Threshold threshold(const Json& entry) const {
    check_fields(entry, kThreshold, file_ + ": a threshold", kCalibrateAgain);
    const Json& name = entry["score"];
    const auto score =
        std::find_if(std::begin(kScores), std::end(kScores), [&](const Score& each) { return name == each.name; });
    if (score == std::end(kScores)) throw invalid("score", name);
    if (entry.contains("side") && entry["side"] != (score->below ? "below" : "above"))
      throw invalid("side", entry["side"]);
    return {score->name, score->values, score->below, entry["value"].get<float>()};
  }

  Conformal prediction_sets(const Json& entry) const {
    check_fields(entry, kConformal, file_ + ": conformal", kCalibrateAgain);
    if (entry["method"] != "lac" && entry["method"] != "aps") throw invalid("method", entry["method"]);
    return {entry["method"] == "aps", entry["quantile"].get<float>()};
  }

  Intervals interval_bounds(const Json& entry) const {
    check_fields(entry, kIntervals, file_ + ": intervals", kCalibrateAgain);
    const auto share = entry["confidence"].get<float>();
    if (share <= 0 || share >= 1) throw invalid("confidence", entry["confidence"]);
    Intervals intervals{entry["quantile"].get<float>(), entry["floor"].get<float>(), std::nullopt};
    if (member(entry, "bounds").is_null()) return intervals;
    const std::vector<float> bounds = numbers(entry, "bounds", -kMaxFloat, kMaxFloat, 2);
    if (bounds[0] > bounds[1]) throw invalid("bounds", entry["bounds"]);
    intervals.bounds = {bounds[0], bounds[1]};
    return intervals;
  }

  // Numbers in a range: `count` of them, or one for each label.
  std::vector<float> numbers(const Json& entry, const char* key, double min, double max, std::size_t count = 0) const {
    const Json& values = entry[key];
    if (!values.is_array() || values.size() != (count > 0 ? count : classes_)) throw invalid(key, values);
    std::vector<float> all;
    for (const Json& each : values) {
      const auto value = number(each);
      if (!value || *value < min || *value > max) throw invalid(key, each);
      all.push_back(static_cast<float>(*value));
    }
    return all;
  }

  std::string file_;
  std::size_t classes_;
};

// Marks the classes of one input's set, from its C probabilities.
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
  double better = 0;  // probability of this class and all better ones; half of its own is subtracted
  for (const std::ptrdiff_t choice : order) {
    const auto own = static_cast<double>(probabilities[choice]);
    better += own;
    marks[choice] = static_cast<float>(better - own / 2) <= conformal.quantile;
  }
  marks[order.front()] = true;
}

}  // namespace

std::vector<bool> Threshold::beyond(const Prediction& prediction) const {
  std::vector<bool> flags;
  const std::size_t count = prediction.size() * std::max<std::size_t>(prediction.tokens, 1);
  if (count == 0) return flags;
  const std::vector<float>* const values = score(prediction);
  if (values == nullptr || values->size() != count) {
    throw BackendError(concat("this bundle has a threshold on ", name, ", which its graph or engine does not return; ",
                              "export it again with `hydrant export` (and rebuild engines), or calibrate again"));
  }
  for (const float each : *values) flags.push_back(below ? each < value : each > value);
  return flags;
}

std::vector<bool> Conformal::sets(const Prediction& prediction) const {
  std::vector<bool> included(prediction.probabilities.size());
  for (std::size_t row = 0; row < prediction.size(); ++row) {
    const std::size_t start = row * prediction.classes;
    mark(*this, prediction.probabilities.data() + start, prediction.classes,
         included.begin() + static_cast<std::ptrdiff_t>(start));
  }
  return included;
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
  std::vector<bool> labels;
  for (std::size_t i = 0; i < prediction.probabilities.size(); ++i)
    labels.push_back(prediction.probabilities[i] > values[i % values.size()]);
  return labels;
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
