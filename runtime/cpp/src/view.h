// What backends take and give. Inputs are read where they lie: cutting a batch into rows copies nothing.
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

// Values in row-major order that another object owns; the types are those of `Tensor`, in the same order.
struct View {
  Shape shape;
  std::variant<const float*, const std::int64_t*, const std::uint8_t*> data;
};

// A model's inputs by name.
using Views = std::map<std::string, View>;

// A batch's outputs by name, each float32 in row-major order.
using Outputs = std::map<std::string, std::vector<float>>;

// A whole tensor.
View view_of(const Tensor& tensor);
View view_of(const Tensor&& tensor) = delete;  // it would outlive the tensor

// Whole tensors. Throws InputError: the shape of one does not fit the number of its values.
Views views_of(const Tensors& tensors);
Views views_of(const Tensors&& tensors) = delete;

// Rows [first, last) of every input.
Views rows_of(const Views& inputs, std::size_t first, std::size_t last);

// Number of rows. Throws InputError: it differs between the inputs, or there is none.
std::size_t batch_of(const Views& inputs);

// Tokens of a batch of texts; nothing for images.
std::optional<std::size_t> tokens_of(const Views& inputs);

// Number of values of a shape; SIZE_MAX, which no tensor has, where no memory could hold them or a size is negative.
std::size_t count_of(const Shape& shape);

// Values of one row.
std::size_t width_of(const Shape& shape);

// Adds the outputs of further rows.
void extend(Outputs& whole, const Outputs& part);

// The type and shape in words, such as "float32 [2, 3]".
std::string described(const View& view);

// The names and shapes of inputs in words.
std::string shapes_text(const Views& inputs);

}  // namespace hydrant
