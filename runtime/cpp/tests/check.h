// What the tests share: checks that say what differs, and the cases of the golden folder.
#pragma once

#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant::tests {

constexpr int kThreads = 8;  // that are started at once

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
    check(std::string(error.what()).find(words) != std::string::npos, "expected ", words, "; found ", error.what());
    return;
  }
  check(false, "not refused: ", words);
}

// A case of the golden folder.
struct Case {
  std::string name;
  std::filesystem::path bundle;
  Tensors inputs;                               // ready tensors, or
  std::vector<std::filesystem::path> pictures;  // files, in the order of Python
  Tensors expected;                             // every field that Python gives

  explicit Case(const std::filesystem::path& folder);
};

// What C++ predicts for a case.
Prediction predict(const Predictor& predictor, const Case& golden);

// Throws Failure unless every field is the one expected, within the tolerance.
void compare(const Prediction& found, const Case& golden, float tolerance = 1e-6F);

// A case of tensors as many, each of one to three of its rows: no two have the same answer.
std::vector<Case> pieces(const Case& golden);

// Every thread predicts so many of the cases, in an order of its own; throws Failure unless all are what one thread
// gets, to the bit, and that is as expected.
void compare_at_once(const Predictor& predictor, const std::vector<Case>& cases, int threads, int predictions);

// One thread in a run: ONNX Runtime then has none of its own, whose locks the thread sanitizer could not follow.
Options one_thread();

// The tests, by name; each throws Failure.
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
