#include "words.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "messages.h"

namespace hydrant {
namespace {

using Floats = std::vector<float>;
using Places = std::vector<std::size_t>;  // of tokens in all texts

// Appends the mean of tokens with `width` values each; rounds to float32 once, at the end.
void append_mean(Floats& means, const Floats& values, const Places& tokens, std::size_t width) {
  for (std::size_t i = 0; i < width; ++i) {
    double sum = 0;
    for (const std::size_t token : tokens) sum += values[token * width + i];
    means.push_back(static_cast<float>(sum / static_cast<double>(tokens.size())));
  }
}

// The tokens that represent a word.
Places aggregated(const Prediction& prediction, const Places& tokens, Aggregation aggregation) {
  if (aggregation == Aggregation::mean) return tokens;
  if (aggregation == Aggregation::first) return {tokens.front()};
  return {*std::max_element(tokens.begin(), tokens.end(), [&](std::size_t one, std::size_t other) {
    return prediction.confidence[one] < prediction.confidence[other];
  })};
}

// Appends the members' means of tokens, from [B, M, T, C].
void append_members(Floats& means, const Prediction& all, const Places& tokens) {
  const std::size_t width = all.classes, members = all.members;
  for (std::size_t member = 0; member < members; ++member) {
    Places places;
    for (const std::size_t token : tokens)
      places.push_back((token / all.tokens * members + member) * all.tokens + token % all.tokens);
    append_mean(means, all.member_probabilities.value(), places, width);
  }
}

void append(Prediction& words, const Prediction& all, const Places& tokens) {
  append_mean(words.probabilities, all.probabilities, tokens, all.classes);
  const auto last = words.probabilities.end(), start = last - static_cast<std::ptrdiff_t>(all.classes);
  const auto best = std::max_element(start, last);
  words.label.push_back(best - start);
  words.confidence.push_back(*best);
  for (const auto field : {&Prediction::predictive_entropy, &Prediction::expected_entropy,
                           &Prediction::mutual_information, &Prediction::disagreement}) {
    append_mean(words.*field, all.*field, tokens, 1);
  }
  for (const auto field : {&Prediction::energy, &Prediction::distance})
    if (all.*field) append_mean((words.*field).value(), (all.*field).value(), tokens, 1);
  if (all.member_probabilities) append_members(words.member_probabilities.value(), all, tokens);
}

// The words of text `row`.
Words words_in(const Prediction& all, std::size_t row, Aggregation aggregation) {
  const std::vector<std::int64_t>&owners = all.words.value(), &offsets = all.offsets.value();
  std::map<std::int64_t, Places> owned;
  for (std::size_t place = row * all.tokens; place < (row + 1) * all.tokens; ++place)
    if (owners[place] >= 0) owned[owners[place]].push_back(place);
  Words words;
  words.prediction.classes = all.classes;
  words.prediction.members = all.members;
  for (const auto field : {&Prediction::energy, &Prediction::distance, &Prediction::member_probabilities})
    if (all.*field) (words.prediction.*field).emplace();
  for (const auto& [word, tokens] : owned) {
    words.index.push_back(word);
    words.start.push_back(offsets[2 * tokens.front()]);
    words.end.push_back(offsets[2 * tokens.back() + 1]);
    append(words.prediction, all, aggregated(all, tokens, aggregation));
  }
  return words;
}

// Prefixes of all schemes, and their meaning in IOBES; the first four are also tags without a type.
constexpr std::string_view kLetters = "BIESLUM", kMeaning = "BIESESI";
constexpr std::size_t kWholeTags = 4;

// Splits a tag into prefix and type; a name without a prefix is inside a span of its own type.
std::pair<char, std::string> split(const std::string& tag) {
  if (tag == "O") return {'O', ""};
  const std::size_t dash = std::min(tag.find('-'), tag.size());
  const std::size_t letter = dash == 1 ? kLetters.find(tag[0]) : std::string::npos;
  if (letter == std::string::npos || (tag.size() == 1 && letter >= kWholeTags)) return {'I', tag};
  return {kMeaning[letter], dash + 1 < tag.size() ? tag.substr(dash + 1) : "_"};
}

Span span_of(const Words& words, const std::string& label, std::size_t first, std::size_t last) {
  const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(last) + 1;
  const auto largest = [&](const Floats& values) {
    return *std::max_element(values.begin() + from, values.begin() + to);
  };
  const auto perhaps = [&](const std::optional<Floats>& values) {
    return values ? std::optional<float>(largest(*values)) : std::nullopt;
  };
  const auto any = [&](const std::optional<std::vector<bool>>& flags) {
    if (!flags) return std::optional<bool>();
    return std::optional<bool>(std::find(flags->begin() + from, flags->begin() + to, true) != flags->begin() + to);
  };
  const Prediction& scores = words.prediction;
  return {label,
          words.start[first],
          words.end[last],
          words.index[first],
          words.index[last],
          *std::min_element(scores.confidence.begin() + from, scores.confidence.begin() + to),
          largest(scores.predictive_entropy),
          largest(scores.expected_entropy),
          largest(scores.mutual_information),
          largest(scores.disagreement),
          perhaps(scores.energy),
          perhaps(scores.distance),
          any(scores.abstain),
          any(scores.out_of_distribution)};
}

}  // namespace

std::vector<Words> words_of(const Prediction& prediction, Aggregation aggregation, const Calibration& calibration) {
  if (!prediction.mask) throw InputError("this prediction has no words; expected one of a token classification model");
  if (!prediction.words || !prediction.offsets)
    throw InputError(
        "this prediction was made from ready tensors, which have no words; predict texts or lists of words");
  const std::size_t tokens = prediction.size() * prediction.tokens;
  if (prediction.words->size() != tokens || prediction.offsets->size() != 2 * tokens) {
    throw InputError(concat("this prediction has ", prediction.words->size(), " words and ", prediction.offsets->size(),
                            " offsets for ", tokens, " tokens; expected one and two for each, as from predict_texts"));
  }
  std::vector<Words> all;
  for (std::size_t row = 0; row < prediction.size(); ++row) {
    all.push_back(words_in(prediction, row, aggregation));
    calibration.decide(all.back().prediction);
  }
  return all;
}

std::vector<Span> spans_of(const Words& words, const std::vector<std::string>& labels) {
  std::vector<Span> spans;
  std::size_t begun = 0;
  char before = 'O';
  std::string kind;
  for (std::size_t place = 0; place <= words.index.size(); ++place) {
    const bool end = place == words.index.size();
    const auto [prefix, name] = split(end ? "O" : labels[static_cast<std::size_t>(words.prediction.label[place])]);
    bool inside = before != 'O';
    const bool closed = before == 'E' || before == 'S' || (prefix != 'I' && prefix != 'E') || name != kind;
    if (inside && closed) {
      spans.push_back(span_of(words, kind, begun, place - 1));
      inside = false;
    }
    if (prefix != 'O' && !inside) begun = place;
    before = prefix;
    kind = name;
  }
  return spans;
}

}  // namespace hydrant
