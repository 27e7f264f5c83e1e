// Selection of an engine for this library and GPU; if none fits, the error has the command to rebuild.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bundle.h"
#include "engine_file.h"

namespace hydrant {

// The library and GPU of this machine.
struct Machine {
  std::string library;                    // "tensorrt" or "tensorrt-rtx"
  std::string version;                    // of the library
  std::optional<std::string> capability;  // of the GPU; nothing without a GPU: not compared
  bool refits = true;                     // can add weights to an engine without weights, as Python can
};

// A suitable engine.
struct Chosen {
  std::string name;
  EngineFile facts;
  std::vector<std::string> rebuild;  // words of the command that rebuilds it
};

// The first suitable engine by metadata: FP16 before BF16 before FP32, then longest text, largest batch, name.
// Throws BackendError: none, with the command that builds one; BundleError.
Chosen choose_engine(const Bundle& bundle, const Machine& machine, const std::optional<std::string>& precision);

// The bytes of an engine, checked against manifest and metadata. Throws BundleError.
std::string read_engine(const Bundle& bundle, const Chosen& chosen);

// A command, quoted for a shell.
std::string command_text(const std::vector<std::string>& words);

}  // namespace hydrant
