// `calibration.json`, and the decisions on a prediction that follow from it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bundle.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// A limit on one score of a prediction; inputs beyond it are uncertain.
struct Threshold {
  const char* name;                                       // of the score
  const std::vector<float>* (*score)(const Prediction&);  // null where the graph does not give it
  bool below = false;                                     // the uncertain side
  float value = 0;                                        // nats, or a probability for `confidence`

  // Which inputs lie on the uncertain side, [B] (tokens: [B, T]). Throws BackendError: the graph lacks the score.
  std::vector<bool> beyond(const Prediction& prediction) const;
};

// Prediction sets that hold the label with probability at least 1 − α.
struct Conformal {
  bool adaptive = false;  // APS; otherwise LAC
  float quantile = 0;     // of the method's score; classes up to it are in the set

  // Which classes are in each input's set, [B, C].
  std::vector<bool> sets(const Prediction& prediction) const;
};

// Intervals around a score that hold the label with a probability of at least the confidence.
struct Intervals {
  float quantile = 0;                             // of |label − score| ÷ √(variance + floor)
  float floor = 0;                                // added to the variance
  std::optional<std::pair<float, float>> bounds;  // that labels cannot leave

  // Fills `interval_low` and `interval_high`, in float32 as in Python.
  void surround(Prediction& prediction) const;
};

// What assigns the labels of a multi-label model.
struct LabelThresholds {
  std::vector<float> values;  // of each label

  // Which labels have a probability above their threshold, [B, C].
  std::vector<bool> assigned(const Prediction& prediction) const;
};

constexpr float kUnfitted = 0.5F;  // threshold of every label of a multi-label model that was not calibrated

struct Calibration {
  std::optional<Threshold> abstain;
  std::optional<Threshold> out_of_distribution;
  std::optional<Conformal> conformal;
  std::optional<Intervals> intervals;
  std::optional<LabelThresholds> labels;

  // Reads and validates the calibration of a bundle; its temperature is in the graph. Throws BundleError.
  static Calibration of(const Bundle& bundle);

  // Fills every decision that the calibration provides.
  void decide(Prediction& prediction) const;
};

}  // namespace hydrant
