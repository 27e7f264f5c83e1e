#include "graph.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <tuple>

#include "fields.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

// Shapes for the TensorRT provider.
constexpr std::int64_t kTensorRtRows = 32, kTensorRtTokens = 64;

fs::path cache_folder() {
  const char* chosen = std::getenv("XDG_CACHE_HOME");  // NOLINT(concurrency-mt-unsafe): nothing here changes it
  const char* home = std::getenv("HOME");              // NOLINT(concurrency-mt-unsafe): likewise
  if (chosen != nullptr && fs::path(chosen).is_absolute()) return fs::path(chosen) / "hydrant";
  return fs::path(home == nullptr ? "/nonexistent" : home) / ".cache" / "hydrant";
}

// A folder below ~/.cache/hydrant that only this user can write to; nothing if it cannot be created.
std::optional<fs::path> private_folder(const std::vector<std::string>& names) {
  fs::path folder = cache_folder();
  std::error_code failed;
  fs::create_directories(folder.parent_path(), failed);
  for (std::size_t depth = 0; depth <= names.size(); ++depth) {
    if (depth > 0) folder /= names[depth - 1];
    struct stat status{};
    mkdir(folder.c_str(), S_IRWXU);
    if (stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return std::nullopt;
    if (status.st_uid != getuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
      throw BackendError(folder.string() + " must belong to you alone, since its engines are run; use chown and " +
                         "chmod 700, or set XDG_CACHE_HOME");
    }
  }
  return folder;
}

// Throws BackendError: the backend does not support the precision, or the bundle lacks its graph.
std::string choose_precision(const Bundle& bundle, const GraphKind& kind, const std::optional<std::string>& requested) {
  if (requested && std::find(kind.precisions.begin(), kind.precisions.end(), *requested) == kind.precisions.end()) {
    throw BackendError(concat("backend ", kind.name, " does not run precision ", cut(*requested), "; expected ",
                              join(kind.precisions)));
  }
  const std::vector<std::string> wanted = requested ? std::vector{*requested} : kind.precisions;
  for (const std::string& precision : wanted) {
    if (bundle.has(onnx_name(precision))) return precision;
  }
  const std::string folder = bundle.path().string(), &first = wanted.front();
  throw BackendError(concat("bundle ", folder, " has no ", onnx_name(first), "; make it with `hydrant export ", folder,
                            first == "fp32" ? "" : " --precision " + first, "`"));
}

std::filesystem::path graph_file(const Bundle& bundle, const std::string& precision) {
  const std::string name = onnx_name(precision);
  if (bundle.has(name + ".data")) bundle.file(name + ".data");
  return bundle.file(name);
}

// The TensorRT provider's shapes; without them it recompiles for each larger batch.
std::map<std::string, std::string> tensorrt_profiles(const Architecture& architecture) {
  const std::int64_t longest = architecture.max_sequence();
  const Shape image{architecture.channels, architecture.image_height, architecture.image_width};
  std::map<std::string, std::string> options;
  for (const auto& [name, rows, tokens] : {std::tuple{"min", std::int64_t{1}, std::int64_t{1}},
                                           {"opt", 8, std::min(kTensorRtTokens, longest)},
                                           {"max", kTensorRtRows, longest}}) {
    std::string shape = std::to_string(rows);
    for (const std::int64_t size : architecture.image ? image : Shape{tokens}) shape += "x" + std::to_string(size);
    std::vector<std::string> each;
    for (const std::string& input : architecture.input_names()) each.push_back(input + ":" + shape);
    options[concat("trt_profile_", name, "_shapes")] = join(each, ",");
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

// Rows (inputs × tokens × streams) per run, measured by benchmarks/graph_latency.py.
constexpr double kRows = 800;

// Returns true if a layer has adapters.
bool is_adapted(const std::set<std::string>& modules, std::size_t layer) {
  const std::string start = "layers." + std::to_string(layer) + ".";
  const auto first = modules.lower_bound(start);
  return first != modules.end() && starts_with(*first, start);
}

// The first layer in which members differ, or the number of layers. Throws BundleError.
std::size_t fork_of(const Json& plan, std::size_t layers, const std::set<std::string>& adapted,
                    const std::string& file) {
  static constexpr Field fields[] = {{"schema", Is::any},           {"family", Is::text},  {"layers", Is::whole},
                                     {"heads", Is::whole},          {"members", Is::list}, {"method", Is::text},
                                     {"provenance", Is::any, false}};
  static constexpr Field member_fields[] = {{"keep", Is::list}};
  if (plan.is_object()) check_schema(member(plan, "schema"), file);
  check_fields(plan, fields, file, "make the bundle again");
  const Json& members = plan["members"];
  if (members.empty()) throw BundleError(file + " has no members; make the bundle again");
  for (const Json& each : members) {
    check_fields(each, member_fields, file + ": a member", "make the bundle again");
    if (each["keep"].size() != layers) {
      throw BundleError(concat(file, " has a member with keep = ", shown(each["keep"]), "; expected ", layers,
                               " lists of heads; make the bundle again"));
    }
  }
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const Json& first = members[0]["keep"][layer];
    const auto same = [&](const Json& each) { return each["keep"][layer] == first; };
    if (!std::all_of(members.begin(), members.end(), same)) return layer;
    if (members.size() > 1 && is_adapted(adapted, layer)) return layer;
  }
  return layers;
}

}  // namespace

std::optional<std::string> why_no_provider(const GraphKind& kind, const Options& options) {
  const bool rtx = kind.name == "tensorrt-rtx";
  if ((rtx && !options.provider_library.empty()) || has_provider(kind.provider)) return std::nullopt;
  return concat("ONNX Runtime ", onnxruntime_version(), " was built without ", kind.provider, "; ",
                rtx ? "name its plug-in (--provider-library)" : "link hydrant with a build that has it");
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
  if (name() == "onnxruntime") return std::min(batch, microbatch_.chunk(tokens));
  if (name() == "onnxruntime-tensorrt") return std::min(batch, static_cast<std::size_t>(kTensorRtRows));
  return batch;
}

Outputs Graph::run(const Views& inputs) const {
  const std::size_t size = batch_of(inputs);
  const std::size_t most = std::max<std::size_t>(chunk(size, tokens_of(inputs).value_or(1)), 1);
  if (size <= most) return session_->run(inputs);
  const std::size_t pieces = (size + most - 1) / most, step = (size + pieces - 1) / pieces;
  Outputs joined;
  for (std::size_t first = 0; first < size; first += step)
    extend(joined, session_->run(rows_of(inputs, first, std::min(first + step, size))));
  return joined;
}

Microbatch Microbatch::of(const Bundle& bundle, const Architecture& architecture) {
  Microbatch microbatch;
  if (architecture.traced) {  // its number of tokens is unknown: batches are not split
    microbatch.streams_ = 0;
    return microbatch;
  }
  const auto layers = static_cast<std::size_t>(architecture.layers);
  const Json plan = bundle.read_json("plan.json");
  const std::size_t fork = fork_of(plan, layers, bundle.adapted(), (bundle.path() / "plan.json").string());
  const std::size_t trunk = bundle.checkpoints() == 1 ? fork : 0;
  const std::size_t streams = trunk + (layers - trunk) * plan["members"].size();
  microbatch.image_tokens_ = architecture.image ? static_cast<std::size_t>(architecture.max_sequence()) : 0;
  microbatch.streams_ = static_cast<double>(streams) / static_cast<double>(layers);
  return microbatch;
}

std::size_t Microbatch::chunk(std::size_t tokens) const {
  if (streams_ == 0) return SIZE_MAX;
  const std::size_t rows = image_tokens_ > 0 ? image_tokens_ : std::max<std::size_t>(tokens, 1);
  const double inputs = std::nearbyint(kRows / (static_cast<double>(rows) * streams_));
  return inputs < 1 ? 1 : static_cast<std::size_t>(inputs);
}

}  // namespace hydrant
