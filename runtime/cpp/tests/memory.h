// Counts memory from `new`.
#pragma once

#include <cstddef>
#include <functional>

namespace hydrant::tests {

// Maximum additional bytes during a call.
std::size_t most_bytes(const std::function<void()>& call);

}  // namespace hydrant::tests
