// `calibration.json` and the decisions that it defines.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bundle.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// A limit on one score; inputs beyond it are uncertain.
struct Threshold {
  const char* name;                                       // of the score
  const std::vector<float>* (*score)(const Prediction&);  // null if the graph lacks it
  bool below = false;                                     // values below it are uncertain, not above
  float value = 0;                                        // nats, or a probability for `confidence`

  // True for uncertain inputs, [B] (tokens: [B, T]). Throws BackendError: the graph lacks the score.
  std::vector<bool> beyond(const Prediction& prediction) const;
};

// Prediction sets that contain the label with probability at least 1 − α.
struct Conformal {
  bool adaptive = false;  // APS; otherwise LAC
  float quantile = 0;     // of the method's score; the set contains classes up to it

  // Membership in each input's set, [B, C].
  std::vector<bool> sets(const Prediction& prediction) const;
};

// Intervals around a score that contain the label with at least the probability `confidence`.
struct Intervals {
  float quantile = 0;                             // of |label − score| ÷ √(variance + floor)
  float floor = 0;                                // added to the variance
  std::optional<std::pair<float, float>> bounds;  // range of the labels

  // Fills `interval_low` and `interval_high`, in float32 as in Python.
  void surround(Prediction& prediction) const;
};

// Thresholds of a multi-label model.
struct LabelThresholds {
  std::vector<float> values;  // one for each label

  // True for labels with a probability above their threshold, [B, C].
  std::vector<bool> assigned(const Prediction& prediction) const;
};

constexpr float kUnfitted = 0.5F;  // threshold of labels without calibration

struct Calibration {
  std::optional<Threshold> abstain;
  std::optional<Threshold> out_of_distribution;
  std::optional<Conformal> conformal;
  std::optional<Intervals> intervals;
  std::optional<LabelThresholds> labels;

  // Reads and validates a bundle's calibration; the graph holds the temperature. Throws BundleError.
  static Calibration of(const Bundle& bundle);

  void decide(Prediction& prediction) const;  // adds all decisions
};

}  // namespace hydrant
