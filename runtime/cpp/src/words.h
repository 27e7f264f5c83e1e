// Token predictions → predictions of words, and of spans: runs of words with one type of tag.
#pragma once

#include <string>
#include <vector>

#include "calibration.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// The words of all texts, with decisions. Throws InputError: not a token prediction, or made from ready tensors.
std::vector<Words> words_of(const Prediction& prediction, Aggregation aggregation, const Calibration& calibration);

// The spans of one text.
std::vector<Span> spans_of(const Words& words, const std::vector<std::string>& labels);

}  // namespace hydrant
