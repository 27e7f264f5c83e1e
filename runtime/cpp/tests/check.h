// What the tests share: checks that say what differs, and the cases of the golden folder.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant::tests {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws Failure with the pieces of a message.
template <typename... Pieces>
void check(bool holds, const Pieces&... pieces) {
  if (holds) return;
  std::ostringstream text;
  (text << ... << pieces);
  throw Failure(text.str());
}

// Folders of the golden folder, each with bundle/ and expected.npz.
std::vector<std::filesystem::path> cases(const std::filesystem::path& golden);

// What C++ predicts for a case, in the order of Python.
Prediction predict(const Predictor& predictor, const std::filesystem::path& folder);

// Throws Failure unless every field is that of expected.npz, within 1e-6.
void compare(const Predictor& predictor, const Prediction& found, const std::filesystem::path& folder);

// The tests, by name; each throws Failure.
void golden(const std::filesystem::path& folder);
void hostile(const std::filesystem::path& folder);
void resample(const std::filesystem::path& folder);
void threads(const std::filesystem::path& folder);

}  // namespace hydrant::tests
