#include "graph.h"

#include <algorithm>

#include "cache.h"
#include "messages.h"

namespace hydrant {
namespace {

using Precisions = std::vector<std::string>;

// Largest batch of one run of the TensorRT provider, which compiles for a range of batches, and the length of texts
// that its kernels are chosen for.
constexpr std::int64_t kTensorRtRows = 32, kTensorRtTokens = 64;

// Precision of the graph to run. Throws BackendError: the backend does not run it, or the bundle has none.
std::string choose_precision(const Bundle& bundle, const GraphKind& kind, const std::optional<std::string>& asked) {
  if (asked && std::find(kind.precisions.begin(), kind.precisions.end(), *asked) == kind.precisions.end()) {
    throw BackendError("backend " + kind.name + " does not run precision " + cut(*asked) + "; expected " +
                       join(kind.precisions));
  }
  const Precisions wanted = asked ? Precisions{*asked} : kind.precisions;
  for (const std::string& precision : wanted) {
    if (bundle.has(onnx_name(precision))) return precision;
  }
  const std::string folder = bundle.path().string();
  const std::string& first = wanted.front();
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

Provider provider_of(const Bundle& bundle, const Architecture& architecture, const GraphKind& kind,
                     const std::string& graph, const Options& options) {
  Provider provider{kind.provider, {}, {}};
  if (kind.name == "tensorrt-rtx") provider.library = options.provider_library;
  if (kind.name == "onnxruntime-tensorrt" || kind.name == "onnxruntime-cuda") provider.options["device_id"] = "0";
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

}  // namespace

std::optional<std::string> why_no_provider(const GraphKind& kind, const Options& options) {
  const bool rtx = kind.name == "tensorrt-rtx";
  if ((rtx && !options.provider_library.empty()) || has_provider(kind.provider)) return std::nullopt;
  const std::string remedy = rtx ? "give the plug-in that holds it (--provider-library)"
                                 : "link hydrant with a build of ONNX Runtime that has it";
  return "ONNX Runtime " + onnxruntime_version() + " has no " + kind.provider +
         ": this library was built without it; " + remedy;
}

Graph::Graph(const Bundle& bundle, const Architecture& architecture, const GraphKind& kind, const Options& options)
    : Backend(kind.name, choose_precision(bundle, kind, options.precision)) {
  if (const auto why = why_unavailable(kind.name, options))
    throw BackendError("backend " + kind.name + " cannot run here: " + *why);
  microbatch_ = Microbatch::of(bundle, architecture);
  const Provider provider = provider_of(bundle, architecture, kind, onnx_name(precision()), options);
  const std::filesystem::path file = graph_file(bundle, precision());
  session_ = std::make_unique<Session>(file, provider, options.threads);
}

std::size_t Graph::chunk(std::size_t batch, std::size_t tokens) const {
  if (name() == "onnxruntime") return microbatch_.chunk(tokens);
  if (name() == "onnxruntime-tensorrt") return std::min(batch, static_cast<std::size_t>(kTensorRtRows));
  return batch;
}

Outputs Graph::run(const Views& inputs) const {
  const std::size_t size = batch_of(inputs);
  const std::size_t most = std::max<std::size_t>(chunk(size, tokens_of(inputs).value_or(1)), 1);
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

}  // namespace hydrant
