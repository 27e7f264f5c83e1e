// What hydrant-run does beside predicting: `--profile` and `--serve`.
#pragma once

#include <string>

#include "arguments.h"
#include "rows.h"

namespace hydrant {

// The report, with the keys of `hydrant profile --json`: `settings`, `cases`, `warnings`, `skipped`, …
OrderedJson profile(const Predictor& predictor, const Arguments& arguments);

// The same as a table for a terminal.
std::string profile_text(const OrderedJson& report);

// Keeps SIGTERM and SIGINT for `serve`, in this thread and those that it starts; called before any is started.
void keep_signals();

// Serves a bundle under the name of its folder until SIGTERM or SIGINT, then finishes open requests for up to 30 s.
// Throws InputError: the address is not available, or this program was built without an HTTP library.
void serve(const Predictor& predictor, const Arguments& arguments);

}  // namespace hydrant
