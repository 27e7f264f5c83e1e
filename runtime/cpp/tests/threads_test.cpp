// Eight threads that share a predictor get what one gets, to the bit; run under the sanitizers, nothing leaks and
// nothing races. HYDRANT_PREDICTIONS says how many predictions of a few rows every thread makes.
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

#ifdef HYDRANT_SANITIZED  // slow, and what it looks for shows in the first few
constexpr int kPredictions = 7;
#else
constexpr int kPredictions = 200;
#endif

// Threads that all ask the same would not notice an answer that was another's; many rows take several batches.
void share_texts(const Case& golden, int predictions) {
  const Predictor predictor(golden.bundle, one_thread());
  compare_at_once(predictor, pieces(golden), kThreads, predictions);
  compare_at_once(predictor, {golden}, kThreads, kPredictions);
}

void share_pictures(const Case& golden) {
  const Predictor predictor(golden.bundle, one_thread());
  compare_at_once(predictor, {golden}, kThreads, kPredictions);
}

// Predictors opened and closed by several threads at once share nothing that could break.
void open_at_once(const fs::path& folder) {
  std::atomic<int> right{0};
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kThreads; ++worker) {
    workers.emplace_back([&] { right += Predictor(folder / "bundle", one_thread()).labels().size() == 5 ? 1 : 0; });
  }
  for (std::thread& worker : workers) worker.join();
  check(right == kThreads, "only ", right.load(), " of ", kThreads, " predictors opened");
}

}  // namespace

void threads(const fs::path& folder) {
  const char* given = std::getenv("HYDRANT_PREDICTIONS");  // NOLINT(concurrency-mt-unsafe): no thread was started yet
  const int predictions = given == nullptr ? kPredictions : std::stoi(given);
  share_texts(Case(folder / "bert"), predictions);
  share_pictures(Case(folder / "vit-images"));
  open_at_once(folder / "vit");
  std::cout << kThreads << " threads made " << predictions << " predictions each\n";
}

}  // namespace hydrant::tests
