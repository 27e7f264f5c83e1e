// Predictions of tokens → those of words, and of spans: runs of words with tags of one type.
#pragma once

#include <string>
#include <vector>

#include "calibration.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// The words of every text, with their own decisions. Throws InputError: whole inputs, or ready tensors.
std::vector<Words> words_of(const Prediction& prediction, Aggregation aggregation, const Calibration& calibration);

// The spans of one text.
std::vector<Span> spans_of(const Words& words, const std::vector<std::string>& labels);

}  // namespace hydrant
