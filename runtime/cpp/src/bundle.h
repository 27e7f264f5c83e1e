// A bundle on disk: its validated manifest, and files whose SHA-256 is checked before use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "json.h"

namespace hydrant {

// Name of the graph of a precision, such as "model.fp32.onnx".
std::string onnx_name(const std::string& precision);

class Bundle {
 public:
  // Reads and validates the manifest; other files are checked on use. Throws BundleError.
  static Bundle open(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  const std::string& family() const { return family_; }
  const std::vector<std::string>& labels() const { return labels_; }
  std::int64_t members() const { return members_; }
  std::int64_t checkpoints() const { return checkpoints_; }          // number of fused checkpoints
  const std::set<std::string>& adapted() const { return adapted_; }  // modules with adapters

  const std::string& manifest_digest() const { return manifest_digest_; }  // SHA-256

  // Returns true if the manifest lists a file (relative, with "/").
  bool has(const std::string& name) const { return files_.count(name) > 0; }

  std::vector<std::string> names() const;  // of all listed files, sorted

  // Digest of a file in the manifest. Throws BundleError: not listed.
  const std::string& digest(const std::string& name) const { return entry(name).sha256; }

  // Digest of a graph with its external data; identifies the source of engines and caches.
  std::string graph_digest(const std::string& name) const;

  // Path of a file, after its digest was checked. Throws BundleError: not listed, missing or altered.
  std::filesystem::path file(const std::string& name) const;

  // Checked bytes of a small file. Throws as `file`.
  std::string read(const std::string& name) const;

  // A decoded JSON file. Throws BundleError: as `file`, or not JSON.
  Json read_json(const std::string& name) const;

  // Checked files of the processor; empty without one. Throws BundleError: also for unlisted files in its folder.
  std::vector<std::string> processor() const;

 private:
  struct Entry {
    std::uint64_t bytes = 0;
    std::string sha256;
  };

  void read_manifest(const Json& manifest);
  void read_files(const Json& files);
  const Entry& entry(const std::string& name) const;
  std::filesystem::path place(const std::string& name) const;
  void check_digest(const std::string& name, const std::string& actual) const;

  std::filesystem::path folder_;
  std::string manifest_digest_;
  std::string family_;
  std::vector<std::string> labels_;
  std::int64_t members_ = 0;
  std::int64_t checkpoints_ = 1;
  std::set<std::string> adapted_;
  std::map<std::string, Entry> files_;
};

// Compares a graph's `hydrant.*` metadata, if any, with the bundle. Throws BundleError: an entry differs.
void check_graph(const Bundle& bundle, const std::string& name);

// The same for all graphs of the bundle.
void check_all_graphs(const Bundle& bundle);

}  // namespace hydrant
