// hydrant-test NAME GOLDEN: runs one test. Exit status 77: what it needs is absent.
#include <exception>
#include <iostream>
#include <map>

#include "check.h"

int main(int count, char** words) {
  namespace all = hydrant::tests;
  const std::map<std::string, void (*)(const std::filesystem::path&)> tests{
      {"choice", all::choice},   {"engines", all::engines},   {"golden", all::golden},
      {"hostile", all::hostile}, {"resample", all::resample}, {"threads", all::threads}};
  const auto test = count == 3 ? tests.find(words[1]) : tests.end();
  if (test == tests.end()) {
    std::cerr << "usage: hydrant-test choice|engines|golden|hostile|resample|threads GOLDEN\n";
    return 2;
  }
  if (test->second != all::resample && !std::filesystem::is_directory(words[2])) {
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
  try {
    test->second(words[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << words[1] << ": " << error.what() << '\n';
    return 1;
  }
}
