// Predictions do not copy batches: they take little additional memory.
#include <iostream>

#include "../src/view.h"
#include "check.h"
#include "memory.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

constexpr std::int64_t kRows = 3000;

// Predicting inputs of `size` bytes, at once and in batches of 32, takes less than half of that.
template <typename Predict>
void lean(const fs::path& bundle, std::size_t size, const Predict& predicts) {
  for (const std::size_t batch_size : {std::size_t{kRows}, std::size_t{32}}) {
    Options options = one_thread();
    options.batch_size = batch_size;
    const Predictor predictor(bundle, options);
    predicts(predictor);  // the first run keeps memory
    const std::size_t extra = most_bytes([&] { predicts(predictor); });
    check(extra < size / 2, bundle, ": inputs of ", size, " bytes took ", extra, " more in batches of ", batch_size);
  }
}

void lean_tensors(const fs::path& bundle, std::size_t tokens) {
  const Tensors inputs = Predictor(bundle, one_thread()).synthetic(kRows, tokens, 0);
  std::size_t size = 0;
  for (const auto& [name, tensor] : inputs)
    size += std::visit([](const auto& values) { return values.size() * sizeof(values[0]); }, tensor.data);
  lean(bundle, size, [&](const Predictor& predictor) { predictor.predict(inputs); });
  lean(bundle, size, [&](const Predictor& predictor) { predictor.run(inputs); });
}

// An array without a name.
void lean_pixels(const fs::path& bundle) {
  const Tensor pixels = Predictor(bundle, one_thread()).synthetic(kRows, 0, 0).at("pixel_values");
  lean(bundle, std::get<std::vector<float>>(pixels.data).size() * sizeof(float),
       [&](const Predictor& predictor) { predictor.predict(pixels); });
}

// Images become tensors in batches; all tensors of an array would take more than half its size.
void lean_pictures(const fs::path& bundle) {
  const Tensor array{{kRows, 12, 12, 3}, std::vector<std::uint8_t>(kRows * 12 * 12 * 3, 7)};
  const Predictor predictor(bundle, one_thread());
  predictor.predict_images(array);
  const std::size_t extra = most_bytes([&] { predictor.predict_images(array); });
  check(extra < kRows * 12 * 12 * 3 / 2, "pictures took ", extra, " bytes more");
}

void cut_in_place() {
  const Tensors inputs{{"ids", {{3, 2}, std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}}}};
  const View rows = rows_of(views_of(inputs), 1, 3).at("ids");
  const auto& ids = std::get<std::vector<std::int64_t>>(inputs.at("ids").data);
  check(rows.shape == Shape{2, 2}, "rows 1 and 2 have another shape");
  check(std::get<const std::int64_t*>(rows.data) == ids.data() + 2, "rows 1 and 2 were copied");
}

}  // namespace

void copies(const fs::path& folder) {
  cut_in_place();
  lean_tensors(folder / "distilbert" / "bundle", 40);
  lean_tensors(folder / "vit" / "bundle", 0);
  lean_pixels(folder / "vit" / "bundle");
  lean_pictures(folder / "vit-images" / "bundle");
  std::cout << "batches are not copied\n";
}

}  // namespace hydrant::tests
