#include "bundle.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

#include "fields.h"
#include "files.h"
#include "hydrant/hydrant.h"
#include "messages.h"

namespace fs = std::filesystem;

namespace hydrant {
namespace {

constexpr const char* kManifest = "hydrant.json";
constexpr std::uintmax_t kMostManifestBytes = 16U << 20U;
constexpr const char* kMakeAgain = "make the bundle again with `hydrant fuse`";

// The whole of a file. Throws BundleError: it cannot be read.
std::string readable(const fs::path& path) {
  auto bytes = bytes_of(path);
  if (!bytes) throw BundleError("cannot read " + path.string() + "; check its permissions");
  return std::move(*bytes);
}

Json decoded(const std::string& bytes, const fs::path& path) {
  try {
    return parse_json(bytes);
  } catch (const std::invalid_argument& error) {
    throw BundleError(path.string() + " is not JSON (" + one_line(error.what()) + "); " + kMakeAgain);
  }
}

// Whether a manifest's name stays inside the folder: relative and normal, with "/" alone between its parts.
bool is_safe(const std::string& name) {
  const fs::path path(name);
  return name.find_first_of(std::string("\\:\0", 3)) == std::string::npos && path.is_relative() &&
         name.find("//") == std::string::npos &&
         std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part.empty() || part == "." || part == ".."; }) &&
         !name.empty();
}

// Whether a write into a bundle is going on, or was interrupted: its files wait in a hidden folder with a journal.
bool is_being_written(const fs::path& folder) {
  std::error_code failed;
  for (fs::directory_iterator walk(folder, failed), end; !failed && walk != end; walk.increment(failed)) {
    const fs::path& stage = walk->path();
    std::error_code absent;
    if (stage.filename().string().rfind(".hydrant.", 0) == 0 && stage.extension() == ".stage" &&
        fs::is_regular_file(stage / "journal.json", absent)) {
      return true;
    }
  }
  return false;
}

// What is wrong with a file of a bundle, and what to do unless a write explains it.
BundleError damaged(const fs::path& folder, const std::string& what, const std::string& otherwise) {
  if (!is_being_written(folder)) return BundleError(what + otherwise);
  return BundleError(what + ": a write into the bundle is going on, or was interrupted; try again, and if that does " +
                     "not help run `hydrant inspect " + folder.string() + "`, which finishes it");
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  std::error_code failed;
  const fs::path inner = fs::canonical(path, failed);
  const fs::path outer = failed ? fs::path() : fs::canonical(folder, failed);
  return !failed && std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

std::string onnx_name(const std::string& precision) { return "model." + precision + ".onnx"; }

Bundle Bundle::open(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) {
    throw BundleError(folder.string() +
                      " is not a folder; expected a bundle, which `hydrant make` or `hydrant fuse` makes");
  }
  const fs::path file = folder / kManifest;
  if (!fs::is_regular_file(file, ignored)) {
    throw BundleError(folder.string() + " holds no " + kManifest +
                      "; expected a bundle, which `hydrant make` or `hydrant fuse` makes");
  }
  if (fs::file_size(file, ignored) > kMostManifestBytes) {
    throw BundleError(file.string() + " is larger than " + std::to_string(kMostManifestBytes) +
                      " bytes; this is not a manifest of hydrant's");
  }
  Bundle bundle;
  bundle.folder_ = folder;
  const std::string bytes = readable(file);
  bundle.manifest_digest_ = sha256(bytes);
  bundle.read_manifest(decoded(bytes, file));
  return bundle;
}

void Bundle::read_manifest(const Json& manifest) {
  static constexpr Field fields[] = {
      {"schema", Is::any},           {"hydrant", Is::text}, {"family", Is::text},
      {"labels", Is::texts},         {"files", Is::object}, {"members", Is::whole, true, 1, 1 << 20},
      {"fusion", Is::object, false},
  };
  static constexpr Field fusion_fields[] = {
      {"checkpoints", Is::whole, false, 1}, {"separate", Is::texts, false}, {"adapted", Is::object, false}};
  static constexpr Field form_fields[] = {{"rank", Is::whole, true, 1}, {"low_rank", Is::flag}};
  const std::string file = (folder_ / kManifest).string();
  if (manifest.is_object()) check_schema(member(manifest, "schema"), file, member(manifest, "hydrant"));
  check_fields(manifest, fields, file, kMakeAgain, true);
  family_ = manifest["family"].get<std::string>();
  members_ = manifest["members"].get<std::int64_t>();
  labels_ = manifest["labels"].get<std::vector<std::string>>();
  if (labels_.empty() || std::set<std::string>(labels_.begin(), labels_.end()).size() < labels_.size())
    throw BundleError(file + " has labels " + listing(labels_) + "; expected each name once");
  if (const Json& fusion = member(manifest, "fusion"); !fusion.is_null()) {
    check_fields(fusion, fusion_fields, file + ": fusion", kMakeAgain, true);
    checkpoints_ = fusion.value("checkpoints", std::int64_t{1});
    for (const auto& [module, form] : member(fusion, "adapted").items()) {
      check_fields(form, form_fields, file + ": fusion", kMakeAgain);
      adapted_.insert(module);
    }
  }
  read_files(manifest["files"]);
}

void Bundle::read_files(const Json& files) {
  static constexpr Field fields[] = {{"bytes", Is::whole, true, 0}, {"sha256", Is::text}};
  const std::string file = (folder_ / kManifest).string();
  for (const auto& [name, entry] : files.items()) {
    if (!is_safe(name)) {
      throw BundleError(file + " lists the file " + cut(name) + "; a bundle's files must stay inside its folder");
    }
    check_fields(entry, fields, file + ": " + cut(name), kMakeAgain);
    files_[name] = {entry["bytes"].get<std::uint64_t>(), entry["sha256"].get<std::string>()};
    if (files_[name].sha256.size() != 64) throw BundleError(file + ": " + cut(name) + " has a garbled sha256");
  }
}

std::vector<std::string> Bundle::names() const {
  std::vector<std::string> listed;
  for (const auto& [name, entry] : files_) listed.push_back(name);
  return listed;
}

std::string Bundle::graph_digest(const std::string& name) const {
  const auto data = files_.find(name + ".data");
  const std::string& graph = digest(name);
  return data == files_.end() ? graph : sha256(graph + data->second.sha256);
}

const Bundle::Entry& Bundle::entry(const std::string& name) const {
  const auto found = files_.find(name);
  if (found != files_.end()) return found->second;
  const bool graph = name.size() > 5 && name.substr(name.size() - 5) == ".onnx";
  throw BundleError("bundle " + folder_.string() + " has no " + name + "; " +
                    (graph ? "make it with `hydrant export`" : "make the bundle again"));
}

fs::path Bundle::place(const std::string& name) const {
  const std::uint64_t bytes = entry(name).bytes;
  const fs::path path = folder_ / name;
  std::error_code failed;
  if (!fs::is_regular_file(path, failed) || !is_inside(path, folder_)) {
    throw damaged(folder_, path.string() + " is listed in " + kManifest + " but is not a file there",
                  "; make the bundle again");
  }
  const std::uintmax_t size = fs::file_size(path, failed);
  if (failed || size != bytes) {
    throw damaged(
        folder_,
        path.string() + " has " + std::to_string(size) + " bytes, but the manifest says " + std::to_string(bytes),
        ": it was truncated or altered; write it again with hydrant");
  }
  return path;
}

void Bundle::check_digest(const std::string& name, const std::string& found) const {
  const std::string& expected = entry(name).sha256;
  if (found == expected) return;
  throw damaged(folder_,
                (folder_ / name).string() + " was altered: its SHA-256 is " + found.substr(0, 12) +
                    "…, but the manifest says " + one_line(expected.substr(0, 12)) + "…",
                "; write it again with hydrant");
}

fs::path Bundle::file(const std::string& name) const {
  fs::path path = place(name);
  try {
    check_digest(name, sha256_of(path));
  } catch (const InputError& error) {  // it cannot be read
    throw BundleError(error.what());
  }
  return path;
}

std::string Bundle::read(const std::string& name) const {
  std::string bytes = readable(place(name));
  check_digest(name, sha256(bytes));
  return bytes;
}

Json Bundle::read_json(const std::string& name) const { return decoded(read(name), folder_ / name); }

std::vector<std::string> Bundle::processor() const {
  const std::string start = "processor/";
  std::vector<std::string> names;
  for (const auto& [name, listed] : files_) {
    if (name.compare(0, start.size(), start) == 0) names.push_back(name);
  }
  for (const std::string& name : names) file(name);
  std::vector<std::string> unlisted;
  std::error_code failed;
  for (fs::recursive_directory_iterator walk(folder_ / "processor", failed), end; !failed && walk != end;
       walk.increment(failed)) {
    const std::string name = walk->path().lexically_relative(folder_).generic_string();
    std::error_code dangling;  // a link to nothing is not a folder either
    if (!walk->is_directory(dangling) && !has(name)) unlisted.push_back(name);
  }
  if (!unlisted.empty()) {
    std::sort(unlisted.begin(), unlisted.end());
    throw damaged(
        folder_,
        (folder_ / "processor").string() + " holds " + listing(unlisted) + ", which " + kManifest + " does not list",
        "; remove it");
  }
  return names;
}

}  // namespace hydrant
