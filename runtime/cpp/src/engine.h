// The backends that run one of the bundle's engines: `tensorrt` and `tensorrt-rtx`.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend.h"

namespace hydrant {

// Whether this library was built with headers that serve "tensorrt" or "tensorrt-rtx".
bool built_for(const std::string& library);

// Why a library's engines cannot run here, or nothing if they can; no bundle is needed.
std::optional<std::string> why_no_engines(const std::string& library);

// The first engine of the bundle that fits the library and the GPU. Throws BackendError with the command that builds
// one, or BundleError: the engine or its metadata was altered or is malformed.
std::unique_ptr<const Backend> open_engine(const Bundle& bundle, const Architecture& architecture,
                                           const std::string& library, const Options& options);

}  // namespace hydrant
