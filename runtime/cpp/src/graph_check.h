// What a graph's metadata says of the model, against what the bundle says.
#pragma once

#include <map>
#include <string>

#include "bundle.h"

namespace hydrant {

// Compares the entries `hydrant.*` of a graph; one that is absent, as another tool may have left it out, is not.
// Throws BundleError: the first that contradicts the bundle, with both values.
void check_metadata(const Bundle& bundle, const std::string& graph, const std::map<std::string, std::string>& metadata);

}  // namespace hydrant
