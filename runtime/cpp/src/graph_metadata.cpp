#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "bundle.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

// Fields of ONNX's ModelProto and StringStringEntryProto.
constexpr std::uint64_t kMetadata = 14, kKey = 1, kValue = 2;

constexpr std::uint64_t kMostEntry = 16U << 20U;  // of an entry

// A number of a protocol-buffer message: seven bits in each byte, the lowest first.
std::uint64_t number(std::istream& stream) {
  std::uint64_t found = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint64_t>(stream.get());
    if (!stream) break;
    found |= (byte & 0x7FU) << shift;
    if (byte < 0x80U) return found;
  }
  throw std::invalid_argument("a number without an end");
}

// Contents of a message's byte fields of one number. Throws std::invalid_argument: no such message.
std::vector<std::string> fields(std::istream& stream, std::uint64_t size, std::uint64_t wanted) {
  std::vector<std::string> found;
  const auto at = [&] { return static_cast<std::uint64_t>(stream.tellg()); };
  while (at() < size) {
    const std::uint64_t key = number(stream), kind = key & 7U;
    if (kind == 0) {
      number(stream);
      continue;
    }
    const std::uint64_t length = kind == 1 ? 8 : kind == 5 ? 4 : kind == 2 ? number(stream) : size;
    if (length > size - at()) throw std::invalid_argument("a field that goes beyond the end");
    if (key != (wanted << 3U | 2U)) {
      stream.seekg(static_cast<std::streamoff>(length), std::ios::cur);
      continue;
    }
    if (length > kMostEntry) throw std::invalid_argument("an entry of more than 16 MiB");
    stream.read(found.emplace_back(length, '\0').data(), static_cast<std::streamsize>(length));
  }
  return found;
}

// The first such field of an entry; empty where it has none.
std::string field(const std::string& entry, std::uint64_t wanted) {
  std::istringstream stream(entry);
  const std::vector<std::string> found = fields(stream, entry.size(), wanted);
  return found.empty() ? "" : found.front();
}

// The metadata of an ONNX file; none where it cannot be decoded.
std::map<std::string, std::string> metadata_of(const std::filesystem::path& file) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(file, failed);
  if (failed) return {};  // also of what is no regular file: to open a pipe would wait for who writes to it
  std::ifstream stream(file, std::ios::binary);
  std::map<std::string, std::string> found;
  if (!stream) return found;
  try {
    for (const std::string& entry : fields(stream, size, kMetadata)) found[field(entry, kKey)] = field(entry, kValue);
  } catch (const std::invalid_argument&) {
    return {};
  }
  return found;
}

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

Json ends(const Json& intervals) {
  if (intervals.is_null()) return intervals;
  return {member(intervals, "quantile"), member(intervals, "floor"), member(intervals, "bounds")};
}

// Lists of others are left as they are: a bundle has none such.
Json label_decisions(const Json& labels) {
  Json found = member(labels, "temperatures");
  const Json& thresholds = member(labels, "thresholds");
  if (!found.is_array() || !thresholds.is_array()) return labels;
  found.insert(found.end(), thresholds.begin(), thresholds.end());
  return found;
}

// An entry of the metadata, and the value that it must have.
struct Expected {
  const char* key;     // without "hydrant."
  const char* source;  // the file of the bundle that has the value
  Json value;
  Decisive decisive;
};

std::vector<Expected> expected_of(const Bundle& bundle) {
  constexpr const char *kByManifest = "hydrant.json", *kCalibration = "calibration.json",
                       *kWeights = "fused.safetensors", *kDensity = "density.safetensors";
  const Json calibration = bundle.read_json(kCalibration);
  std::vector<Expected> all{{"family", kByManifest, bundle.family(), whole},
                            {"members", kByManifest, bundle.members(), whole},
                            {"labels", kByManifest, bundle.labels(), whole},
                            {"temperature", kCalibration, member(calibration, "temperature"), whole},
                            {"thresholds", kCalibration, member(calibration, "thresholds"), limits},
                            {"conformal", kCalibration, member(calibration, "conformal"), sets},
                            {"intervals", kCalibration, member(calibration, "intervals"), ends},
                            {"label_decisions", kCalibration, member(calibration, "labels"), label_decisions}};
  const Json density = bundle.has(kDensity) ? Json(bundle.digest(kDensity)) : Json("none");
  all.push_back({"density_sha256", kByManifest, density, whole});
  if (bundle.has(kWeights))
    all.insert(all.begin() + 3, {"weights_sha256", kByManifest, bundle.digest(kWeights), whole});
  return all;
}

// The value of a metadata text: a string where one is expected, else its JSON, or itself if it is not JSON.
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

// Refuses a graph whose metadata say something else than its bundle.
void compare(const std::filesystem::path& file, const std::vector<Expected>& all) {
  const std::map<std::string, std::string> metadata = metadata_of(file);
  for (const auto& [key, source, value, decisive] : all) {
    const auto entry = metadata.find(std::string("hydrant.") + key);
    if (entry == metadata.end()) continue;
    const Json found = decisive(decoded(entry->second, value)), expected = decisive(value);
    if (found == expected) continue;
    const auto [theirs, ours] = different(found, expected);
    std::string words = key;
    std::replace(words.begin(), words.end(), '_', ' ');
    throw BundleError(file.string() + " has " + words + " " + shown(theirs) + ", but " + source + " says " +
                      shown(ours) + ": they are of different bundles, or one was edited; export the graph again with " +
                      "`hydrant export`");
  }
}

// Whether a file of a bundle is a graph that tells of the model, which that of a tokenizer does not.
bool is_graph(const std::string& name) {
  constexpr std::string_view kEnding = ".onnx";
  return name.size() >= kEnding.size() && name.compare(name.size() - kEnding.size(), kEnding.size(), kEnding) == 0 &&
         name != "tokenizer.onnx";
}

}  // namespace

void check_graph(const Bundle& bundle, const std::string& name) { compare(bundle.path() / name, expected_of(bundle)); }

void check_all_graphs(const Bundle& bundle) {
  std::vector<std::string> graphs = bundle.names();
  graphs.erase(std::remove_if(graphs.begin(), graphs.end(), [](const auto& name) { return !is_graph(name); }),
               graphs.end());
  if (graphs.empty()) return;
  const std::vector<Expected> all = expected_of(bundle);
  for (const std::string& name : graphs) compare(bundle.path() / name, all);
}

}  // namespace hydrant
