// A bundle on disk: its manifest, read and validated, and its files, each compared with its SHA-256 before it is used.
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
  // Reads and validates the manifest; other files are checked when they are used. Throws BundleError.
  static Bundle open(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  const std::string& family() const { return family_; }
  const std::vector<std::string>& labels() const { return labels_; }
  std::int64_t members() const { return members_; }
  std::int64_t checkpoints() const { return checkpoints_; }          // whose weights were fused
  const std::set<std::string>& adapted() const { return adapted_; }  // modules that adapters change

  // Whether the manifest lists a file (relative, with "/").
  bool has(const std::string& name) const { return files_.count(name) > 0; }

  // SHA-256 of the manifest's bytes, as they were read.
  const std::string& manifest_digest() const { return manifest_digest_; }

  // Names of all files that the manifest lists, sorted.
  std::vector<std::string> names() const;

  // Digest of a file, as the manifest says. Throws BundleError: not listed.
  const std::string& digest(const std::string& name) const { return entry(name).sha256; }

  // Digest of a graph together with its external data, if it has any; what was made from it is known by this.
  std::string graph_digest(const std::string& name) const;

  // Path of a file whose bytes were compared with the manifest. Throws BundleError: not listed, missing or altered.
  std::filesystem::path file(const std::string& name) const;

  // The bytes of a small file, the same that were compared. Throws as `file`.
  std::string read(const std::string& name) const;

  // A JSON file, decoded. Throws BundleError: as `file`, or it is not JSON.
  Json read_json(const std::string& name) const;

  // Names of the processor's files, after all were compared and nothing else was found there; empty without one.
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
  void check_digest(const std::string& name, const std::string& found) const;

  std::filesystem::path folder_;
  std::string manifest_digest_;
  std::string family_;
  std::vector<std::string> labels_;
  std::int64_t members_ = 0;
  std::int64_t checkpoints_ = 1;
  std::set<std::string> adapted_;
  std::map<std::string, Entry> files_;
};

// Compares the entries `hydrant.*` of a graph with the bundle; missing ones and unreadable files pass. Throws
// BundleError: the first entry that differs, with both values.
void check_graph(const Bundle& bundle, const std::string& name);

// The same for every graph of the bundle, also those that do not run.
void check_all_graphs(const Bundle& bundle);

}  // namespace hydrant
