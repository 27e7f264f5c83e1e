// Predictors are moved, replaced and closed; moved-from ones throw.
#include <iostream>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

constexpr const char* kWords = "this predictor was moved";

}  // namespace

void lifecycle(const fs::path& folder) {
  const Case texts(folder / "bert"), pixels(folder / "vit");
  Predictor first(texts.bundle, one_thread());
  Predictor second(std::move(first));
  compare(predict(second, texts), texts);
  // NOLINTBEGIN(bugprone-use-after-move): it throws
  refuse<BackendError>(kWords, [&] { predict(first, texts); });
  refuse<BackendError>(kWords, [&] { first.predict(Tensor{{1}, std::vector<float>(1)}); });
  refuse<BackendError>(kWords, [&] { first.predict_images(std::vector<fs::path>{}); });
  refuse<BackendError>(kWords, [&] { first.labels(); });
  refuse<BackendError>(kWords, [&] { first.run(texts.inputs); });
  // NOLINTEND(bugprone-use-after-move)
  first = Predictor(pixels.bundle, one_thread());
  compare(predict(first, pixels), pixels);
  second = std::move(first);
  compare(predict(second, pixels), pixels);
  std::cout << "predictors are moved and replaced\n";
}

}  // namespace hydrant::tests
