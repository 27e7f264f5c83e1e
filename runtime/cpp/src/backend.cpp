#include "backend.h"

#include <algorithm>

#include "cache.h"
#include "gpu.h"
#include "messages.h"
#include "tensors.h"

namespace hydrant {
namespace {

using Precisions = std::vector<std::string>;

constexpr const char* kNoGpu = "there is no NVIDIA GPU with its driver on this machine";
constexpr const char* kNative =
    "it runs engines of its own through Python only; run the graph with onnxruntime-tensorrt, or use `hydrant predict`";

// Largest batch of one run of the TensorRT provider, which compiles for a range of batches, and the length of texts
// that its kernels are chosen for.
constexpr std::int64_t kTensorRtRows = 32, kTensorRtTokens = 64;

struct Kind {
  std::string name;
  bool on_gpu;
  std::string provider;  // of ONNX Runtime; empty for what this library does not run
  Precisions runs;       // preferred ones first
};

// Every backend, in the order in which "auto" tries them.
const std::vector<Kind>& kinds() {
  static const Precisions half_first{"fp16", "fp32"}, cpu{"fp32", "int8", "fp16"};
  static const std::vector<Kind> all{
      {"tensorrt", true, "", {}},
      {"tensorrt-rtx", true, "NvTensorRTRTXExecutionProvider", half_first},
      {"onnxruntime-tensorrt", true, "TensorrtExecutionProvider", half_first},
      {"onnxruntime-cuda", true, "CUDAExecutionProvider", half_first},
      {"onnxruntime", false, "CPUExecutionProvider", cpu},
  };
  return all;
}

const Kind& kind_of(const std::string& name) {
  for (const Kind& kind : kinds()) {
    if (kind.name == name) return kind;
  }
  if (name == "openvino" || name == "torch") {
    throw BackendError("backend " + name + " runs through Python only; use `hydrant predict`, or choose auto, " +
                       join(backend_names()));
  }
  throw BackendError("backend " + cut(name) + " is unknown; expected auto, " + join(backend_names()));
}

// Precision of the graph to run. Throws BackendError: the backend does not run it, or the bundle has none.
std::string choose_precision(const Bundle& bundle, const Kind& kind, const std::optional<std::string>& asked) {
  if (asked && std::find(kind.runs.begin(), kind.runs.end(), *asked) == kind.runs.end()) {
    throw BackendError("backend " + kind.name + " does not run precision " + cut(*asked) + "; expected " +
                       join(kind.runs));
  }
  const Precisions wanted = asked ? Precisions{*asked} : kind.runs;
  for (const std::string& precision : wanted) {
    if (bundle.has(onnx_name(precision))) return precision;
  }
  const std::string folder = bundle.path().string(), first = wanted.front();
  throw BackendError("bundle " + folder + " has no " + onnx_name(first) + "; make it with `hydrant export " + folder +
                     (first == "fp32" ? "" : " --precision " + first) + "`");
}

std::filesystem::path graph_file(const Bundle& bundle, const std::string& precision) {
  const std::string name = onnx_name(precision);
  if (bundle.has(name + ".data")) bundle.file(name + ".data");
  return bundle.file(name);
}

// The TensorRT provider's ranges, without which it compiles anew for every batch that is larger than all before.
std::map<std::string, std::string> tensorrt_profiles(const Architecture& architecture) {
  const std::int64_t longest = architecture.max_sequence();
  struct Range {
    const char* name;
    std::int64_t rows, tokens;
  };
  std::map<std::string, std::string> options;
  for (const Range& range :
       {Range{"min", 1, 1}, {"opt", 8, std::min(kTensorRtTokens, longest)}, {"max", kTensorRtRows, longest}}) {
    std::string shape = std::to_string(range.rows);
    const std::vector<std::int64_t> sizes =
        architecture.image
            ? std::vector<std::int64_t>{architecture.channels, architecture.image_height, architecture.image_width}
            : std::vector<std::int64_t>{range.tokens};
    for (const std::int64_t size : sizes) shape += "x" + std::to_string(size);
    std::vector<std::string> each;
    for (const std::string& input : architecture.input_names()) each.push_back(input + ":" + shape);
    options[std::string("trt_profile_") + range.name + "_shapes"] = join(each, ",");
  }
  return options;
}

Provider provider_of(const Bundle& bundle, const Architecture& architecture, const Kind& kind, const std::string& graph,
                     const Options& options) {
  Provider provider{kind.provider, {}, {}};
  if (kind.name == "tensorrt-rtx") provider.library = options.provider_library;
  if (kind.on_gpu && kind.name != "tensorrt-rtx") provider.options["device_id"] = "0";
  if (kind.name == "onnxruntime-tensorrt") {
    provider.options.merge(tensorrt_profiles(architecture));
    const auto folder = private_folder({kind.name, bundle.graph_digest(graph) + "-" + onnxruntime_version()});
    for (const char* what : {"trt_engine_cache", "trt_timing_cache"}) {
      provider.options[std::string(what) + "_enable"] = folder ? "1" : "0";
      if (folder) provider.options[std::string(what) + "_path"] = folder->string();
    }
  }
  return provider;
}

// Backends that were passed over and why, in one line; those with the same reason share it.
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
    std::vector<std::string> made;
    for (const Kind& kind : kinds()) made.push_back(kind.name);
    return made;
  }();
  return names;
}

std::optional<std::string> why_unavailable(const std::string& backend, const Options& options) {
  const Kind& kind = kind_of(backend);
  if (kind.on_gpu && !has_gpu()) return kNoGpu;
  if (kind.provider.empty()) return kNative;
  const bool plugged = kind.name == "tensorrt-rtx" && !options.provider_library.empty();
  if (plugged || has_provider(kind.provider)) return std::nullopt;
  const std::string remedy = kind.name == "tensorrt-rtx" ? "give the plug-in that holds it (--provider-library)"
                                                         : "link hydrant with a build of ONNX Runtime that has it";
  return "ONNX Runtime " + onnxruntime_version() + " has no " + kind.provider +
         ": this library was built without it; " + remedy;
}

Backend::Backend(const Bundle& bundle, const Architecture& architecture, const std::string& name,
                 const Options& options)
    : name_(name) {
  const Kind& kind = kind_of(name);
  if (kind.provider.empty()) throw BackendError("backend " + name + " cannot run here: " + kNative);
  precision_ = choose_precision(bundle, kind, options.precision);
  if (const auto why = why_unavailable(name, options))
    throw BackendError("backend " + name + " cannot run here: " + *why);
  microbatch_ = Microbatch::of(bundle, architecture);
  const Provider provider = provider_of(bundle, architecture, kind, onnx_name(precision_), options);
  session_ = std::make_unique<Session>(graph_file(bundle, precision_), provider, options.threads);
}

std::size_t Backend::chunk(std::size_t batch, std::size_t tokens) const {
  if (name_ == "onnxruntime") return microbatch_.chunk(tokens);
  if (name_ == "onnxruntime-tensorrt") return std::min(batch, static_cast<std::size_t>(kTensorRtRows));
  return batch;
}

Outputs Backend::run(const Tensors& inputs) const {
  const std::size_t size = batch_of(inputs), tokens = static_cast<std::size_t>(inputs.begin()->second.shape[1]);
  const std::size_t most = std::max<std::size_t>(chunk(size, tokens), 1);
  if (size <= most) return session_->run(inputs);
  const std::size_t pieces = (size + most - 1) / most, step = (size + pieces - 1) / pieces;
  Outputs joined;
  for (std::size_t first = 0; first < size; first += step) {
    for (auto& [name, values] : session_->run(rows_of(inputs, first, std::min(first + step, size)))) {
      auto& whole = joined[name];
      whole.insert(whole.end(), values.begin(), values.end());
    }
  }
  return joined;
}

std::unique_ptr<const Backend> open_backend(const Bundle& bundle, const Architecture& architecture,
                                            const Options& options, std::vector<Fallback>& fallbacks) {
  if (options.backend != "auto") return std::make_unique<Backend>(bundle, architecture, options.backend, options);
  const bool gpu = has_gpu();
  for (const Kind& kind : kinds()) {
    try {
      if (kind.on_gpu && !gpu) throw BackendError(kNoGpu);
      return std::make_unique<Backend>(bundle, architecture, kind.name, options);
    } catch (const BackendError& error) {
      fallbacks.push_back({kind.name, error.what()});
    }
  }
  throw BackendError("no backend can run " + bundle.path().string() + ": " + reasons(fallbacks));
}

}  // namespace hydrant
