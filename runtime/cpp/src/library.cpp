#include "library.h"

#include <dlfcn.h>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {

Library::Library(const std::string& name, const std::string& remedy)
    : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ != nullptr) return;
  const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it for each thread
  throw BackendError(name + " cannot be loaded (" + cut(why == nullptr ? "no reason given" : why, 200) + "); " +
                     remedy);
}

void* Library::address(const char* name) const {
  void* found = dlsym(handle_, name);
  if (found == nullptr) throw BackendError(name_ + " has no function " + name + "; install a newer one");
  return found;
}

}  // namespace hydrant
