// Every field of a prediction is what Python gives for the same bundle and inputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

#ifdef HYDRANT_OTHER_PROCESSOR
constexpr float kTolerance = 2e-5F;  // ONNX Runtime adds up in another order than where the golden fields were made
#else
constexpr float kTolerance = 1e-6F;
#endif

void compare_floats(const std::string& where, const std::vector<float>& found, const Tensor& expected,
                    float tolerance) {
  const auto& values = std::get<std::vector<float>>(expected.data);
  check(found.size() == values.size(), where, " has ", found.size(), " values; expected ", values.size());
  float worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    check(std::isnan(found[i]) == std::isnan(values[i]), where, " is blank at ", i, " in one language only");
    if (!std::isnan(found[i])) worst = std::max(worst, std::abs(found[i] - values[i]));
  }
  check(worst <= tolerance, where, " differs by ", worst, "; at most ", tolerance);
}

void compare_bools(const std::string& where, const std::optional<std::vector<bool>>& found, const Tensors& expected,
                   const std::string& name) {
  check(found.has_value() == (expected.count(name) > 0), where, name, " is there in one language only");
  if (!found) return;
  const auto& values = std::get<std::vector<std::int64_t>>(expected.at(name).data);
  check(std::equal(found->begin(), found->end(), values.begin(), values.end()), where, name, " differs");
}

// The same pictures become the same pixels, to the bit.
void compare_pixels(const Predictor& predictor, const Case& golden) {
  std::vector<Image> images;
  for (const fs::path& file : golden.pictures) images.push_back(read_image(file));
  const Tensors prepared = predictor.prepare(images);
  compare_floats(golden.name + ": pixel_values", std::get<std::vector<float>>(prepared.at("pixel_values").data),
                 golden.expected.at("pixel_values"), 0);
}

std::vector<fs::path> cases(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "expected.npz")) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  check(found.size() >= 7, folder, " holds ", found.size(), " cases; expected 7 or more");
  return found;
}

}  // namespace

Case::Case(const fs::path& folder)
    : name(folder.filename().string()), bundle(folder / "bundle"), expected(read_tensors(folder / "expected.npz")) {
  if (fs::exists(folder / "inputs.npz")) {
    inputs = read_tensors(folder / "inputs.npz");
    return;
  }
  for (const auto& entry : fs::directory_iterator(folder / "images")) pictures.push_back(entry.path());
  std::sort(pictures.begin(), pictures.end());
}

Options one_thread() {
  Options options;
  options.threads = 1;
  return options;
}

namespace {

bool same(const std::vector<float>& one, const std::vector<float>& other) {
  if (one.size() != other.size() || one.empty()) return one.size() == other.size();  // memcmp takes no null pointer
  return std::memcmp(one.data(), other.data(), one.size() * sizeof(float)) == 0;
}

bool same(const std::optional<std::vector<float>>& one, const std::optional<std::vector<float>>& other) {
  return one.has_value() == other.has_value() && (!one || same(*one, *other));
}

// Whether every number of two predictions is the same, to the bit.
bool same(const Prediction& one, const Prediction& other) {
  for (const auto field :
       {&Prediction::probabilities, &Prediction::confidence, &Prediction::predictive_entropy,
        &Prediction::expected_entropy, &Prediction::mutual_information, &Prediction::disagreement, &Prediction::score,
        &Prediction::score_variance, &Prediction::label_entropy, &Prediction::label_mutual_information}) {
    if (!same(one.*field, other.*field)) return false;
  }
  for (const auto field : {&Prediction::energy, &Prediction::distance, &Prediction::member_probabilities,
                           &Prediction::interval_low, &Prediction::interval_high, &Prediction::member_scores}) {
    if (!same(one.*field, other.*field)) return false;
  }
  return one.label == other.label && one.abstain == other.abstain && one.assigned == other.assigned &&
         one.tokens == other.tokens && one.mask == other.mask && one.out_of_distribution == other.out_of_distribution &&
         one.prediction_set == other.prediction_set;
}

}  // namespace

void compare_at_once(const Predictor& predictor, const Case& golden, int threads, int predictions) {
  const Prediction alone = predict(predictor, golden);
  compare(alone, golden);
  std::mutex guard;
  std::string problem;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&] {
      try {
        for (int i = 0; i < predictions; ++i) {
          check(same(predict(predictor, golden), alone), golden.name, ": other bits than one thread got");
        }
      } catch (const std::exception& error) {
        const std::lock_guard<std::mutex> lock(guard);
        problem = error.what();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  check(problem.empty(), problem);
}

Prediction predict(const Predictor& predictor, const Case& golden) {
  return golden.pictures.empty() ? predictor.predict(golden.inputs) : predictor.predict_images(golden.pictures);
}

void compare(const Prediction& found, const Case& golden) {
  const Tensors& expected = golden.expected;
  const std::string where = golden.name + ": ";
  const auto floats = [&](const char* name, const std::vector<float>& values) {
    compare_floats(where + name, values, expected.at(name), kTolerance);
  };
  if (expected.count("score") > 0) {
    floats("score", found.score);
    floats("score_variance", found.score_variance);
    check(found.label.empty() && found.probabilities.empty(), where, "a score has no classes");
  } else if (expected.count("label_entropy") > 0) {
    floats("probabilities", found.probabilities);
    floats("label_entropy", found.label_entropy);
    floats("label_mutual_information", found.label_mutual_information);
    floats("predictive_entropy", found.predictive_entropy);
    floats("expected_entropy", found.expected_entropy);
    floats("mutual_information", found.mutual_information);
    check(found.label.empty() && found.confidence.empty(), where, "labels exclude none, so there is no one label");
  } else {
    floats("probabilities", found.probabilities);
    floats("confidence", found.confidence);
    floats("predictive_entropy", found.predictive_entropy);
    floats("expected_entropy", found.expected_entropy);
    floats("mutual_information", found.mutual_information);
    floats("disagreement", found.disagreement);
    check(found.label == std::get<std::vector<std::int64_t>>(expected.at("label").data), where, "label differs");
  }
  using Further = std::pair<const char*, const std::optional<std::vector<float>>*>;
  for (const auto& [name, values] :
       {Further{"interval_low", &found.interval_low}, Further{"interval_high", &found.interval_high},
        Further{"member_scores", &found.member_scores}}) {
    check(values->has_value() == (expected.count(name) > 0), where, name);
    if (*values) floats(name, **values);
  }
  for (const auto& [name, scores] : {std::pair{"energy", &found.energy}, std::pair{"distance", &found.distance}}) {
    check(scores->has_value() == (expected.count(name) > 0), where, name);
    if (*scores) floats(name, **scores);
  }
  check(found.member_probabilities.has_value() == (expected.count("member_probabilities") > 0), where,
        "member_probabilities");
  if (found.member_probabilities) floats("member_probabilities", *found.member_probabilities);
  compare_bools(where, found.abstain, expected, "abstain");
  compare_bools(where, found.prediction_set, expected, "prediction_set");
  compare_bools(where, found.assigned, expected, "assigned");
  compare_bools(where, found.out_of_distribution, expected, "out_of_distribution");
  compare_bools(where, found.mask, expected, "mask");
}

void golden(const fs::path& folder) {
  for (const fs::path& path : cases(folder)) {
    const Case each(path);
    const Predictor predictor(each.bundle, one_thread());
    const Prediction found = predict(predictor, each);
    compare(found, each);
    if (!each.pictures.empty()) compare_pixels(predictor, each);
    std::cout << each.name << ": " << found.size() << " inputs on " << predictor.backend() << '\n';
  }
}

}  // namespace hydrant::tests
