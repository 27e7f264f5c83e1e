// Tensors given by a user: checked before a backend sees them, cut into batches.
#pragma once

#include "architecture.h"
#include "hydrant/hydrant.h"

namespace hydrant {

// Outputs of one batch by name, each float32 in row-major order.
using Outputs = std::map<std::string, std::vector<float>>;

// The model's inputs, complete, of the right kind, and within range. `token_type_ids` may be left out (zeros); for a
// family without token types it is accepted when all zero. Throws InputError: a name, shape, type or value.
Tensors checked_tensors(const Tensors& inputs, const Architecture& architecture);

// Rows [first, last) of every tensor.
Tensors rows_of(const Tensors& inputs, std::size_t first, std::size_t last);

// Number of rows, which all tensors share.
std::size_t batch_of(const Tensors& inputs);

// Number of values of a shape; SIZE_MAX, which no tensor has, for one that no memory could hold or with a negative
// size.
std::size_t count_of(const std::vector<std::int64_t>& shape);

// The type and shape of a tensor in words, such as "float32 [2, 3]".
std::string described(const Tensor& tensor);

}  // namespace hydrant
