// Eight threads that share a predictor match one thread bit for bit, without leaks or races under the sanitizers.
// HYDRANT_PREDICTIONS sets the predictions per thread.
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

#ifdef HYDRANT_SANITIZED  // slow; a few suffice
constexpr int kPredictions = 7;
#else
constexpr int kPredictions = 200;
#endif

// Distinct cases detect mixed-up predictions; many rows take several batches.
void share_texts(const Case& golden, int predictions) {
  const Predictor predictor(golden.bundle, one_thread());
  compare_at_once(predictor, pieces(golden), kThreads, predictions);
  compare_at_once(predictor, {golden}, kThreads, kPredictions);
}

void share_pictures(const Case& golden) {
  const Predictor predictor(golden.bundle, one_thread());
  compare_at_once(predictor, {golden}, kThreads, kPredictions);
}

// Opens and closes predictors on several threads at once.
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
  const char* variable = std::getenv("HYDRANT_PREDICTIONS");  // NOLINT(concurrency-mt-unsafe): no threads yet
  const int predictions = variable == nullptr ? kPredictions : std::stoi(variable);
  share_texts(Case(folder / "bert"), predictions);
  share_pictures(Case(folder / "vit-images"));
  open_at_once(folder / "vit");
  std::cout << kThreads << " threads made " << predictions << " predictions each\n";
}

}  // namespace hydrant::tests
