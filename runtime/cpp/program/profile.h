// `hydrant-run --profile`: latency and throughput, with the figures and rules of `hydrant profile`.
#pragma once

#include <string>

#include "arguments.h"
#include "rows.h"

namespace hydrant {

// What was measured, with the keys of `hydrant profile --json`: `settings`, `cases`, `warnings`, `skipped`, …
// Throws InputError: texts of a length that the model does not read.
OrderedJson profile(const Predictor& predictor, const Arguments& arguments);

// The same as a table for a terminal.
std::string profile_text(const OrderedJson& report);

}  // namespace hydrant
