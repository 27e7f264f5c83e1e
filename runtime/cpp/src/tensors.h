// Tensors given by a user, checked before a backend sees them.
#pragma once

#include <memory>

#include "architecture.h"
#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// The inputs of a model after the checks. They lie where the user has them; only what was converted or added is here.
struct Checked {
  std::vector<std::unique_ptr<const std::vector<std::int64_t>>> made;
  Views views;
};

// The model's inputs, complete and within range; `token_type_ids` may be left out (zeros). Throws InputError.
Checked checked_tensors(const Tensors& inputs, const Architecture& architecture);

// `pixel_values` of the right kind, shape and range. Throws InputError.
Views checked_pixels(const Tensor& pixels, const Architecture& architecture);

}  // namespace hydrant
