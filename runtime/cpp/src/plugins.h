// Plug-in libraries, each of which a process registers once, however many sessions use it.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace hydrant {

// Every method is safe to call from many threads.
class Plugins {
 public:
  // Registers a library under a name unless that was done before. What `registers` throws is passed on, and the next
  // call tries again. Throws BackendError: another library has the name.
  void add(const std::string& name, const std::filesystem::path& library, const std::function<void()>& registers);

 private:
  std::mutex lock_;
  std::map<std::string, std::filesystem::path> libraries_;
};

// A library's path from the root on: ONNX Runtime would look for a relative one beside its own library. Throws
// BackendError: there is none, such as where the folder that the process works in was removed.
std::filesystem::path absolute_path(const std::filesystem::path& library);

}  // namespace hydrant
