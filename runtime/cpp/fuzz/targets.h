// Fuzzed readers: of all foreign files and requests.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hydrant::fuzz {

// One reader of bytes, which may throw only hydrant::Error.
struct Target {
  const char* name;
  // Throws Finding: an accepted value is impossible. Other exceptions of the reader are findings, too.
  void (*read)(const std::string& bytes);
};

const std::vector<Target>& targets();

// Sets the folder of the whole bundle in which targets replace a file (runtime/cpp/fuzz/bundle).
void use_bundle(const std::filesystem::path& folder);

}  // namespace hydrant::fuzz
