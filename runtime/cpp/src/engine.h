// Backends for engines: `tensorrt` and `tensorrt-rtx`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend.h"

namespace hydrant {

// Returns true if this library was built with headers for "tensorrt" or "tensorrt-rtx".
bool built_for(const std::string& library);

// The reason why a library's engines cannot run here; nothing if they can. Needs no bundle.
std::optional<std::string> why_no_engines(const std::string& library);

// Opens the bundle's first engine for this library and GPU. Throws BackendError: none, with the command that builds
// one; BundleError: the engine or its metadata is altered or malformed.
std::unique_ptr<const Backend> open_engine(const Bundle& bundle, const Architecture& architecture,
                                           const std::string& library, const Options& options);

}  // namespace hydrant
