// Fitting batches to an engine: profiles, padding and splitting, sizes of buffers. No library is needed.
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

// Rows [start, stop) of a batch, which go into one run.
struct Part {
  std::size_t profile = 0;  // that runs them
  std::size_t start = 0, stop = 0;
  std::size_t rows = 0;               // after padding
  std::optional<std::size_t> tokens;  // after padding; nothing for images
};

// What one optimization profile takes, which all its inputs share.
struct Range {
  std::size_t index = 0;  // of the profile in the engine
  std::size_t min_rows = 0, max_rows = 0;
  bool text = false;  // else the tokens below mean nothing
  std::size_t min_tokens = 0, max_tokens = 0;
  std::size_t max_values = 0;  // in all inputs at their largest

  // Throws BackendError: the inputs of the profile do not share a range.
  Range(std::size_t index, const Profile& profile);

  // Whether texts of this length fit; texts that are too short are padded.
  bool takes(std::optional<std::size_t> tokens) const { return !text || !tokens || *tokens <= max_tokens; }

  // Rows of a batch as it runs, after padding to the smallest that the profile takes.
  Part part(std::size_t start, std::size_t stop, std::optional<std::size_t> tokens) const;
};

// The optimization profiles of an engine.
class Profiles {
 public:
  // `rebuild`: words of the command that builds the engine. Throws BackendError: inputs do not share a range.
  Profiles(std::vector<Profile> profiles, std::vector<std::string> rebuild);

  // Rows of the largest batch that any profile takes.
  std::size_t rows() const;

  // Tokens of the longest text that any profile takes; nothing for images.
  std::optional<std::size_t> longest() const;

  // How a batch runs: whole where a profile takes it, else in parts of nearly equal size, each by the profile that pads
  // it least. Throws BackendError: the batch is empty, or the texts are too long.
  std::vector<Part> parts(std::size_t rows, std::optional<std::size_t> tokens) const;

  // Most inputs of a batch that go into one run.
  std::size_t largest(std::size_t rows, std::optional<std::size_t> tokens) const;

  // Values in an input at its largest in any profile.
  std::size_t max_values(const std::string& input) const;

  // Throws BackendError: other names, types (`floats`: float32, else int64) or fixed sizes than the engine's.
  void check(const Views& inputs, const std::map<std::string, bool>& floats) const;

 private:
  std::vector<Range> ranges_for(std::optional<std::size_t> tokens) const;
  BackendError too_long(std::size_t tokens) const;

  std::vector<Profile> profiles_;
  std::vector<Range> ranges_;
  std::vector<std::string> rebuild_;
};

// Writes the rows of a part, padded to its profile (rows repeat the last one), to `target`; returns their shape.
Shape fill(const View& view, const Part& part, std::int64_t padding, void* target);

}  // namespace hydrant
