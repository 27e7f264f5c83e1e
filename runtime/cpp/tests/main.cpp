// hydrant-test NAME GOLDEN: runs one test. Exit status 77: skipped, since something is missing.
#include <exception>
#include <iostream>
#include <map>

#include "check.h"

int main(int count, char** words) {
  namespace all = hydrant::tests;
  const std::map<std::string, void (*)(const std::filesystem::path&)> tests{
      {"choice", all::choice},       {"copies", all::copies},   {"engines", all::engines},
      {"golden", all::golden},       {"hostile", all::hostile}, {"inputs", all::inputs},
      {"lifecycle", all::lifecycle}, {"plugins", all::plugins}, {"plugin-sessions", all::plugin_sessions},
      {"resample", all::resample},   {"threads", all::threads}};
  const auto test = count == 3 ? tests.find(words[1]) : tests.end();
  if (test == tests.end()) {
    std::cerr << "usage: hydrant-test NAME GOLDEN, with a name of";
    for (const auto& [name, run] : tests) std::cerr << ' ' << name;
    std::cerr << '\n';
    return 2;
  }
  const bool needs_golden = test->second != all::plugins && test->second != all::resample;
  if (needs_golden && !std::filesystem::is_directory(words[2])) {
    std::cout << "skipped: " << words[2]
              << " is absent; python tests/golden.py makes it, in an environment with hydrant\n";
    return 77;
  }
#ifndef HYDRANT_STANDIN
  if (test->second == all::engines) {
    std::cout << "skipped: built without the headers of TensorRT 11.1, which -DTENSORRT_ROOT=FOLDER names\n";
    return 77;
  }
#endif
#ifndef HYDRANT_STANDIN_PLUGIN
  if (test->second == all::plugin_sessions) {
    std::cout
        << "skipped: built with headers of ONNX Runtime before 1.23; -DONNXRUNTIME_ROOT=FOLDER names newer ones\n";
    return 77;
  }
#endif
  try {
    test->second(words[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << words[1] << ": " << error.what() << '\n';
    return 1;
  }
}
