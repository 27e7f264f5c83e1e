// libFuzzer's program: the variable HYDRANT_FUZZ_TARGET names the target, HYDRANT_FUZZ_BUNDLE the whole bundle in which
// it replaces a file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "hydrant/hydrant.h"
#include "targets.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

const hydrant::fuzz::Target& chosen() {
  const auto& all = hydrant::fuzz::targets();
  const std::string name = variable("HYDRANT_FUZZ_TARGET");
  const auto target = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.name == name; });
  if (target != all.end()) return *target;
  std::cerr << "HYDRANT_FUZZ_TARGET is '" << name << "'; expected one of";
  for (const auto& each : all) std::cerr << ' ' << each.name;
  std::cerr << '\n';
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  hydrant::fuzz::use_bundle(variable("HYDRANT_FUZZ_BUNDLE"));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const hydrant::fuzz::Target& target = chosen();
  try {
    target.read({reinterpret_cast<const char*>(data), size});
  } catch (const hydrant::Error&) {  // expected; other exceptions end the program
  }
  return 0;
}
