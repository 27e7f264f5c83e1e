#include "library.h"

#include <dlfcn.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cctype>
#include <system_error>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace fs = std::filesystem;

namespace hydrant {

Library::Library(const std::string& name, const std::string& remedy)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ != nullptr) return;
  const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it for each thread
  throw BackendError(name + " cannot be loaded (" + cut(why == nullptr ? "no reason given" : why, 200) + "); " +
                     remedy);
}

void* Library::address(const char* name) const {
  void* function = dlsym(handle_, name);
  if (function == nullptr) throw BackendError(name_ + " has no function " + name + "; install a newer one");
  return function;
}

void Plugins::add(const std::string& name, const fs::path& library, const std::function<void()>& registers) {
  const std::lock_guard<std::mutex> held(lock_);
  const auto registered = libraries_.find(name);
  if (registered == libraries_.end()) {
    registers();
    libraries_.emplace(name, library);
    return;
  }
  std::error_code failed;
  if (library == registered->second || fs::equivalent(library, registered->second, failed)) return;
  throw BackendError("this process already runs " + name + " from " + registered->second.string() +
                     "; use that plug-in instead of " + library.string() + ", or start another process");
}

fs::path absolute_path(const fs::path& library) {
  std::error_code failed;
  fs::path path = fs::absolute(library, failed);
  if (!failed) return path;
  throw BackendError("the folder of " + cut(library.string()) + " is unknown (" + failed.message() +
                     "); expected an absolute path, or an existing working folder");
}

std::string platform_name() {
  struct utsname system{};
  uname(&system);
  std::string name = std::string(system.sysname) + "-" + system.machine;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return name;
}

std::optional<std::string> this_gpu() {
  try {
    const Library driver("libcuda.so.1", "install the driver");
    auto* const init = driver.function<int(unsigned)>("cuInit");
    auto* const get = driver.function<int(int*, int)>("cuDeviceGet");
    auto* const attribute = driver.function<int(int*, int, int)>("cuDeviceGetAttribute");
    int device = 0, major = 0, minor = 0;
    // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
    if (init(0) != 0 || get(&device, 0) != 0 || attribute(&major, 75, device) != 0 ||
        attribute(&minor, 76, device) != 0)
      return std::nullopt;
    return std::to_string(major) + "." + std::to_string(minor);
  } catch (const BackendError&) {
    return std::nullopt;
  }
}

}  // namespace hydrant
