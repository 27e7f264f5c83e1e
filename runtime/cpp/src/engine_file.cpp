#include "engine_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "hydrant/hydrant.h"
#include "messages.h"
#include "schema.h"

namespace hydrant {
namespace {

constexpr const char* kBuildAgain = "; build the engine again with `hydrant build`";
constexpr const char* kOrBuildAgain = ", or build the engine again with `hydrant build`";
constexpr const char* kFolder = "engines/";
constexpr const char* kEnding = ".engine";

struct Key {
  const char* name;
  Json::value_t kind;
};

constexpr Key kKeys[] = {
    {"library", Json::value_t::string},
    {"version", Json::value_t::string},
    {"precision", Json::value_t::string},
    {"profiles", Json::value_t::array},
    {"compute_capabilities", Json::value_t::array},
    {"platform", Json::value_t::string},
    {"onnx", Json::value_t::string},
    {"onnx_sha256", Json::value_t::string},
    {"engine_sha256", Json::value_t::string},
    {"version_compatible", Json::value_t::boolean},
    {"hardware_compatibility", Json::value_t::string},
    {"stripped", Json::value_t::boolean},
    {"refittable", Json::value_t::boolean},
    {"attention_blocks", Json::value_t::number_integer},
    {"fused", Json::value_t::array},
    {"layers", Json::value_t::array},
};

bool is_of(const Json& value, Json::value_t kind) {
  return kind == Json::value_t::number_integer ? value.is_number_integer() : value.type() == kind;
}

// Keys that are missing, unknown or of the wrong kind, quoted and sorted.
std::vector<std::string> wrong_keys(const Json& data) {
  std::set<std::string> wrong;
  for (const auto& [name, value] : data.items()) wrong.insert(name);
  wrong.erase("schema");
  for (const Key& key : kKeys) {
    const bool right = is_of(member(data, key.name), key.kind);
    if (right) wrong.erase(key.name);
    if (!right) wrong.insert(key.name);
  }
  if (wrong.empty() && data["library"] != "tensorrt" && data["library"] != "tensorrt-rtx") wrong.insert("library");
  if (wrong.empty() && data["profiles"].empty()) wrong.insert("profiles");
  std::vector<std::string> quoted;
  for (const std::string& name : wrong) quoted.push_back(cut(name));
  return quoted;
}

// A shape of positive sizes; empty for anything else.
Shape shape_of(const Json& sizes) {
  Shape shape;
  for (const Json& size : sizes) {
    const auto number = sizes.is_array() ? integer(size, 1, INT32_MAX) : std::nullopt;
    if (!number) return {};
    shape.push_back(*number);
  }
  return shape;
}

// Decoded JSON → profile; nothing unless each input has three shapes of one rank, from small to large.
std::optional<Profile> profile_of(const Json& data) {
  if (!data.is_object() || data.empty()) return std::nullopt;
  Profile profile;
  for (const auto& [name, shapes] : data.items()) {
    if (!shapes.is_array() || shapes.size() != 3) return std::nullopt;
    const Shapes made{shape_of(shapes[0]), shape_of(shapes[1]), shape_of(shapes[2])};
    if (made.min.empty() || made.min.size() != made.opt.size() || made.opt.size() != made.max.size())
      return std::nullopt;
    for (std::size_t axis = 0; axis < made.min.size(); ++axis) {
      if (made.min[axis] > made.opt[axis] || made.opt[axis] > made.max[axis]) return std::nullopt;
    }
    profile[name] = made;
  }
  return profile;
}

}  // namespace

EngineFile EngineFile::read(const Bundle& bundle, const std::string& name) {
  return of(bundle.read_json(metadata_path(name)), (bundle.path() / metadata_path(name)).string());
}

EngineFile EngineFile::of(const Json& data, const std::string& file) {
  if (!data.is_object())
    throw BundleError(file + " is a JSON " + data.type_name() + "; expected an object" + kBuildAgain);
  if (!reads_schema(member(data, "schema")))
    throw BundleError(file + refused_schema(member(data, "schema"), nullptr, kOrBuildAgain));
  const auto garbled = [&](const std::vector<std::string>& keys) {
    return BundleError(file + " lacks, adds or garbles " + join(keys) + kBuildAgain);
  };
  const std::vector<std::string> wrong = wrong_keys(data);
  if (!wrong.empty()) throw garbled(wrong);
  const auto text = [&](const char* key) { return data[key].get<std::string>(); };
  EngineFile made{text("library"),
                  text("version"),
                  text("precision"),
                  {},
                  {},
                  text("platform"),
                  text("onnx"),
                  text("onnx_sha256"),
                  text("engine_sha256"),
                  data["version_compatible"].get<bool>(),
                  text("hardware_compatibility"),
                  data["stripped"].get<bool>(),
                  data["refittable"].get<bool>()};
  for (const Json& capability : data["compute_capabilities"]) {
    if (!capability.is_string()) throw garbled({"'compute_capabilities'"});
    made.compute_capabilities.push_back(capability.get<std::string>());
  }
  for (const Json& each : data["profiles"]) {
    auto profile = profile_of(each);
    if (!profile) throw BundleError(file + " holds an optimization profile without its three shapes" + kBuildAgain);
    made.profiles.push_back(std::move(*profile));
  }
  return made;
}

std::string engine_path(const std::string& name) { return kFolder + name + kEnding; }

std::string metadata_path(const std::string& name) { return kFolder + name + ".json"; }

std::vector<std::string> engine_names(const Bundle& bundle) {
  const std::string start = kFolder, end = kEnding;
  std::vector<std::string> names;
  for (const std::string& name : bundle.names()) {
    if (name.size() < start.size() + end.size() || name.compare(0, start.size(), start) != 0) continue;
    if (name.compare(name.size() - end.size(), end.size(), end) != 0) continue;
    names.push_back(name.substr(start.size(), name.size() - start.size() - end.size()));
  }
  std::sort(names.begin(), names.end());  // the files are sorted with their ending
  return names;
}

}  // namespace hydrant
