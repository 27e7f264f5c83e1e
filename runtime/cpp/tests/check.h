// Shared checks, and cases of the golden folder.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant::tests {

constexpr int kThreads = 8;

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

// Throws Failure unless a call throws this kind of error, with these words in its message.
template <typename Kind, typename Call>
void refuse(const std::string& words, const Call& call) {
  try {
    call();
  } catch (const Kind& error) {
    check(std::string(error.what()).find(words) != std::string::npos, "expected ", words, "; got ", error.what());
    return;
  }
  check(false, "no error: ", words);
}

// A case of the golden folder.
struct Case {
  std::string name;
  std::filesystem::path bundle;
  Tensors inputs;                               // ready tensors, or
  std::vector<std::filesystem::path> pictures;  // files in Python's order
  Tensors expected;                             // all fields from Python

  explicit Case(const std::filesystem::path& folder);
};

// The prediction for a case.
Prediction predict(const Predictor& predictor, const Case& golden);

// Throws Failure unless all fields match within the tolerance.
void compare(const Prediction& prediction, const Case& golden, float tolerance = 1e-6F);

// Splits a case into many with one to three rows and distinct predictions.
std::vector<Case> pieces(const Case& golden);

// Predicts cases on many threads, each in its own order. Throws Failure unless all predictions equal those of one
// thread, bit for bit, and match the expected ones.
void compare_at_once(const Predictor& predictor, const std::vector<Case>& cases, int threads, int predictions);

// One thread per run: the thread sanitizer cannot follow ONNX Runtime's own threads.
Options one_thread();

// The tests; each throws Failure.
void choice(const std::filesystem::path& folder);
void copies(const std::filesystem::path& folder);
void engines(const std::filesystem::path& folder);
void golden(const std::filesystem::path& folder);
void hostile(const std::filesystem::path& folder);
void inputs(const std::filesystem::path& folder);
void lifecycle(const std::filesystem::path& folder);
void plugins(const std::filesystem::path& folder);
void plugin_sessions(const std::filesystem::path& folder);
void resample(const std::filesystem::path& folder);
void threads(const std::filesystem::path& folder);

}  // namespace hydrant::tests
