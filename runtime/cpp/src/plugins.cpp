#include "plugins.h"

#include <system_error>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace fs = std::filesystem;

namespace hydrant {

void Plugins::add(const std::string& name, const fs::path& library, const std::function<void()>& registers) {
  const std::lock_guard<std::mutex> held(lock_);
  const auto found = libraries_.find(name);
  if (found == libraries_.end()) {
    registers();
    libraries_.emplace(name, library);
    return;
  }
  std::error_code failed;
  if (library == found->second || fs::equivalent(library, found->second, failed)) return;
  throw BackendError("this process already runs " + name + " from " + found->second.string() +
                     "; use that plug-in in place of " + library.string() + ", or start another process");
}

fs::path absolute_path(const fs::path& library) {
  std::error_code failed;
  fs::path found = fs::absolute(library, failed);
  if (!failed) return found;
  throw BackendError("the folder of " + cut(library.string()) + " cannot be told (" + failed.message() +
                     "); expected a path from the root on, or a working folder that is there");
}

}  // namespace hydrant
