#include "bundle.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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
constexpr std::uintmax_t kMaxManifestBytes = 16U << 20U;
constexpr const char* kMakeAgain = "make the bundle again with `hydrant fuse`";

std::string read_file(const fs::path& path) {
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

// Returns true if a listed name stays inside the folder: relative, normal, separated by "/" alone.
bool is_safe(const std::string& name) {
  const fs::path path(name);
  return name.find_first_of(std::string("\\:\0", 3)) == std::string::npos && path.is_relative() &&
         name.find("//") == std::string::npos &&
         std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part.empty() || part == "." || part == ".."; }) &&
         !name.empty();
}

// Returns true during a write, or after an interrupted one: a hidden folder then holds files and a journal.
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

// The error for a damaged file; `otherwise` is the advice unless a write explains the damage.
BundleError damaged(const fs::path& folder, const std::string& what, const std::string& otherwise) {
  if (!is_being_written(folder)) return BundleError(what + otherwise);
  return BundleError(what + ": a write into the bundle is running or was interrupted; try again, or finish it with " +
                     "`hydrant inspect " + folder.string() + "`");
}

}  // namespace

std::string onnx_name(const std::string& precision) { return "model." + precision + ".onnx"; }

Bundle Bundle::open(const fs::path& folder) {
  std::error_code ignored;
  const std::string expected = "; expected a bundle made by `hydrant make` or `hydrant fuse`";
  if (!fs::is_directory(folder, ignored)) throw BundleError(folder.string() + " is not a folder" + expected);
  const fs::path file = folder / kManifest, inner = folder / "hydrant";  // of a Hub repository
  if (!fs::exists(file, ignored) && is_repository(folder) && fs::is_regular_file(inner / kManifest, ignored))
    return open(inner);
  if (!fs::is_regular_file(file, ignored)) throw BundleError(folder.string() + " has no " + kManifest + expected);
  if (fs::file_size(file, ignored) > kMaxManifestBytes)
    throw BundleError(concat(file.string(), " is larger than ", kMaxManifestBytes, " bytes; expected a manifest"));
  Bundle bundle;
  bundle.folder_ = folder;
  const std::string bytes = read_file(file);
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
    if (!is_safe(name))
      throw BundleError(file + " lists the file " + cut(name) + "; a bundle's files must stay inside its folder");
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
  const auto place = files_.find(name);
  if (place != files_.end()) return place->second;
  throw BundleError("bundle " + folder_.string() + " has no " + name + "; " +
                    (ends_with(name, ".onnx") ? "make it with `hydrant export`" : "make the bundle again"));
}

fs::path Bundle::place(const std::string& name) const {
  const std::uint64_t bytes = entry(name).bytes;
  const fs::path path = folder_ / name;
  std::error_code failed;
  if (!fs::is_regular_file(path, failed) || !(is_inside(path, folder_) || is_hub_blob(path, folder_)))
    throw damaged(folder_, path.string() + " is listed in " + kManifest + " but missing", "; make the bundle again");
  const std::uintmax_t size = fs::file_size(path, failed);
  if (failed || size != bytes) {
    throw damaged(folder_, concat(path.string(), " has ", size, " bytes, but the manifest says ", bytes),
                  ": it was truncated or altered; write it again with hydrant");
  }
  return path;
}

void Bundle::check_digest(const std::string& name, const std::string& actual) const {
  const std::string& expected = entry(name).sha256;
  if (actual == expected) return;
  throw damaged(folder_,
                concat((folder_ / name).string(), " was altered: its SHA-256 is ", actual.substr(0, 12),
                       "…, but the manifest says ", one_line(expected.substr(0, 12)), "…"),
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
  std::string bytes = read_file(place(name));
  check_digest(name, sha256(bytes));
  return bytes;
}

Json Bundle::read_json(const std::string& name) const { return decoded(read(name), folder_ / name); }

std::vector<std::string> Bundle::processor() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : files_)
    if (starts_with(name, "processor/")) names.push_back(name);
  for (const std::string& name : names) file(name);
  std::vector<std::string> unlisted;
  std::error_code failed;
  for (fs::recursive_directory_iterator walk(folder_ / "processor", failed), end; !failed && walk != end;
       walk.increment(failed)) {
    const std::string name = walk->path().lexically_relative(folder_).generic_string();
    std::error_code dangling;  // a link to nothing is not a folder
    if (!walk->is_directory(dangling) && !has(name)) unlisted.push_back(name);
  }
  if (unlisted.empty()) return names;
  std::sort(unlisted.begin(), unlisted.end());
  throw damaged(
      folder_,
      concat((folder_ / "processor").string(), " has files that ", kManifest, " does not list: ", listing(unlisted)),
      "; remove them");
}

}  // namespace hydrant
