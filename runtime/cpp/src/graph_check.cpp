#include "graph_check.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

// The parts of an entry that decide; notes beside them may differ between versions.
using Decisive = Json (*)(const Json& value);

Json whole(const Json& value) { return value; }

Json limits(const Json& thresholds) {
  Json found = Json::object();
  for (const auto& [name, entry] : thresholds.items()) found[name] = {member(entry, "score"), member(entry, "value")};
  return found;
}

Json sets(const Json& conformal) {
  if (conformal.is_null()) return conformal;
  return {member(conformal, "method"), member(conformal, "quantile")};
}

// An entry of the metadata, and the value that it must have.
struct Expected {
  const char* name;
  const char* source;  // the file of the bundle that has the value
  Json value;
  Decisive decisive;
};

std::vector<Expected> expected_of(const Bundle& bundle) {
  constexpr const char *kManifest = "hydrant.json", *kCalibration = "calibration.json", *kWeights = "fused.safetensors";
  const Json calibration = bundle.read_json(kCalibration);
  std::vector<Expected> all{{"family", kManifest, bundle.family(), whole},
                            {"members", kManifest, bundle.members(), whole},
                            {"labels", kManifest, bundle.labels(), whole},
                            {"temperature", kCalibration, member(calibration, "temperature"), whole},
                            {"thresholds", kCalibration, member(calibration, "thresholds"), limits},
                            {"conformal", kCalibration, member(calibration, "conformal"), sets}};
  if (bundle.has(kWeights)) all.push_back({"weights_sha256", kManifest, bundle.digest(kWeights), whole});
  return all;
}

// Text of the metadata as what it stands for: a string as it is, all else as JSON; itself where it is none.
Json decoded(const std::string& text, const Json& like) {
  if (like.is_string()) return text;
  try {
    return parse_json(text);
  } catch (const std::invalid_argument&) {
    return text;
  }
}

// The first entries that differ of two lists of one length; other values as they are.
std::pair<Json, Json> different(const Json& found, const Json& expected) {
  if (!found.is_array() || !expected.is_array() || found.size() != expected.size()) return {found, expected};
  const auto [one, other] = std::mismatch(found.begin(), found.end(), expected.begin());
  return {*one, *other};
}

}  // namespace

void check_metadata(const Bundle& bundle, const std::string& graph,
                    const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, source, value, decisive] : expected_of(bundle)) {
    const auto entry = metadata.find(std::string("hydrant.") + name);
    if (entry == metadata.end()) continue;
    const Json found = decisive(decoded(entry->second, value)), expected = decisive(value);
    if (found == expected) continue;
    const auto [theirs, ours] = different(found, expected);
    throw BundleError((bundle.path() / graph).string() + " has " + name + " " + shown(theirs) + ", but " + source +
                      " says " + shown(ours) + ": they are of different bundles, or one was edited; export the graph " +
                      "again with `hydrant export`");
  }
}

}  // namespace hydrant
