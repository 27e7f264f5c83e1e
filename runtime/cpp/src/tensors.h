// Checks of tensors from users.
#pragma once

#include <memory>

#include "architecture.h"
#include "hydrant/hydrant.h"
#include "view.h"

namespace hydrant {

// Checked inputs. Views point to the user's tensors, or to converted and added ones here.
struct Checked {
  std::vector<std::unique_ptr<const std::vector<std::int64_t>>> converted;
  Views views;
};

// Complete inputs within range; `token_type_ids` defaults to zeros. Throws InputError.
Checked checked_tensors(const Tensors& inputs, const Architecture& architecture);

// Valid `pixel_values`. Throws InputError.
Views checked_pixels(const Tensor& pixels, const Architecture& architecture);

}  // namespace hydrant
