#include "engine_profiles.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <type_traits>

#include "engine_choice.h"
#include "messages.h"

namespace hydrant {
namespace {

std::size_t size_at(const Shape& shape, std::size_t axis) { return static_cast<std::size_t>(shape[axis]); }

// Number of variable axes: rows, and tokens of texts.
std::size_t free_axes(std::size_t rank) { return rank == 2 ? 2 : 1; }

// A command with its ranges of lengths replaced.
std::vector<std::string> with_sequence(const std::vector<std::string>& command, const std::string& sequence) {
  std::vector<std::string> words = command;
  for (auto at = words.begin(); (at = std::find(at, words.end(), "--sequence")) != words.end();)
    at = words.erase(at, at + 2);  // with its value
  words.insert(words.end(), {"--sequence", sequence});
  return words;
}

// An engine's type and shape, for messages.
std::string expected_tensor(bool floats, const Shape& most) {
  std::vector<std::string> axes{"batch"};
  if (most.size() == 2) axes.emplace_back("sequence");
  for (std::size_t axis = axes.size(); axis < most.size(); ++axis) axes.push_back(std::to_string(most[axis]));
  return (floats ? "float32 [" : "int64 [") + join(axes) + "]";
}

}  // namespace

Range::Range(std::size_t index_, const Profile& profile) : index(index_) {
  std::set<std::pair<std::size_t, std::size_t>> rows, tokens;
  for (const auto& [name, shapes] : profile) {
    rows.emplace(size_at(shapes.min, 0), size_at(shapes.max, 0));
    if (shapes.min.size() == 2) tokens.emplace(size_at(shapes.min, 1), size_at(shapes.max, 1));
    max_values += count_of(shapes.max);
  }
  if (rows.size() != 1 || tokens.size() > 1) {
    throw BackendError(concat("optimization profile ", index,
                              " of the engine has different ranges for its inputs; rebuild it with `hydrant build`"));
  }
  std::tie(min_rows, max_rows) = *rows.begin();
  text = !tokens.empty();
  if (text) std::tie(min_tokens, max_tokens) = *tokens.begin();
}

Part Range::part(std::size_t start, std::size_t stop, std::optional<std::size_t> tokens) const {
  Part padded{index, start, stop, std::max(stop - start, min_rows), {}};
  if (text && tokens) padded.tokens = std::max(*tokens, min_tokens);
  return padded;
}

Profiles::Profiles(std::vector<Profile> profiles, std::vector<std::string> rebuild)
    : profiles_(std::move(profiles)), rebuild_(std::move(rebuild)) {
  for (std::size_t index = 0; index < profiles_.size(); ++index) ranges_.emplace_back(index, profiles_[index]);
}

std::size_t Profiles::rows() const { return largest(SIZE_MAX, std::nullopt); }

std::optional<std::size_t> Profiles::longest() const {
  std::optional<std::size_t> most;
  for (const Range& range : ranges_) {
    if (range.text) most = std::max(most.value_or(0), range.max_tokens);
  }
  return most;
}

std::vector<Range> Profiles::ranges_for(std::optional<std::size_t> tokens) const {
  std::vector<Range> ranges;
  for (const Range& range : ranges_) {
    if (range.takes(tokens)) ranges.push_back(range);
  }
  return ranges;
}

std::size_t Profiles::largest(std::size_t rows, std::optional<std::size_t> tokens) const {
  std::vector<Range> ranges = ranges_for(tokens);
  if (ranges.empty()) ranges = ranges_;
  std::size_t most = 0;
  for (const Range& range : ranges) most = std::max(most, range.max_rows);
  return std::min(rows, most);
}

std::vector<Part> Profiles::parts(std::size_t rows, std::optional<std::size_t> tokens) const {
  if (rows < 1) throw BackendError("the batch is empty; expected at least one input");
  const std::vector<Range> ranges = ranges_for(tokens);
  if (ranges.empty()) throw too_long(tokens.value_or(0));
  const std::size_t most = largest(SIZE_MAX, tokens), pieces = (rows + most - 1) / most;
  const std::size_t step = (rows + pieces - 1) / pieces;
  std::vector<Part> parts;
  for (std::size_t start = 0; start < rows; start += step) {
    const std::size_t stop = std::min(start + step, rows);
    const auto cost = [&](const Range& range) {
      const Part part = range.part(start, stop, tokens);
      const bool fits = stop - start <= range.max_rows;
      return std::tuple(!fits, part.rows * part.tokens.value_or(1), range.max_values, range.index);
    };
    const auto best = std::min_element(ranges.begin(), ranges.end(),
                                       [&](const Range& a, const Range& b) { return cost(a) < cost(b); });
    parts.push_back(best->part(start, stop, tokens));
  }
  return parts;
}

std::size_t Profiles::max_values(const std::string& input) const {
  std::size_t most = 0;
  for (const Profile& profile : profiles_) most = std::max(most, count_of(profile.at(input).max));
  return most;
}

void Profiles::check(const Views& inputs, const std::map<std::string, bool>& floats) const {
  std::vector<std::string> names, wanted;
  for (const auto& [name, view] : inputs) names.push_back(name);
  for (const auto& [name, is_float] : floats) wanted.push_back(name);
  if (names != wanted)
    throw BackendError("the inputs are " + listing(names) + "; this engine takes " + listing(wanted));
  std::set<Shape> leading;
  for (const auto& [name, view] : inputs) {
    const Shape &most = profiles_.front().at(name).max, &shape = view.shape;
    const auto free = static_cast<std::ptrdiff_t>(free_axes(most.size()));
    const bool right = floats.at(name) == std::holds_alternative<const float*>(view.data) &&
                       !std::holds_alternative<const std::uint8_t*>(view.data) && shape.size() == most.size() &&
                       std::equal(shape.begin() + free, shape.end(), most.begin() + free);
    if (!right)
      throw BackendError(name + " is " + described(view) + "; this engine takes " +
                         expected_tensor(floats.at(name), most));
    leading.emplace(shape.begin(), shape.begin() + free);
  }
  if (leading.size() != 1)
    throw BackendError("the inputs have different shapes; expected the same batch and sequence in all");
}

BackendError Profiles::too_long(std::size_t tokens) const {
  std::size_t least = SIZE_MAX, most = 0;
  for (const Range& range : ranges_) {
    if (!range.text) continue;
    least = std::min(least, range.min_tokens);
    most = std::max(most, range.max_tokens);
  }
  const std::string length = std::to_string(tokens), shortest = std::to_string(least);
  const std::string sequence = shortest + ":" + std::to_string(std::min(most, tokens)) + ":" + length;
  return BackendError(concat("the texts have ", length, " tokens; this engine was built for ", shortest, " to ", most,
                             ": truncate them, or rebuild it with `", command_text(with_sequence(rebuild_, sequence)),
                             "`"));
}

Shape fill(const View& view, const Part& part, std::int64_t padding, void* target) {
  const std::size_t width = width_of(view.shape);
  const std::size_t wide = part.tokens.value_or(width);
  std::visit(
      [&](const auto& values) {
        using Value = std::remove_const_t<std::remove_pointer_t<std::decay_t<decltype(values)>>>;
        auto* to = static_cast<Value*>(target);
        for (std::size_t row = part.start; row < part.start + part.rows; ++row) {
          to = std::copy_n(values + std::min(row, part.stop - 1) * width, width, to);
          to = std::fill_n(to, wide - width, static_cast<Value>(padding));
        }
      },
      view.data);
  Shape shape = view.shape;
  shape[0] = static_cast<std::int64_t>(part.rows);
  if (part.tokens) shape[1] = static_cast<std::int64_t>(wide);
  return shape;
}

}  // namespace hydrant
