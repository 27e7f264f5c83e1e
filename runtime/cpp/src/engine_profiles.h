// Profiles, padding, splitting and buffer sizes of an engine. Needs no library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine_file.h"
#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// Rows [start, stop) of a batch, for one run.
struct Part {
  std::size_t profile = 0;
  std::size_t start = 0, stop = 0;
  std::size_t rows = 0;               // after padding
  std::optional<std::size_t> tokens;  // after padding; nothing for images
};

// The sizes that one optimization profile accepts, shared by its inputs.
struct Range {
  std::size_t index = 0;  // of the profile in the engine
  std::size_t min_rows = 0, max_rows = 0;
  bool text = false;  // if false, ignore the tokens below
  std::size_t min_tokens = 0, max_tokens = 0;
  std::size_t max_values = 0;  // in all inputs at their largest

  // Throws BackendError: the inputs of the profile do not share a range.
  Range(std::size_t index, const Profile& profile);

  // Returns true if texts of this length fit; shorter ones are padded.
  bool takes(std::optional<std::size_t> tokens) const { return !text || !tokens || *tokens <= max_tokens; }

  // A part of a batch, padded to the profile's minimum.
  Part part(std::size_t start, std::size_t stop, std::optional<std::size_t> tokens) const;
};

// The optimization profiles of an engine.
class Profiles {
 public:
  // `rebuild`: words of the rebuild command. Throws BackendError: inputs do not share a range.
  Profiles(std::vector<Profile> profiles, std::vector<std::string> rebuild);

  // Maximum rows and tokens of all profiles; no tokens for images.
  std::size_t rows() const;
  std::optional<std::size_t> longest() const;

  // Splits a batch: whole if a profile accepts it, else into nearly equal parts, each with the least padding.
  // Throws BackendError: the batch is empty, or the texts are too long.
  std::vector<Part> parts(std::size_t rows, std::optional<std::size_t> tokens) const;

  // Maximum inputs per run, and maximum values of an input in all profiles.
  std::size_t largest(std::size_t rows, std::optional<std::size_t> tokens) const;
  std::size_t max_values(const std::string& input) const;

  // Throws BackendError: names, types (`floats`: float32, else int64) or fixed sizes differ from the engine's.
  void check(const Views& inputs, const std::map<std::string, bool>& floats) const;

 private:
  std::vector<Range> ranges_for(std::optional<std::size_t> tokens) const;
  BackendError too_long(std::size_t tokens) const;

  std::vector<Profile> profiles_;
  std::vector<Range> ranges_;
  std::vector<std::string> rebuild_;
};

// Writes a part, padded to its profile (repeating the last row), to `target`; returns its shape.
Shape fill(const View& view, const Part& part, std::int64_t padding, void* target);

}  // namespace hydrant
