// Counts the memory that this process takes with `new`.
#pragma once

#include <cstddef>
#include <functional>

namespace hydrant::tests {

// Most bytes that were taken at once, beside those before, while something ran.
std::size_t most_bytes(const std::function<void()>& call);

}  // namespace hydrant::tests
