// Engine selection, errors and batches as in Python; without a library or GPU.
#include <iostream>
#include <nlohmann/json.hpp>

#include "../src/engine_choice.h"
#include "../src/engine_profiles.h"
#include "../src/files.h"
#include "../src/json.h"
#include "check.h"

namespace fs = std::filesystem;

namespace hydrant::tests {
namespace {

Json read(const fs::path& file) {
  const auto bytes = bytes_of(file);
  check(bytes.has_value(), file, " is absent; make the golden folder again");
  return parse_json(bytes.value());
}

std::optional<std::string> text_or_none(const Json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<std::string>());
}

// A message with "{bundle}" instead of the bundle's folder, quoted or not.
std::string without_path(std::string text, const fs::path& path) {
  for (const std::string& name : {command_text({path.string()}), path.string()}) {
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name))
      text.replace(at, name.size(), "{bundle}");
  }
  return text;
}

// The selected engine, or the kind of error.
Json outcome(const fs::path& path, const Json& request) {
  const Machine machine{request["library"], request["version"], text_or_none(request["capability"])};
  try {
    const Bundle bundle = Bundle::open(path);
    const Chosen chosen = choose_engine(bundle, machine, text_or_none(request["precision"]));
    read_engine(bundle, chosen);
    return {{"name", chosen.name}, {"rebuild", without_path(command_text(chosen.rebuild), path)}};
  } catch (const BackendError&) {
    return {{"error", "BackendError"}};
  } catch (const BundleError&) {
    return {{"error", "BundleError"}};
  }
}

void newer() {
  refuse<BundleError>("one.json has schema '2'", [] { EngineFile::of({{"schema", 2}}, "one.json"); });
  refuse<BundleError>("one.json is a JSON array", [] { EngineFile::of(Json::array(), "one.json"); });
}

void choices(const fs::path& folder) {
  const Json cases = read(folder / "choices.json");
  for (const Json& request : cases) {
    const Json result = outcome(folder / "engines" / request["bundle"].get<std::string>(), request);
    for (const auto& [key, value] : result.items())
      check(request.contains(key) && request[key] == value, request.dump(), ": C++ says ", value);
  }
  check(cases.size() > 500, "only ", cases.size(), " choices");
}

// Without refitting, the next engine is selected, or the error gives the reason.
void whole(const fs::path& engines) {
  const Machine machine{"tensorrt", "11.1.0.106", "8.9", false};
  const Bundle both = Bundle::open(engines / "stripped and whole");
  check(choose_engine(both, machine, {}).name == "b", "an engine without weights was chosen");
  try {
    choose_engine(Bundle::open(engines / "stripped"), machine, {});
  } catch (const BackendError& error) {
    check(std::string(error.what()).find("engine tensorrt-fp32 holds no weights") == 0, error.what());
    return;
  }
  check(false, "an engine without weights was accepted");
}

Profile profile_of(const Json& data) {
  Profile profile;
  for (const auto& [name, shapes] : data.items()) profile[name] = {shapes[0], shapes[1], shapes[2]};
  return profile;
}

Json json_of(const std::vector<Part>& parts) {
  Json all = Json::array();
  for (const Part& part : parts) {
    all.push_back({{"profile", part.profile}, {"start", part.start}, {"stop", part.stop}, {"rows", part.rows}});
    all.back()["tokens"] = part.tokens ? Json(*part.tokens) : Json();
  }
  return all;
}

void batches(const fs::path& folder) {
  const Json cases = read(folder / "parts.json");
  for (const Json& request : cases) {
    std::vector<Profile> all;
    for (const Json& each : request["profiles"]) all.push_back(profile_of(each));
    const Profiles profiles(all, request["rebuild"]);
    const auto tokens = request["tokens"].is_null() ? std::nullopt : std::optional<std::size_t>(request["tokens"]);
    const std::size_t rows = request["rows"];
    check(profiles.largest(rows, tokens) == request["largest"], request.dump(), ": ", profiles.largest(rows, tokens));
    const auto longest = profiles.longest();
    check((longest ? Json(*longest) : Json()) == request["longest"], request.dump(), ": another longest text");
    try {
      const Json parts = json_of(profiles.parts(rows, tokens));
      check(request.contains("parts") && parts == request["parts"], request.dump(), ": C++ says ", parts);
    } catch (const BackendError& error) {
      check(request.contains("text"), request.dump(), ": C++ says ", error.what());
    }
  }
  check(cases.size() > 200, "only ", cases.size(), " batches");
}

// Rows 1 and 2 of three texts of two tokens, in a run of three texts of three tokens.
void padding() {
  const Tensor ids{{3, 2}, std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}};
  std::vector<std::int64_t> filled(10, -1);
  const Shape shape = fill(view_of(ids), Part{0, 1, 3, 3, 3}, 9, filled.data());
  check(shape == Shape{3, 3}, "the padded batch has shape ", shape.size());
  check(filled == std::vector<std::int64_t>{3, 4, 9, 5, 6, 9, 5, 6, 9, -1}, "padding went to another place");
  const Tensor pixels{{2, 1, 1, 2}, std::vector<float>{1, 2, 3, 4}};
  std::vector<float> image(4);
  check(fill(view_of(pixels), Part{0, 0, 1, 2, {}}, 9, image.data()) == Shape{2, 1, 1, 2},
        "an image got another shape");
  check(image == std::vector<float>{1, 2, 1, 2}, "the missing image is not the last one");
}

void inputs() {
  const Shapes range{{1, 4}, {1, 8}, {2, 12}}, other{{1, 4}, {1, 8}, {3, 12}}, images{{1, 3, 2}, {1, 3, 2}, {2, 3, 2}};
  const Profiles text({{{"ids", range}, {"mask", range}}}, {"hydrant", "build"}), pixels({{{"x", images}}}, {});
  const Tensor ids{{1, 2}, std::vector<std::int64_t>{1, 2}}, two{{2, 1}, std::vector<std::int64_t>{1, 2}};
  const std::map<std::string, bool> types{{"ids", false}, {"mask", false}};
  text.check({{"ids", view_of(ids)}, {"mask", view_of(ids)}}, types);
  refuse<BackendError>("the inputs are ids; this engine takes ids, mask",
                       [&] { text.check({{"ids", view_of(ids)}}, types); });
  refuse<BackendError>("expected the same batch and sequence in all",
                       [&] { text.check({{"ids", view_of(ids)}, {"mask", view_of(two)}}, types); });
  const Tensor floats{{1, 2}, std::vector<float>{1, 2}}, image{{1, 3, 4}, std::vector<float>(12)};
  refuse<BackendError>("mask is float32 [1, 2]; this engine takes int64 [batch, sequence]",
                       [&] { text.check({{"ids", view_of(ids)}, {"mask", view_of(floats)}}, types); });
  refuse<BackendError>("x is float32 [1, 3, 4]; this engine takes float32 [batch, 3, 2]",
                       [&] { pixels.check({{"x", view_of(image)}}, {{"x", true}}); });
  refuse<BackendError>("the batch is empty", [&] { text.parts(0, 4); });
  refuse<BackendError>("profile 0 of the engine has", [&] { Profiles({{{"ids", range}, {"mask", other}}}, {}); });
}

}  // namespace

void choice(const fs::path& folder) {
  newer();
  padding();
  inputs();
  choices(folder / "bert");
  whole(folder / "bert" / "engines");
  batches(folder / "bert");
  std::cout << "engines are chosen and split batches as in Python\n";
}

}  // namespace hydrant::tests
