// In place of serve.cpp where the build found no HTTP library.
#include "commands.h"

namespace hydrant {

void keep_signals() {}

void serve(const Predictor&, const Arguments&) {
  throw InputError(
      "this hydrant-run was built without libmicrohttpd, so it cannot serve; install libmicrohttpd-dev and "
      "build it again");
}

}  // namespace hydrant
