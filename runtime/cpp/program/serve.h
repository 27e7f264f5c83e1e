// `hydrant-run --serve`: answers over HTTP until it is told to stop.
#pragma once

#include "arguments.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// Keeps SIGTERM and SIGINT for `serve`, in this thread and those that it starts; called before any is started.
void keep_signals();

// Serves a bundle under the name of its folder until SIGTERM or SIGINT, and then until every request that was begun is
// answered, at most 30 seconds; a second signal ends that. Throws InputError: the address cannot be had, or this
// program was built without an HTTP library.
void serve(const Predictor& predictor, const Arguments& arguments);

}  // namespace hydrant
