// Choosing one of a bundle's engines for this library and GPU; where none fits, the message has the command to rebuild.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle.h"
#include "engine_file.h"

namespace hydrant {

// What runs engines here.
struct Machine {
  std::string library;                    // "tensorrt" or "tensorrt-rtx"
  std::string version;                    // of the library
  std::optional<std::string> capability;  // of the GPU; nothing where there is none: it is then not compared
  bool refits = true;                     // can put weights into an engine that holds none, as Python can
};

// An engine that fits.
struct Chosen {
  std::string name;
  EngineFile facts;
  std::vector<std::string> rebuild;  // words of the command that builds it again
};

// The first engine that fits: FP16 before BF16 before FP32, then the longest text, the largest batch, the name.
// Only metadata is read. Throws BackendError with the command that builds one, or BundleError.
Chosen choose_engine(const Bundle& bundle, const Machine& machine, const std::optional<std::string>& precision);

// The bytes of an engine, compared with the manifest and the metadata. Throws BundleError.
std::string read_engine(const Bundle& bundle, const Chosen& chosen);

// The words of a command as a shell takes them.
std::string command_text(const std::vector<std::string>& words);

}  // namespace hydrant
