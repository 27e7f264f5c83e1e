#include "forged.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../src/files.h"

namespace fs = std::filesystem;

namespace hydrant::fuzz {
namespace {

constexpr const char* kManifest = "hydrant.json";
constexpr const char* kEntry = "entry of the file";

fs::path new_folder() {
  std::string name = (fs::temp_directory_path() / "hydrant-fuzz-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name + "; set TMPDIR");
  return name;
}

}  // namespace

Forged::Forged(const fs::path& whole) : path_(new_folder()) {
  fs::copy(whole, path_, fs::copy_options::recursive);
  fs::create_directories(path_ / "processor");
  const auto manifest = bytes_of(path_ / kManifest);
  if (!manifest) throw std::runtime_error((whole / kManifest).string() + " is absent; expected a whole bundle");
  manifest_ = *manifest;
}

Forged::~Forged() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void Forged::write(const std::string& name, const std::string& bytes) const {
  std::ofstream stream(path_ / name, std::ios::binary);
  stream << bytes;
  if (!stream.flush()) throw std::runtime_error("cannot write " + (path_ / name).string());
}

Bundle Forged::with(const std::string& name, const std::string& bytes) {
  if (name != name_) {  // each target forges one file millions of times
    Json manifest = Json::parse(manifest_);
    manifest["files"][name] = kEntry;
    const std::string text = manifest.dump(), entry = Json(kEntry).dump();
    const std::size_t at = text.find(entry);
    before_ = text.substr(0, at);
    behind_ = text.substr(at + entry.size());
    name_ = name;
  }
  write(name, bytes);
  write(kManifest, before_ + R"({"bytes": )" + std::to_string(bytes.size()) + R"(, "sha256": ")" + sha256(bytes) +
                       R"("})" + behind_);
  return Bundle::open(path_);
}

}  // namespace hydrant::fuzz
