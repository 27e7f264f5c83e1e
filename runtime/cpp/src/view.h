// Inputs and outputs of backends. Inputs are not copied, not even for rows of a batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "hydrant/hydrant.h"

namespace hydrant {

using Shape = std::vector<std::int64_t>;

// A non-owning tensor in row-major order, with the types of `Tensor` in the same order.
struct View {
  Shape shape;
  std::variant<const float*, const std::int64_t*, const std::uint8_t*> data;
};

// A model's inputs by name.
using Views = std::map<std::string, View>;

// A batch's outputs by name, each float32 in row-major order.
using Outputs = std::map<std::string, std::vector<float>>;

constexpr const char* kLogits = "logits";  // output for other software; never requested, see Prediction::logits

View view_of(const Tensor& tensor);
View view_of(const Tensor&& tensor) = delete;  // would dangle

// Whole tensors. Throws InputError: a shape does not match the number of values.
Views views_of(const Tensors& tensors);
Views views_of(const Tensors&& tensors) = delete;

// Rows [first, last) of every input.
Views rows_of(const Views& inputs, std::size_t first, std::size_t last);

// Number of rows. Throws InputError: it differs between inputs, or there are no inputs.
std::size_t batch_of(const Views& inputs);

// Tokens of a batch of texts; nothing for images.
std::optional<std::size_t> tokens_of(const Views& inputs);

// Number of values of a shape, and of one row; SIZE_MAX if it overflows or a size is negative.
std::size_t count_of(const Shape& shape);
std::size_t width_of(const Shape& shape);

// Appends outputs of further rows.
void extend(Outputs& whole, const Outputs& part);

// Type and shape, such as "float32 [2, 3]"; names and shapes of inputs, for messages.
std::string described(const View& view);
std::string shapes_text(const Views& inputs);

}  // namespace hydrant
