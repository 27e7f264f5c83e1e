#include "gpu.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cctype>

#include "hydrant/hydrant.h"
#include "library.h"

namespace hydrant {

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
