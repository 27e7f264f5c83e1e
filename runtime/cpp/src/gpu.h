// Whether there is an NVIDIA GPU.
#pragma once

namespace hydrant {

// Whether the driver is there and finds a GPU; no CUDA library is needed to ask.
bool has_gpu();

}  // namespace hydrant
