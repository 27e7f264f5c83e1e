// All fields of predictions match Python for the same bundle and inputs.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

#ifdef HYDRANT_OTHER_PROCESSOR
constexpr float kTolerance = 2e-5F;  // ONNX Runtime sums in another order there
#else
constexpr float kTolerance = 1e-6F;
constexpr float kPieceTolerance = 1e-5F;  // sums in smaller batches round differently
#endif

void compare_floats(const std::string& where, const std::vector<float>& values, const Tensor& expected,
                    float tolerance) {
  const auto& expected_values = std::get<std::vector<float>>(expected.data);
  check(values.size() == expected_values.size(), where, " has ", values.size(), " values; expected ",
        expected_values.size());
  float worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    check(std::isnan(values[i]) == std::isnan(expected_values[i]), where, " is blank at ", i, " in one language only");
    if (!std::isnan(values[i])) worst = std::max(worst, std::abs(values[i] - expected_values[i]));
  }
  check(worst <= tolerance, where, " differs by ", worst, "; at most ", tolerance);
}

void compare_bools(const std::string& where, const std::optional<std::vector<bool>>& flags, const Tensors& expected,
                   const std::string& name) {
  check(flags.has_value() == (expected.count(name) > 0), where, name, " exists in one language only");
  if (!flags) return;
  const auto& values = std::get<std::vector<std::int64_t>>(expected.at(name).data);
  check(std::equal(flags->begin(), flags->end(), values.begin(), values.end()), where, name, " differs");
}

// Preprocessed images match bit for bit.
void compare_pixels(const Predictor& predictor, const Case& golden) {
  std::vector<Image> images;
  for (const fs::path& file : golden.pictures) images.push_back(read_image(file));
  const Tensors prepared = predictor.prepare(images);
  compare_floats(golden.name + ": pixel_values", std::get<std::vector<float>>(prepared.at("pixel_values").data),
                 golden.expected.at("pixel_values"), 0);
}

// Appends values.
template <typename Value>
void extend(std::vector<Value>& all, const std::vector<Value>& some) {
  all.insert(all.end(), some.begin(), some.end());
}

const std::vector<std::int64_t>& integers(const Tensors& tensors, const std::string& name) {
  return std::get<std::vector<std::int64_t>>(tensors.at(name).data);
}

// Words and spans of ready tensors, with words and offsets from Python.
void compare_words(const Predictor& predictor, Prediction prediction, const fs::path& file) {
  const Tensors golden = read_tensors(file);
  refuse<InputError>("ready tensors", [&] { predictor.words(prediction); });
  prediction.words = integers(golden, "words");
  prediction.offsets = prediction.words;
  refuse<InputError>("offsets for", [&] { predictor.spans(prediction); });
  prediction.offsets = integers(golden, "offsets");
  Prediction other = prediction;
  other.classes += 1;
  refuse<InputError>("the predictor that made it", [&] { predictor.spans(other); });
  for (const auto& [aggregation, name] : {std::pair{Aggregation::first, "first"}, std::pair{Aggregation::mean, "mean"},
                                          std::pair{Aggregation::max, "max"}}) {
    const std::string where = std::string("words, ") + name + ": ", key = std::string(name) + ".";
    Prediction all;
    all.energy.emplace();
    all.distance.emplace();
    all.member_probabilities.emplace();
    all.abstain.emplace();
    all.out_of_distribution.emplace();
    std::vector<std::int64_t> index, start, end, spans;
    std::vector<float> scores;
    for (const Words& words : predictor.words(prediction, aggregation)) {
      const Prediction& one = words.prediction;
      extend(index, words.index);
      extend(start, words.start);
      extend(end, words.end);
      extend(all.label, one.label);
      for (const auto field :
           {&Prediction::probabilities, &Prediction::confidence, &Prediction::predictive_entropy,
            &Prediction::expected_entropy, &Prediction::mutual_information, &Prediction::disagreement}) {
        extend(all.*field, one.*field);
      }
      for (const auto field : {&Prediction::energy, &Prediction::distance, &Prediction::member_probabilities})
        extend((all.*field).value(), (one.*field).value());
      for (const auto field : {&Prediction::abstain, &Prediction::out_of_distribution})
        extend((all.*field).value(), (one.*field).value());
    }
    check(index == integers(golden, key + "index"), where, "index differs");
    check(start == integers(golden, key + "start") && end == integers(golden, key + "end"), where, "places differ");
    check(all.label == integers(golden, key + "label"), where, "label differs");
    for (const auto& [field, values] :
         {std::pair{"probabilities", &all.probabilities}, std::pair{"confidence", &all.confidence},
          std::pair{"predictive_entropy", &all.predictive_entropy},
          std::pair{"mutual_information", &all.mutual_information}, std::pair{"disagreement", &all.disagreement},
          std::pair{"distance", &*all.distance}, std::pair{"member_probabilities", &*all.member_probabilities}}) {
      compare_floats(where + field, *values, golden.at(key + field), kTolerance);
    }
    compare_bools(where, all.abstain, golden, key + "abstain");
    compare_bools(where, all.out_of_distribution, golden, key + "out_of_distribution");
    std::int64_t row = 0;
    for (const std::vector<Span>& text : predictor.spans(prediction, aggregation)) {
      for (const Span& span : text) {
        extend(spans, {row, span.start, span.end, span.first_word, span.last_word, span.label == "PER" ? 1 : 0,
                       span.abstain.value() ? 1 : 0, span.out_of_distribution.value() ? 1 : 0});
        extend(scores, {span.confidence, span.predictive_entropy, span.expected_entropy, span.mutual_information,
                        span.disagreement, span.energy.value(), span.distance.value()});
      }
      ++row;
    }
    check(spans == integers(golden, key + "spans"), where, "spans differ");
    compare_floats(where + "scores of spans", scores, golden.at(key + "span_scores"), kTolerance);
  }
}

std::vector<fs::path> cases(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::exists(entry.path() / "expected.npz")) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  check(paths.size() >= 7, folder, " holds ", paths.size(), " cases; expected 7 or more");
  return paths;
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

// Compares all numbers of two predictions bit for bit.
bool same(const Prediction& one, const Prediction& other) {
  for (const auto field :
       {&Prediction::probabilities, &Prediction::confidence, &Prediction::predictive_entropy,
        &Prediction::expected_entropy, &Prediction::mutual_information, &Prediction::disagreement, &Prediction::score,
        &Prediction::score_variance, &Prediction::label_entropy, &Prediction::label_mutual_information}) {
    if (!same(one.*field, other.*field)) return false;
  }
  for (const auto field :
       {&Prediction::energy, &Prediction::distance, &Prediction::length_deviation, &Prediction::member_probabilities,
        &Prediction::interval_low, &Prediction::interval_high, &Prediction::member_scores}) {
    if (!same(one.*field, other.*field)) return false;
  }
  return one.label == other.label && one.abstain == other.abstain && one.assigned == other.assigned &&
         one.tokens == other.tokens && one.mask == other.mask && one.out_of_distribution == other.out_of_distribution &&
         one.prediction_set == other.prediction_set;
}

}  // namespace

void compare_at_once(const Predictor& predictor, const std::vector<Case>& cases, int threads, int predictions) {
  std::vector<Prediction> alone;
  for (const Case& each : cases) {
    alone.push_back(predict(predictor, each));
    compare(alone.back(), each, cases.size() == 1 ? kTolerance : kPieceTolerance);
  }
  std::mutex guard;
  std::string problem;
  std::vector<std::thread> workers;
  for (int worker = 0; worker < threads; ++worker) {
    workers.emplace_back([&, worker] {
      try {
        std::minstd_rand order(static_cast<unsigned>(worker) + 1);
        for (int i = 0; i < predictions; ++i) {
          const std::size_t place = order() % cases.size();
          check(same(predict(predictor, cases[place]), alone[place]), cases[place].name, ": differs from one thread");
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

namespace {

// Some rows of tensors with equal numbers of rows.
Tensors rows_of(const Tensors& tensors, std::int64_t first, std::int64_t rows) {
  Tensors some = tensors;
  for (auto& [name, tensor] : some) {
    std::visit(
        [&, &shape = tensor.shape](auto& values) {
          const auto width = static_cast<std::ptrdiff_t>(values.size()) / shape.at(0);
          values.assign(values.begin() + first * width, values.begin() + (first + rows) * width);
          shape[0] = rows;
        },
        tensor.data);
  }
  return some;
}

}  // namespace

std::vector<Case> pieces(const Case& golden) {
  std::vector<Case> all;
  const std::int64_t count = golden.inputs.begin()->second.shape.at(0);
  for (std::int64_t first = 0; first + 3 <= count; ++first) {
    Case piece = golden;
    const std::int64_t rows = 1 + first % 3;
    piece.name += ", rows from " + std::to_string(first);
    piece.inputs = rows_of(golden.inputs, first, rows);
    piece.expected = rows_of(golden.expected, first, rows);
    all.push_back(std::move(piece));
  }
  return all;
}

Prediction predict(const Predictor& predictor, const Case& golden) {
  return golden.pictures.empty() ? predictor.predict(golden.inputs) : predictor.predict_images(golden.pictures);
}

void compare(const Prediction& prediction, const Case& golden, float tolerance) {
  const Tensors& expected = golden.expected;
  const std::string where = golden.name + ": ";
  const auto floats = [&](const char* name, const std::vector<float>& values) {
    compare_floats(where + name, values, expected.at(name), tolerance);
  };
  if (expected.count("score") > 0) {
    floats("score", prediction.score);
    floats("score_variance", prediction.score_variance);
    check(prediction.label.empty() && prediction.probabilities.empty(), where, "a score has no classes");
  } else if (expected.count("label_entropy") > 0) {
    floats("probabilities", prediction.probabilities);
    floats("label_entropy", prediction.label_entropy);
    floats("label_mutual_information", prediction.label_mutual_information);
    floats("predictive_entropy", prediction.predictive_entropy);
    floats("expected_entropy", prediction.expected_entropy);
    floats("mutual_information", prediction.mutual_information);
    check(prediction.label.empty() && prediction.confidence.empty(), where, "multi-label has no single label");
  } else {
    floats("probabilities", prediction.probabilities);
    floats("confidence", prediction.confidence);
    floats("predictive_entropy", prediction.predictive_entropy);
    floats("expected_entropy", prediction.expected_entropy);
    floats("mutual_information", prediction.mutual_information);
    floats("disagreement", prediction.disagreement);
    check(prediction.label == std::get<std::vector<std::int64_t>>(expected.at("label").data), where, "label differs");
  }
  using Further = std::pair<const char*, const std::optional<std::vector<float>>*>;
  for (const auto& [name, values] :
       {Further{"interval_low", &prediction.interval_low}, Further{"interval_high", &prediction.interval_high},
        Further{"member_scores", &prediction.member_scores}}) {
    check(values->has_value() == (expected.count(name) > 0), where, name);
    if (*values) floats(name, **values);
  }
  for (const auto& [name, scores] :
       {std::pair{"energy", &prediction.energy}, std::pair{"distance", &prediction.distance},
        std::pair{"length_deviation", &prediction.length_deviation}}) {
    check(scores->has_value() == (expected.count(name) > 0), where, name);
    if (*scores) floats(name, **scores);
  }
  check(prediction.member_probabilities.has_value() == (expected.count("member_probabilities") > 0), where,
        "member_probabilities");
  if (prediction.member_probabilities) floats("member_probabilities", *prediction.member_probabilities);
  compare_bools(where, prediction.abstain, expected, "abstain");
  compare_bools(where, prediction.prediction_set, expected, "prediction_set");
  compare_bools(where, prediction.assigned, expected, "assigned");
  compare_bools(where, prediction.out_of_distribution, expected, "out_of_distribution");
  compare_bools(where, prediction.mask, expected, "mask");
}

void golden(const fs::path& folder) {
  for (const fs::path& path : cases(folder)) {
    const Case each(path);
    const Predictor predictor(each.bundle, one_thread());
    const Prediction prediction = predict(predictor, each);
    compare(prediction, each);
    if (!each.pictures.empty()) compare_pixels(predictor, each);
    if (fs::exists(path / "words.npz")) compare_words(predictor, prediction, path / "words.npz");
    std::cout << each.name << ": " << prediction.size() << " inputs on " << predictor.backend() << '\n';
  }
}

}  // namespace hydrant::tests
