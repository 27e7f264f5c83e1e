#include "backend.h"

#include <algorithm>

#include "engine.h"
#include "graph.h"
#include "library.h"
#include "messages.h"

namespace hydrant {
namespace {

constexpr const char* kNoGpu = "there is no NVIDIA GPU with its driver on this machine";

struct Kind : GraphKind {
  bool on_gpu;
  bool engines;  // runs the bundle's engines; `provider` may run its graphs
};

// All backends, in the order in which "auto" tries them.
const std::vector<Kind>& kinds() {
  static const std::vector<std::string> half_first{"fp16", "fp32"}, cpu{"fp32", "int8", "fp16"};
  static const std::vector<Kind> all{
      {{"tensorrt", "", {}}, true, true},
      {{"tensorrt-rtx", "NvTensorRTRTXExecutionProvider", half_first}, true, true},
      {{"onnxruntime-tensorrt", "TensorrtExecutionProvider", half_first}, true, false},
      {{"onnxruntime-cuda", "CUDAExecutionProvider", half_first}, true, false},
      {{"onnxruntime", "CPUExecutionProvider", cpu}, false, false},
  };
  return all;
}

const Kind& kind_of(const std::string& name) {
  for (const Kind& kind : kinds()) {
    if (kind.name == name) return kind;
  }
  if (name == "openvino" || name == "torch")
    throw BackendError("backend " + name + " needs Python; use `hydrant predict`, or auto, " + join(backend_names()));
  throw BackendError("backend " + cut(name) + " is unknown; expected auto, " + join(backend_names()));
}

// Returns true if ONNX Runtime replaces an engine: its plug-in is named, or it alone has the library.
bool runs_graph(const Kind& kind, const Options& options) {
  if (!kind.engines) return true;
  if (kind.provider.empty()) return false;
  return !options.provider_library.empty() || (!built_for(kind.name) && has_provider(kind.provider));
}

std::unique_ptr<const Backend> open_kind(const Bundle& bundle, const Architecture& architecture, const Kind& kind,
                                         const Options& options) {
  if (runs_graph(kind, options)) return std::make_unique<Graph>(bundle, architecture, kind, options);
  if (architecture.tokens)
    throw BackendError("backend " + kind.name + " has no engines for token classification; use onnxruntime");
  return open_engine(bundle, architecture, kind.name, options);
}

// Skipped backends with their reasons in one line; equal reasons are merged.
std::string reasons(const std::vector<Fallback>& skipped) {
  std::vector<std::pair<std::string, std::string>> grouped;
  for (const auto& [backend, reason] : skipped) {
    const auto same = std::find_if(grouped.begin(), grouped.end(),
                                   [&, why = reason](const auto& each) { return each.second == why; });
    if (same == grouped.end()) {
      grouped.emplace_back(backend, reason);
    } else {
      same->first += ", " + backend;
    }
  }
  std::vector<std::string> lines;
  for (const auto& [names, reason] : grouped) lines.push_back(names + ": " + reason);
  return join(lines, "; ");
}

}  // namespace

const std::vector<std::string>& backend_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Kind& kind : kinds()) all.push_back(kind.name);
    return all;
  }();
  return names;
}

std::optional<std::string> why_unavailable(const std::string& backend, const Options& options) {
  const Kind& kind = kind_of(backend);
  if (kind.on_gpu && !this_gpu()) return kNoGpu;
  return runs_graph(kind, options) ? why_no_provider(kind, options) : why_no_engines(kind.name);
}

std::unique_ptr<const Backend> open_backend(const Bundle& bundle, const Architecture& architecture,
                                            const Options& options, std::vector<Fallback>& fallbacks) {
  if (options.backend != "auto") return open_kind(bundle, architecture, kind_of(options.backend), options);
  const bool gpu = this_gpu().has_value();
  for (const Kind& kind : kinds()) {
    try {
      if (kind.on_gpu && !gpu) throw BackendError(kNoGpu);
      return open_kind(bundle, architecture, kind, options);
    } catch (const BackendError& error) {
      fallbacks.push_back({kind.name, error.what()});
    }
  }
  throw BackendError("no backend can run " + bundle.path().string() + ": " + reasons(fallbacks));
}

}  // namespace hydrant
