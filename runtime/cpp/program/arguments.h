// The command line of hydrant-run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "http.h"
#include "hydrant/hydrant.h"
#include "rows.h"

namespace hydrant {

// An input on the command line.
struct InputArgument {
  std::string value;                // a text or file name; - for standard input
  std::optional<std::string> pair;  // the second text of a pair
  bool file = false;                // follows --input
};

struct Arguments {
  std::string bundle;
  std::vector<InputArgument> inputs;
  Options options;
  bool json = false;  // one object instead of lines
  RowOptions rows;
  bool verbose = false;
  bool list_backends = false;
  bool profile = false;
  std::vector<std::size_t> batches{1, 8};
  std::vector<std::size_t> sequences;  // empty: 128, or the model's maximum
  double seconds = 3;
  std::size_t iterations = 30;
  std::uint64_t seed = 0;
  bool serve = false;
  HttpLimits serving;
  bool help = false;
  bool version = false;
};

// Throws InputError: an option is unknown, lacks its value, is out of range, or has no effect.
Arguments parse_arguments(const std::vector<std::string>& words);

// The output of `--help`.
std::string help_text();

}  // namespace hydrant
