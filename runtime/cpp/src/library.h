// A shared library that is looked for when the program runs, so that one build serves machines with it and without.
#pragma once

#include <string>

namespace hydrant {

class Library {
 public:
  // Loads a library from where the system looks for such; it stays loaded, since what NVIDIA's libraries start cannot
  // be stopped. Throws BackendError: it is not there or cannot be loaded; `remedy` says what to do.
  Library(const std::string& name, const std::string& remedy);

  // A function with C linkage, of the type `Function*`. Throws BackendError: the library lacks it.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  std::string name_;
  void* handle_;
};

}  // namespace hydrant
