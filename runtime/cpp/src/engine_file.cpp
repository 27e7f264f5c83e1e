#include "engine_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fields.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

constexpr const char* kBuildAgain = "build the engine again with `hydrant build`";
constexpr std::string_view kFolder = "engines/";
constexpr std::string_view kEnding = ".engine";

std::vector<Field> engine_fields() {
  std::vector<Field> fields{{"schema", Is::any}, {"compute_capabilities", Is::texts}, {"attention_blocks", Is::whole}};
  for (const char* name : {"library", "version", "precision", "platform", "onnx", "onnx_sha256", "engine_sha256",
                           "hardware_compatibility"})
    fields.push_back({name, Is::text});
  for (const char* name : {"version_compatible", "stripped", "refittable"}) fields.push_back({name, Is::flag});
  for (const char* name : {"profiles", "fused", "layers"}) fields.push_back({name, Is::list});
  fields.push_back({"unfusable", Is::object, false});
  return fields;
}

// A shape of positive sizes; empty if invalid.
Shape shape_of(const Json& sizes) {
  Shape shape;
  for (const Json& size : sizes) {
    const auto number = sizes.is_array() ? integer(size, 1, INT32_MAX) : std::nullopt;
    if (!number) return {};
    shape.push_back(*number);
  }
  return shape;
}

// Decodes a profile; nothing unless each input has three ascending shapes of one rank.
std::optional<Profile> profile_of(const Json& data) {
  if (!data.is_object() || data.empty()) return std::nullopt;
  Profile profile;
  for (const auto& [name, shapes] : data.items()) {
    if (!shapes.is_array() || shapes.size() != 3) return std::nullopt;
    const Shapes parsed{shape_of(shapes[0]), shape_of(shapes[1]), shape_of(shapes[2])};
    if (parsed.min.empty() || parsed.min.size() != parsed.opt.size() || parsed.opt.size() != parsed.max.size())
      return std::nullopt;
    for (std::size_t axis = 0; axis < parsed.min.size(); ++axis) {
      if (parsed.min[axis] > parsed.opt[axis] || parsed.opt[axis] > parsed.max[axis]) return std::nullopt;
    }
    profile[name] = parsed;
  }
  return profile;
}

}  // namespace

EngineFile EngineFile::read(const Bundle& bundle, const std::string& name) {
  return of(bundle.read_json(metadata_path(name)), (bundle.path() / metadata_path(name)).string());
}

EngineFile EngineFile::of(const Json& data, const std::string& file) {
  if (data.is_object()) check_schema(member(data, "schema"), file);
  check_fields(data, engine_fields(), file, kBuildAgain);
  const auto text = [&](const char* key) { return data[key].get<std::string>(); };
  EngineFile engine{text("library"),
                    text("version"),
                    text("precision"),
                    {},
                    data["compute_capabilities"].get<std::vector<std::string>>(),
                    text("platform"),
                    text("onnx"),
                    text("onnx_sha256"),
                    text("engine_sha256"),
                    data["version_compatible"].get<bool>(),
                    text("hardware_compatibility"),
                    data["stripped"].get<bool>(),
                    data["refittable"].get<bool>()};
  if (engine.library != "tensorrt" && engine.library != "tensorrt-rtx")
    throw BundleError(file + " has library " + cut(engine.library) + "; " + kBuildAgain);
  for (const Json& each : data["profiles"]) {
    auto profile = profile_of(each);
    if (!profile) throw BundleError(file + " has an optimization profile without three shapes; " + kBuildAgain);
    engine.profiles.push_back(std::move(*profile));
  }
  if (engine.profiles.empty()) throw BundleError(file + " has no profiles; " + kBuildAgain);
  return engine;
}

std::string engine_path(const std::string& name) { return concat(kFolder, name, kEnding); }

std::string metadata_path(const std::string& name) { return concat(kFolder, name, ".json"); }

std::vector<std::string> engine_names(const Bundle& bundle) {
  constexpr std::size_t kRest = kFolder.size() + kEnding.size();
  std::vector<std::string> names;
  for (const std::string& name : bundle.names()) {
    if (name.size() >= kRest && starts_with(name, kFolder) && ends_with(name, kEnding))
      names.push_back(name.substr(kFolder.size(), name.size() - kRest));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace hydrant
