// Replaces serve.cpp in builds without an HTTP library.
#include "commands.h"

namespace hydrant {

void reserve_signals() {}

void serve(const Predictor&, const Arguments&) {
  throw InputError("this hydrant-run was built without libmicrohttpd; install libmicrohttpd-dev and build it again");
}

}  // namespace hydrant
