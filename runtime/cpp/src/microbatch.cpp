#include "microbatch.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fields.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

// Rows (inputs × tokens × streams) of one run, about: measured by benchmarks/graph_latency.py.
constexpr double kRows = 800;

// Whether adapters change a module of a layer.
bool is_adapted(const std::set<std::string>& modules, std::size_t layer) {
  const std::string start = "layers." + std::to_string(layer) + ".";
  const auto found = modules.lower_bound(start);
  return found != modules.end() && found->compare(0, start.size(), start) == 0;
}

// First layer that differs between members, in its heads or by their adapters; the number of layers when none does.
// Throws BundleError: the plan is malformed.
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
      throw BundleError(file + " has a member with keep = " + shown(each["keep"]) + "; expected " +
                        std::to_string(layers) + " lists of heads; make the bundle again");
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

Microbatch Microbatch::of(const Bundle& bundle, const Architecture& architecture) {
  const auto layers = static_cast<std::size_t>(architecture.layers);
  const Json plan = bundle.read_json("plan.json");
  const std::size_t fork = fork_of(plan, layers, bundle.adapted(), (bundle.path() / "plan.json").string());
  const std::size_t trunk = bundle.checkpoints() == 1 ? fork : 0;
  const std::size_t streams = trunk + (layers - trunk) * plan["members"].size();
  Microbatch made;
  made.image_tokens_ = architecture.image ? static_cast<std::size_t>(architecture.max_sequence()) : 0;
  made.streams_ = static_cast<double>(streams) / static_cast<double>(layers);
  return made;
}

std::size_t Microbatch::chunk(std::size_t tokens) const {
  const std::size_t rows = image_tokens_ > 0 ? image_tokens_ : std::max<std::size_t>(tokens, 1);
  const double inputs = std::nearbyint(kRows / (static_cast<double>(rows) * streams_));
  return inputs < 1 ? 1 : static_cast<std::size_t>(inputs);
}

}  // namespace hydrant
