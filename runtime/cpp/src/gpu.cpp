#include "gpu.h"

#include <dlfcn.h>

#include <memory>

namespace hydrant {
namespace {

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

}  // namespace

bool has_gpu() {
  const std::unique_ptr<void, CloseLibrary> driver(
      dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));  // a driver in use is never unloaded
  if (!driver) return false;
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver.get(), "cuInit"));
  const auto get = reinterpret_cast<int (*)(int*, int)>(dlsym(driver.get(), "cuDeviceGet"));
  int device = 0;
  return init != nullptr && get != nullptr && init(0) == 0 && get(&device, 0) == 0;
}

}  // namespace hydrant
