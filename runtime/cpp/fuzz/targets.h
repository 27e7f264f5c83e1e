// What is fuzzed: every reader of files and requests that come from elsewhere.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hydrant::fuzz {

// One reader. It takes bytes, which it may refuse with a hydrant::Error, and nothing else.
struct Target {
  const char* name;
  // Throws Finding: what was taken says something that cannot be; or whatever else the reader lets through.
  void (*read)(const std::string& bytes);
};

// All of them.
const std::vector<Target>& targets();

// Where the files of a whole bundle lie, of which a target replaces one (runtime/cpp/fuzz/bundle).
void use_bundle(const std::filesystem::path& folder);

}  // namespace hydrant::fuzz
