// Errors for impossible, uneven or ambiguous shapes of tensors and images.
#include <iostream>

#include "../src/architecture.h"
#include "../src/tensors.h"
#include "../src/view.h"
#include "../src/words.h"
#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

// Shapes whose number of values overflows 64 bits, and the like.
void impossible_shapes(const fs::path& folder) {
  const Predictor texts(folder / "bert" / "bundle", one_thread()), pixels(folder / "vit" / "bundle", one_thread());
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;
  for (const std::vector<std::int64_t>& shape : {std::vector{kHuge, std::int64_t{16}}, {INT64_MIN, 2}, {-kHuge, 16}}) {
    const Tensor none{shape, std::vector<std::int64_t>{}};
    refuse<InputError>("expected int64 [batch, sequence]",
                       [&] { texts.predict({{"input_ids", none}, {"attention_mask", none}}); });
    refuse<InputError>("but it has 0 values", [&] { texts.run({{"input_ids", none}}); });
  }
  refuse<InputError>("expected float32 [batch, 3, 12, 12]",
                     [&] { pixels.predict(Tensor{{kHuge, 3, 12, 12}, std::vector<float>{}}); });
  const Predictor pictures(folder / "vit-images" / "bundle", one_thread());
  refuse<InputError>("with 0 values; expected [height, width, 1 or 3]",
                     [&] { pictures.prepare({{INT32_MAX, INT32_MAX, 3, {}}}); });
  refuse<InputError>("cannot read image absent.jpg", [&] { pictures.predict_images({"absent.jpg", "absent.png"}); });
  refuse<InputError>("channels is 2", [&] { read_image(folder / "vit-images" / "images" / "first.png", 2); });
}

// `run` checks only that inputs are a batch.
void uneven_batches(const fs::path& folder) {
  const Predictor predictor(folder / "bert" / "bundle", one_thread());
  const Tensor one{{1, 2}, std::vector<std::int64_t>{1, 2}}, two{{2, 2}, std::vector<std::int64_t>{1, 2, 3, 4}};
  refuse<InputError>(
      "the inputs are attention_mask [1, 2], input_ids [2, 2]; expected tensors with the same number of rows",
      [&] { predictor.run({{"input_ids", two}, {"attention_mask", one}}); });
  refuse<InputError>("the inputs are none", [&] { predictor.run({}); });
  refuse<InputError>("the inputs are x []", [&] { predictor.run({{"x", {{}, std::vector<float>(1)}}}); });
}

// Long strips resized by their shortest edge would fill the memory.
void long_strips(const fs::path& folder) {
  const Predictor predictor(folder / "clip" / "bundle", one_thread());
  constexpr int kLong = 2'000'000;
  const Image strip{kLong, 1, 3, std::vector<std::uint8_t>(std::size_t{3} * kLong)},
      square{12, 12, 3, std::vector<std::uint8_t>(432)};
  refuse<InputError>("input 1 would be resized to [24000000, 12]", [&] { predictor.prepare({square, strip}); });
}

// A prediction without inputs has all fields.
void no_inputs(const fs::path& folder) {
  const Predictor predictor(folder / "vit-images" / "bundle", one_thread());
  const Prediction none = predictor.predict_images(std::vector<fs::path>{}),
                   one = predictor.predict_images({folder / "vit-images" / "images" / "first.png"});
  check(none.size() == 0 && one.energy.has_value(), "the golden bundle gives no energy");
  for (const auto field :
       {&Prediction::energy, &Prediction::distance, &Prediction::member_probabilities, &Prediction::member_scores})
    check((none.*field).has_value() == (one.*field).has_value(), "a field is missing without inputs");
}

// Means of words are rounded once: float32 sums would lose the parts of 2^-24.
void means_of_words() {
  const std::vector<float> parts{1, 0x1p-24F, 0x1p-24F};
  Prediction all;
  all.classes = all.members = 1;
  all.tokens = parts.size();
  all.label.assign(3, 0);
  all.mask.emplace(3, true);
  all.words.emplace(3, 0);
  all.offsets.emplace(6, 0);
  for (const auto field : {&Prediction::probabilities, &Prediction::confidence, &Prediction::predictive_entropy,
                           &Prediction::expected_entropy, &Prediction::mutual_information, &Prediction::disagreement})
    all.*field = parts;
  const std::vector<Words> words = words_of(all, Aggregation::mean, {});
  check(words.size() == 1 && words[0].prediction.confidence == std::vector<float>{(1 + 0x1p-23F) / 3},
        "the mean of a word is rounded too early");
}

// Axes of arrays of images.
void arrays(const fs::path& folder) {
  const auto array = [](const std::vector<std::int64_t>& shape) {
    return Tensor{shape, std::vector<std::uint8_t>(count_of(shape), 9)};
  };
  const auto shape_of = [](const std::vector<Image>& images) {
    return std::vector<int>{static_cast<int>(images.size()), images[0].height, images[0].width, images[0].channels};
  };
  for (const auto& [shape, result] :
       std::map<std::vector<std::int64_t>, std::vector<int>>{{{4, 5}, {1, 4, 5, 1}},
                                                             {{4, 5, 3}, {1, 4, 5, 3}},
                                                             {{3, 5, 3}, {1, 3, 5, 3}},
                                                             {{1, 4, 5}, {1, 4, 5, 1}},
                                                             {{2, 4, 5}, {2, 4, 5, 1}},
                                                             {{2, 4, 5, 3}, {2, 4, 5, 3}}})
    check(shape_of(as_images(array(shape))) == result, "an array of rank ", shape.size(), " is read otherwise");
  check(as_images(array({0, 4, 5, 3})).empty(), "an empty array has images");
  refuse<InputError>("uint8 [3, 4, 5]: one image with its channels first, or 3 grey ones; expected [height, width, 3]",
                     [&] { as_images(array({3, 4, 5})); });
  for (const std::int64_t channels : {1, 4})
    refuse<InputError>("]: one image with its channels last, or 5 grey ones",
                       [&] { as_images(array({5, 4, channels})); });
  for (const std::vector<std::int64_t>& shape :
       {std::vector<std::int64_t>{4}, {2, 3, 4, 5}, {2, 4, 5, 1}, {1, 2, 4, 5, 3}, {0, 5}})
    refuse<InputError>("expected uint8 [height, width] or [height, width, 3], or a stack",
                       [&] { as_images(array(shape)); });
  refuse<InputError>("a stack of them",
                     [] { as_images({{std::int64_t{1} << 60, 16, 16, 3}, std::vector<std::uint8_t>{}}); });
  const Predictor predictor(folder / "vit-images" / "bundle", one_thread());
  check(predictor.predict_images(array({2, 4, 5, 3})).size() == 2, "two pictures give another number of predictions");
}

// Engines may limit texts more than the model.
void lengths(const fs::path& folder) {
  Architecture reads = Architecture::of(Bundle::open(folder / "bert" / "bundle"));
  const std::int64_t most = reads.max_sequence();
  const auto ids = [](std::int64_t tokens) {
    const Tensor ones{{1, tokens}, std::vector<std::int64_t>(static_cast<std::size_t>(tokens), 1)};
    return Tensors{{"input_ids", ones}, {"attention_mask", ones}};
  };
  reads.limit("tensorrt", static_cast<std::size_t>(most) + 1);
  refuse<InputError>("; this model reads at most " + std::to_string(most),
                     [&] { checked_tensors(ids(most + 1), reads); });
  reads.limit("tensorrt", 8);
  check(reads.max_sequence() == 8, "the longest text has ", reads.max_sequence(), " tokens; expected 8");
  checked_tensors(ids(8), reads);
  refuse<InputError>("input_ids has 9 tokens; this bundle's tensorrt engine takes at most 8",
                     [&] { checked_tensors(ids(9), reads); });
}

}  // namespace

void inputs(const fs::path& folder) {
  impossible_shapes(folder);
  uneven_batches(folder);
  long_strips(folder);
  no_inputs(folder);
  means_of_words();
  arrays(folder);
  lengths(folder);
  std::cout << "shapes are read as intended, or rejected\n";
}

}  // namespace hydrant::tests
