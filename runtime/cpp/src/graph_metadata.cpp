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

constexpr std::uint64_t kMaxEntryBytes = 16U << 20U;

// A protocol-buffer varint: seven bits per byte, lowest first.
std::uint64_t number(std::istream& stream) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint64_t>(stream.get());
    if (!stream) break;
    value |= (byte & 0x7FU) << shift;
    if (byte < 0x80U) return value;
  }
  throw std::invalid_argument("an endless number");
}

// Contents of a message's byte fields with one number. Throws std::invalid_argument: malformed.
std::vector<std::string> fields(std::istream& stream, std::uint64_t size, std::uint64_t wanted) {
  std::vector<std::string> contents;
  const auto at = [&] { return static_cast<std::uint64_t>(stream.tellg()); };
  while (at() < size) {
    const std::uint64_t key = number(stream), kind = key & 7U;
    if (kind == 0) {
      number(stream);
      continue;
    }
    const std::uint64_t length = kind == 1 ? 8 : kind == 5 ? 4 : kind == 2 ? number(stream) : size;
    if (length > size - at()) throw std::invalid_argument("a field past the end");
    if (key != (wanted << 3U | 2U)) {
      stream.seekg(static_cast<std::streamoff>(length), std::ios::cur);
      continue;
    }
    if (length > kMaxEntryBytes) throw std::invalid_argument("an entry of more than 16 MiB");
    stream.read(contents.emplace_back(length, '\0').data(), static_cast<std::streamsize>(length));
  }
  return contents;
}

// The first such field of an entry; empty without one.
std::string field(const std::string& entry, std::uint64_t wanted) {
  std::istringstream stream(entry);
  const std::vector<std::string> contents = fields(stream, entry.size(), wanted);
  return contents.empty() ? "" : contents.front();
}

// Metadata of an ONNX file; empty if it cannot be decoded.
std::map<std::string, std::string> metadata_of(const std::filesystem::path& file) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(file, failed);
  if (failed) return {};  // also for pipes, which would block
  std::ifstream stream(file, std::ios::binary);
  std::map<std::string, std::string> metadata;
  if (!stream) return metadata;
  try {
    for (const std::string& entry : fields(stream, size, kMetadata))
      metadata[field(entry, kKey)] = field(entry, kValue);
  } catch (const std::invalid_argument&) {
    return {};
  }
  return metadata;
}

// Reduces an entry to the values that matter; notes may differ between versions.
using Decisive = Json (*)(const Json& value);

Json whole(const Json& value) { return value; }

Json limits(const Json& thresholds) {
  Json values = Json::object();
  for (const auto& [name, entry] : thresholds.items()) values[name] = {member(entry, "score"), member(entry, "value")};
  return values;
}

Json set_values(const Json& conformal) {
  if (conformal.is_null()) return conformal;
  return {member(conformal, "method"), member(conformal, "quantile")};
}

Json interval_values(const Json& intervals) {
  if (intervals.is_null()) return intervals;
  return {member(intervals, "quantile"), member(intervals, "floor"), member(intervals, "bounds")};
}

// Invalid lists are returned unchanged.
Json label_decisions(const Json& labels) {
  Json values = member(labels, "temperatures");
  const Json& thresholds = member(labels, "thresholds");
  if (!values.is_array() || !thresholds.is_array()) return labels;
  values.insert(values.end(), thresholds.begin(), thresholds.end());
  return values;
}

// A metadata entry and its expected value.
struct Expected {
  const char* key;     // without "hydrant."
  const char* source;  // the bundle's file with the value
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
                            {"conformal", kCalibration, member(calibration, "conformal"), set_values},
                            {"intervals", kCalibration, member(calibration, "intervals"), interval_values},
                            {"label_decisions", kCalibration, member(calibration, "labels"), label_decisions}};
  const Json density = bundle.has(kDensity) ? Json(bundle.digest(kDensity)) : Json("none");
  all.push_back({"density_sha256", kByManifest, density, whole});
  if (bundle.has(kWeights))
    all.insert(all.begin() + 3, {"weights_sha256", kByManifest, bundle.digest(kWeights), whole});
  return all;
}

// Decodes a metadata text; strings and invalid JSON stay text.
Json decoded(const std::string& text, const Json& like) {
  if (like.is_string()) return text;
  try {
    return parse_json(text);
  } catch (const std::invalid_argument&) {
    return text;
  }
}

// The first pair of different entries of lists of one length; otherwise both values.
std::pair<Json, Json> different(const Json& actual, const Json& expected) {
  if (!actual.is_array() || !expected.is_array() || actual.size() != expected.size()) return {actual, expected};
  const auto [one, other] = std::mismatch(actual.begin(), actual.end(), expected.begin());
  return {*one, *other};
}

// Throws BundleError: the graph's metadata differ from its bundle.
void compare(const std::filesystem::path& file, const std::vector<Expected>& all) {
  const std::map<std::string, std::string> metadata = metadata_of(file);
  for (const auto& [key, source, value, decisive] : all) {
    const auto entry = metadata.find(std::string("hydrant.") + key);
    if (entry == metadata.end()) continue;
    const Json actual = decisive(decoded(entry->second, value)), expected = decisive(value);
    if (actual == expected) continue;
    const auto [theirs, ours] = different(actual, expected);
    throw BundleError(concat(file.string(), " has ", spaced(key), " ", shown(theirs), ", but ", source, " says ",
                             shown(ours), "; export the graph again with `hydrant export`"));
  }
}

// Returns true for graphs with metadata of the model; the tokenizer's has none.
bool is_graph(const std::string& name) { return ends_with(name, ".onnx") && name != "tokenizer.onnx"; }

}  // namespace

void check_graph(const Bundle& bundle, const std::string& name) { compare(bundle.path() / name, expected_of(bundle)); }

void check_all_graphs(const Bundle& bundle) {
  const std::vector<std::string> names = bundle.names();
  if (std::none_of(names.begin(), names.end(), is_graph)) return;
  const std::vector<Expected> all = expected_of(bundle);
  for (const std::string& name : names)
    if (is_graph(name)) compare(bundle.path() / name, all);
}

}  // namespace hydrant
