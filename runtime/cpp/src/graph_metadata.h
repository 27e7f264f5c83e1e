// Whether a graph's metadata says the same of the model as the bundle.
#pragma once

#include <string>

#include "bundle.h"

namespace hydrant {

// Compares the entries `hydrant.*` of a graph; those that another tool left out are not compared, and a file that
// cannot be decoded is left to whoever loads it. Throws BundleError: the first entry that contradicts the bundle, with
// both values.
void check_graph(const Bundle& bundle, const std::string& name);

// The same of every graph of the bundle, whatever is to run: labels of one of them would be wrong. Weights are not
// read.
void check_all_graphs(const Bundle& bundle);

}  // namespace hydrant
