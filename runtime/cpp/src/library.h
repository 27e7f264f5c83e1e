// Shared libraries loaded at run time, so that one build serves machines with and without them.
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
  // Loads a library for good, since NVIDIA's cannot be unloaded. Throws BackendError with the `remedy`.
  Library(const std::string& name, const std::string& remedy);

  // A function with C linkage. Throws BackendError: the library lacks it.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  std::string name_;
  void* handle_;
};

// Thread-safe.
class Plugins {
 public:
  // Registers a library under a name once; retries after a failure. Throws BackendError: the name is taken.
  void add(const std::string& name, const std::filesystem::path& library, const std::function<void()>& registers);

 private:
  std::mutex lock_;
  std::map<std::string, std::filesystem::path> libraries_;
};

// A library's absolute path; ONNX Runtime searches relative paths beside itself. Throws BackendError.
std::filesystem::path absolute_path(const std::filesystem::path& library);

// Operating system and processor, such as "linux-x86_64"; engines are bound to them.
std::string platform_name();

// Compute capability of the first NVIDIA GPU, such as "8.9", from the driver; nothing without one.
std::optional<std::string> this_gpu();

}  // namespace hydrant
