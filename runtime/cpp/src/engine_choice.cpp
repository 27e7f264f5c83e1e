#include "engine_choice.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <tuple>

#include "files.h"
#include "hydrant/hydrant.h"
#include "library.h"
#include "messages.h"

namespace hydrant {
namespace {

using Strings = std::vector<std::string>;

// In the order of preference.
const Strings& precisions() {
  static const Strings all{"fp16", "bf16", "fp32"};
  return all;
}

// The reason why TensorRT-RTX cannot compile hydrant's graphs for a GPU; null if it can.
const char* no_rtx(const std::string& capability) {
  if (capability == "7.5")
    return "(Turing), for which TensorRT-RTX compiles no float32 products such as the classifier's";
  if (capability == "9.0") return "(Hopper), which TensorRT-RTX does not support";
  if (capability == "10.0" || capability == "10.3")
    return "(Blackwell for data centres), which TensorRT-RTX does not support";
  return nullptr;
}

Strings build_command(const Bundle& bundle, const std::string& library, const std::string& precision) {
  return {"hydrant", "build", bundle.path().string(), "--backend", library, "--precision", precision};
}

// The range of an axis, shared by all inputs, as "min:opt:max".
std::string axis_text(const Profile& profile, std::size_t axis) {
  Strings sizes;
  const Shapes& shapes = profile.begin()->second;
  for (const Shape* shape : {&shapes.min, &shapes.opt, &shapes.max}) {
    if (shape->size() > axis) sizes.push_back(std::to_string((*shape)[axis]));
  }
  return join(sizes, ":");
}

bool is_text(const Profile& profile) {
  return std::all_of(profile.begin(), profile.end(), [](const auto& each) { return each.second.min.size() == 2; });
}

// The command that rebuilds an engine, from its metadata.
Strings rebuild_command(const Bundle& bundle, const std::string& name, const EngineFile& facts) {
  Strings words = build_command(bundle, facts.library, facts.precision), sequences;
  const auto add = [&](const std::string& option, const std::string& value) {
    words.insert(words.end(), {option, value});
  };
  for (const Profile& profile : facts.profiles) {
    add("--batch", axis_text(profile, 0));
    if (is_text(profile)) sequences.push_back(axis_text(profile, 1));
  }
  const bool same = std::adjacent_find(sequences.begin(), sequences.end(), std::not_equal_to<>()) == sequences.end();
  if (same && !sequences.empty()) sequences.resize(1);
  for (const std::string& sequence : sequences) add("--sequence", sequence);
  if (name != facts.library + "-" + facts.precision) add("--name", name);
  if (facts.library == "tensorrt-rtx") {
    for (const std::string& capability : facts.compute_capabilities) add("--compute-capability", capability);
  }
  if (facts.hardware_compatibility != "none") add("--hardware-compatibility", facts.hardware_compatibility);
  if (facts.version_compatible) words.emplace_back("--version-compatible");
  if (facts.stripped) {
    words.emplace_back("--strip-weights");
  } else if (facts.refittable) {
    words.emplace_back("--refit");
  }
  return words;
}

std::ptrdiff_t rank_of(const Bundle& bundle, const Chosen& engine) {
  const auto place = std::find(precisions().begin(), precisions().end(), engine.facts.precision);
  if (place != precisions().end()) return place - precisions().begin();
  throw BundleError((bundle.path() / metadata_path(engine.name)).string() + " has precision " +
                    cut(engine.facts.precision) + "; expected " + join(precisions()) + "; rebuild it with `" +
                    command_text(build_command(bundle, engine.facts.library, precisions().front())) + "`");
}

// Sort key of engines: precision, longest text (none for images), largest batch.
std::tuple<std::ptrdiff_t, std::int64_t, std::int64_t> order_of(const Bundle& bundle, const Chosen& engine) {
  std::int64_t tokens = 0, rows = 0;
  for (const Profile& profile : engine.facts.profiles) {
    for (const auto& [input, shapes] : profile) {
      if (!shapes.max.empty()) rows = std::max(rows, static_cast<std::int64_t>(shapes.max[0]));
      if (shapes.max.size() == 2) tokens = std::max(tokens, static_cast<std::int64_t>(shapes.max[1]));
    }
  }
  return {rank_of(bundle, engine), -tokens, -rows};
}

// Rejects a GPU that the library does not support.
void check_target(const Bundle& bundle, const Machine& machine, const std::string& precision) {
  const std::string capability = machine.capability.value_or("");
  const char* why = no_rtx(capability);
  if (machine.library != "tensorrt-rtx" || why == nullptr) return;
  throw BackendError(concat("this GPU has compute capability ", capability, " ", why, "; use --backend tensorrt: `",
                            command_text(build_command(bundle, "tensorrt", precision)), "`"));
}

// Requires an engine built from the bundle's current graph.
void check_source(const Bundle& bundle, const Chosen& engine) {
  const EngineFile& facts = engine.facts;
  const std::string graph = onnx_name(facts.precision), rebuild = "`" + command_text(engine.rebuild) + "`";
  if (facts.onnx != graph) {
    throw BundleError((bundle.path() / metadata_path(engine.name)).string() + " names the graph " + cut(facts.onnx) +
                      "; expected " + graph + "; rebuild it with " + rebuild);
  }
  if (!bundle.has(graph)) {
    throw BackendError(concat("engine ", engine.name, " was built from ", graph, ", which is missing; make it with ",
                              "`hydrant export ", bundle.path().string(), " --precision ", facts.precision,
                              "`, then rebuild the engine with ", rebuild));
  }
  const std::string now = bundle.graph_digest(graph);
  if (facts.onnx_sha256 != now) {
    throw BackendError(concat(graph, " has changed since engine ", engine.name, " was built (SHA-256 ",
                              now.substr(0, 12), "…, expected ", cut(facts.onnx_sha256.substr(0, 12)),
                              "); rebuild it with ", rebuild));
  }
  check_graph(bundle, graph);
}

// Engines without a compute capability pass; the library decides.
bool gpu_fits(const EngineFile& facts, const std::string& capability) {
  if (facts.hardware_compatibility == "ampere+") {
    int major = 0;
    std::from_chars(capability.data(), capability.data() + capability.size(), major);
    return major >= 8;
  }
  const auto& compiled = facts.compute_capabilities;
  return compiled.empty() || std::find(compiled.begin(), compiled.end(), capability) != compiled.end();
}

// Requires an engine for this system, library and GPU.
void check_machine(const Chosen& engine, const Machine& machine) {
  const EngineFile& facts = engine.facts;
  const std::string start = "engine " + engine.name + " was ", rebuild = command_text(engine.rebuild);
  if (facts.platform != platform_name()) {
    throw BackendError(start + "built on " + cut(facts.platform) + " and this machine is " + platform_name() +
                       "; engines are not portable: rebuild it here with `" + rebuild + "`");
  }
  if (facts.version != machine.version) {
    throw BackendError(start + "built with " + machine.library + " " + cut(facts.version) + " and " + machine.version +
                       " is installed; expected the same version: rebuild it with `" + rebuild + "`");
  }
  if (machine.capability && !gpu_fits(facts, *machine.capability)) {
    const bool rtx = machine.library == "tensorrt-rtx", ampere = facts.hardware_compatibility == "ampere+";
    throw BackendError(concat(start, "compiled for compute capability ", listing(facts.compute_capabilities),
                              ampere ? " (Ampere or newer)" : "", " and this GPU has ", *machine.capability,
                              "; rebuild it with `", rebuild, rtx ? " --compute-capability " + *machine.capability : "",
                              "`"));
  }
}

void check_weights(const Chosen& engine, const Machine& machine) {
  if (machine.refits || !engine.facts.stripped) return;
  throw BackendError("engine " + engine.name +
                     " holds no weights, and C++ cannot add them; use `hydrant predict`, or " +
                     "build it without --strip-weights");
}

// A word, quoted for a shell if necessary.
std::string quoted(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? "'\"'\"'" : std::string(1, letter);
  return text + "'";
}

}  // namespace

std::string command_text(const Strings& words) {
  Strings safe;
  std::transform(words.begin(), words.end(), std::back_inserter(safe), quoted);
  return join(safe, " ");
}

Chosen choose_engine(const Bundle& bundle, const Machine& machine, const std::optional<std::string>& precision) {
  if (precision && std::find(precisions().begin(), precisions().end(), *precision) == precisions().end()) {
    throw BackendError(concat("backend ", machine.library, " does not run precision ", cut(*precision), "; expected ",
                              join(precisions())));
  }
  const std::string first = precision.value_or(precisions().front());
  check_target(bundle, machine, first);
  std::vector<std::pair<decltype(order_of(bundle, Chosen())), Chosen>> fitting;
  for (const std::string& name : engine_names(bundle)) {
    Chosen engine{name, EngineFile::read(bundle, name), {}};
    if (engine.facts.library != machine.library || engine.facts.precision != precision.value_or(engine.facts.precision))
      continue;
    engine.rebuild = rebuild_command(bundle, name, engine.facts);
    const auto order = order_of(bundle, engine);
    fitting.emplace_back(order, std::move(engine));
  }
  if (fitting.empty()) {
    throw BackendError("bundle " + bundle.path().string() + " has no " + machine.library + " engine" +
                       (precision ? " in " + *precision : "") + "; build one with `" +
                       command_text(build_command(bundle, machine.library, first)) + "`");
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::optional<BackendError> reason;
  for (auto& [order, engine] : fitting) {
    try {
      check_source(bundle, engine);
      check_machine(engine, machine);
      check_weights(engine, machine);
      return std::move(engine);
    } catch (const BackendError& error) {
      if (!reason) reason = error;
    }
  }
  throw BackendError(reason.value());
}

std::string read_engine(const Bundle& bundle, const Chosen& chosen) {
  const std::string file = engine_path(chosen.name);
  std::string data = bundle.read(file);
  const std::string digest = sha256(data), &expected = chosen.facts.engine_sha256;
  if (digest == expected) return data;
  throw BundleError(concat((bundle.path() / file).string(), " is not what ", metadata_path(chosen.name),
                           " describes: its SHA-256 is ", digest.substr(0, 12), "…, expected ",
                           cut(expected.substr(0, 12)), "; rebuild it with `", command_text(chosen.rebuild), "`"));
}

}  // namespace hydrant
