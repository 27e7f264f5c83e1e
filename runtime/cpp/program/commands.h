// The modes `--profile` and `--serve`.
#pragma once

#include <string>

#include "arguments.h"
#include "rows.h"

namespace hydrant {

// The report, with the keys of `hydrant profile --json`: `settings`, `cases`, `warnings`, `skipped`, …
OrderedJson profile(const Predictor& predictor, const Arguments& arguments);

// The same as a table for a terminal.
std::string profile_text(const OrderedJson& report);

// Reserves SIGTERM and SIGINT for `serve`; call before starting threads.
void reserve_signals();

// Serves a bundle under its folder's name until SIGTERM or SIGINT, then finishes open requests for up to 30 s.
// Throws InputError: the address is not available, or the build has no HTTP library.
void serve(const Predictor& predictor, const Arguments& arguments);

}  // namespace hydrant
