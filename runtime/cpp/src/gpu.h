// What an engine is bound to: the platform that it was built on, and the GPU.
#pragma once

#include <optional>
#include <string>

namespace hydrant {

// Operating system and processor, such as "linux-x86_64": an engine runs on no other.
std::string platform_name();

// Compute capability of the first NVIDIA GPU, such as "8.9", from the driver; nothing without one.
std::optional<std::string> this_gpu();

}  // namespace hydrant
