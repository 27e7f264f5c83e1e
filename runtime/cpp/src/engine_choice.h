// Choosing one of a bundle's engines for this library and GPU; an engine that does not fit is told how to rebuild.
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
  std::optional<std::string> capability;  // of the GPU; nothing where there is none, and all else is judged
  bool refits = true;                     // puts weights into an engine that holds none, as Python does
};

// An engine that fits.
struct Chosen {
  std::string name;
  EngineFile facts;
  std::vector<std::string> rebuild;  // words of the command that builds it again
};

// The first engine that fits: FP16 before BF16 before FP32, then by name. Only the twins are read here.
// Throws BackendError: there is no such engine, or none fits; the reason and the command that builds one are given.
// BundleError: a twin was altered or is malformed.
Chosen choose_engine(const Bundle& bundle, const Machine& machine, const std::optional<std::string>& precision);

// The bytes of an engine, after they were compared with the manifest and the twin. Throws BundleError: missing or
// altered.
std::string read_engine(const Bundle& bundle, const Chosen& chosen);

// The words of a command as a shell takes them.
std::string command_text(const std::vector<std::string>& words);

}  // namespace hydrant
