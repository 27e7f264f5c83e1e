// A bundle with one file from a fuzzer and its correct digest, as an attacker would write it.
#pragma once

#include <filesystem>
#include <string>

#include "../src/bundle.h"

namespace hydrant::fuzz {

class Forged {
 public:
  // Copies a whole bundle to a temporary folder, removed at the end.
  explicit Forged(const std::filesystem::path& whole);
  ~Forged();
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;

  const std::filesystem::path& path() const { return path_; }

  // Writes an unlisted file.
  void write(const std::string& name, const std::string& bytes) const;

  // The bundle with this file, listed in the manifest. Throws BundleError.
  Bundle with(const std::string& name, const std::string& bytes);

 private:
  std::filesystem::path path_;
  std::string manifest_, name_, before_, behind_;
};

}  // namespace hydrant::fuzz
