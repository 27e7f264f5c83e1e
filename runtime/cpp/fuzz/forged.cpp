#include "forged.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "../src/files.h"
#include "../src/sha256.h"

namespace fs = std::filesystem;

namespace hydrant::fuzz {
namespace {

constexpr const char* kManifest = "hydrant.json";

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

Bundle Forged::with(const std::string& name, const std::string& bytes) const {
  Json manifest = Json::parse(manifest_);
  manifest["files"][name] = {{"bytes", bytes.size()}, {"sha256", sha256(bytes)}};
  write(name, bytes);
  write(kManifest, manifest.dump());
  return Bundle::open(path_);
}

}  // namespace hydrant::fuzz
