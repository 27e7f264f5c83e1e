// A shared library that is looked for when the program runs, so that one build serves machines with it and without.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace hydrant {

class Library {
 public:
  // Loads a library, which stays loaded, since NVIDIA's cannot be stopped. Throws BackendError with the `remedy`.
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

// Every method is safe to call from many threads.
class Plugins {
 public:
  // Registers a library under a name once; retries after a failure. Throws BackendError: another has the name.
  void add(const std::string& name, const std::filesystem::path& library, const std::function<void()>& registers);

 private:
  std::mutex lock_;
  std::map<std::string, std::filesystem::path> libraries_;
};

// A library's absolute path; ONNX Runtime looks for relative ones beside itself. Throws BackendError.
std::filesystem::path absolute_path(const std::filesystem::path& library);

// Operating system and processor, such as "linux-x86_64": an engine runs on no other.
std::string platform_name();

// Compute capability of the first NVIDIA GPU, such as "8.9", from the driver; nothing without one.
std::optional<std::string> this_gpu();

}  // namespace hydrant
