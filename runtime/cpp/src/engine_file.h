// Metadata of a TensorRT engine: the JSON file beside it in `engines/`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bundle.h"
#include "view.h"

namespace hydrant {

// An optimization profile's shapes for one input, all of one rank.
struct Shapes {
  Shape min, opt, max;

  bool operator==(const Shapes& other) const { return min == other.min && opt == other.opt && max == other.max; }
};

// An optimization profile: input name → shapes.
using Profile = std::map<std::string, Shapes>;

struct EngineFile {
  std::string library;  // "tensorrt" or "tensorrt-rtx"
  std::string version;  // of the library that built it; must match at run time
  std::string precision;
  std::vector<Profile> profiles;                  // in the engine's order
  std::vector<std::string> compute_capabilities;  // of its target GPUs, such as "8.9"
  std::string platform;                           // such as "linux-x86_64"
  std::string onnx;                               // the graph's file in the bundle, and its digest then
  std::string onnx_sha256;
  std::string engine_sha256;
  bool version_compatible = false;
  std::string hardware_compatibility;  // "none", "ampere+" or "same"
  bool stripped = false;               // holds no weights
  bool refittable = false;

  // Throws BundleError: the file is missing, altered or malformed.
  static EngineFile read(const Bundle& bundle, const std::string& name);

  // The same from decoded JSON; messages use `file`.
  static EngineFile of(const Json& data, const std::string& file);
};

// Sorted names of a bundle's engines, and the paths of an engine and its metadata.
std::vector<std::string> engine_names(const Bundle& bundle);
std::string engine_path(const std::string& name);
std::string metadata_path(const std::string& name);

}  // namespace hydrant
