#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "messages.h"

namespace hydrant {
namespace {

using Ids = std::vector<std::int64_t>;
using Pixels = std::vector<float>;

void check_names(const Tensors& inputs, const std::set<std::string>& needed, const std::set<std::string>& allowed) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : inputs) names.insert(name);
  if (std::includes(names.begin(), names.end(), needed.begin(), needed.end()) &&
      std::includes(allowed.begin(), allowed.end(), names.begin(), names.end())) {
    return;
  }
  throw InputError("tensors are named " + listing({names.begin(), names.end()}) + "; expected " +
                   listing({allowed.begin(), allowed.end()}));
}

// A tensor of integers [batch, sequence] from 0 to `limit` - 1.
Tensor integers(const std::string& name, const Tensor& given, std::int64_t limit) {
  Tensor tensor = given;
  if (const auto* bytes = std::get_if<std::vector<std::uint8_t>>(&given.data))
    tensor.data = Ids(bytes->begin(), bytes->end());
  const auto* values = std::get_if<Ids>(&tensor.data);
  if (values == nullptr || tensor.shape.size() != 2 || tensor.shape[1] < 1 ||
      values->size() != count_of(tensor.shape)) {
    throw InputError(name + " is " + described(given) + "; expected int64 [batch, sequence]");
  }
  if (values->empty()) return tensor;
  const auto [least, most] = std::minmax_element(values->begin(), values->end());
  if (*least < 0 || *most >= limit) {
    throw InputError(name + " has values from " + std::to_string(*least) + " to " + std::to_string(*most) +
                     "; expected 0 to " + std::to_string(limit - 1));
  }
  return tensor;
}

void check_mask(const Tensor& mask) {
  const auto& values = std::get<Ids>(mask.data);
  const auto tokens = static_cast<std::ptrdiff_t>(mask.shape[1]);
  for (std::int64_t row = 0; row < mask.shape[0]; ++row) {
    const auto start = values.begin() + static_cast<std::ptrdiff_t>(row) * tokens;
    if (std::all_of(start, start + tokens, [](std::int64_t value) { return value == 0; })) {
      throw InputError("attention_mask masks all of row " + std::to_string(row) + "; expected at least one token");
    }
  }
}

Tensors checked_ids(const Tensors& inputs, const Architecture& architecture) {
  const std::string ids_name = "input_ids", mask_name = "attention_mask", types_name = "token_type_ids";
  check_names(inputs, {ids_name, mask_name}, {ids_name, mask_name, types_name});
  const Tensor ids = integers(ids_name, inputs.at(ids_name), architecture.vocabulary);
  if (ids.shape[1] > architecture.max_sequence()) {
    throw InputError("input_ids has " + std::to_string(ids.shape[1]) + " tokens; this model reads at most " +
                     std::to_string(architecture.max_sequence()));
  }
  Tensor types{ids.shape, Ids(count_of(ids.shape))};
  if (inputs.count(types_name) > 0) {
    types = integers(types_name, inputs.at(types_name), std::max<std::int64_t>(architecture.token_types, 1));
  }
  Tensors tensors{{ids_name, ids}, {mask_name, integers(mask_name, inputs.at(mask_name), 2)}, {types_name, types}};
  for (const std::string& name : {mask_name, types_name}) {
    if (tensors[name].shape != ids.shape) {
      throw InputError(name + " has shape " + shape_text(tensors[name].shape) + "; expected " + shape_text(ids.shape) +
                       ", that of input_ids");
    }
  }
  check_mask(tensors[mask_name]);
  if (architecture.token_types <= 1) tensors.erase(types_name);
  return tensors;
}

Tensors checked_pixels(const Tensors& inputs, const Architecture& architecture) {
  check_names(inputs, {"pixel_values"}, {"pixel_values"});
  const Tensor& tensor = inputs.at("pixel_values");
  const std::vector<std::int64_t> expected{architecture.channels, architecture.image_height, architecture.image_width};
  const auto* values = std::get_if<Pixels>(&tensor.data);
  if (values == nullptr || tensor.shape.size() != 4 || values->size() != count_of(tensor.shape) ||
      !std::equal(expected.begin(), expected.end(), tensor.shape.begin() + 1)) {
    throw InputError("pixel_values is " + described(tensor) + "; expected float32 [batch, " +
                     shape_text(expected).substr(1));
  }
  if (!std::all_of(values->begin(), values->end(), [](float value) { return std::isfinite(value); })) {
    throw InputError("pixel_values holds NaN or infinity; expected finite numbers");
  }
  return inputs;
}

}  // namespace

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) return SIZE_MAX;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    if (count > SIZE_MAX / static_cast<std::size_t>(size)) return SIZE_MAX;
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

std::string described(const Tensor& tensor) {
  constexpr const char* kTypes[] = {"float32", "int64", "uint8"};
  return std::string(kTypes[tensor.data.index()]) + " " + shape_text(tensor.shape);
}

std::size_t batch_of(const Tensors& inputs) { return static_cast<std::size_t>(inputs.begin()->second.shape.front()); }

Tensors rows_of(const Tensors& inputs, std::size_t first, std::size_t last) {
  Tensors rows;
  for (const auto& [name, tensor] : inputs) {
    const std::size_t width = count_of({tensor.shape.begin() + 1, tensor.shape.end()});
    const auto part = [&, first = first, last = last](const auto& values) -> decltype(Tensor::data) {
      const auto start = values.begin();
      return std::decay_t<decltype(values)>(start + static_cast<std::ptrdiff_t>(first * width),
                                            start + static_cast<std::ptrdiff_t>(last * width));
    };
    Tensor& row = rows[name];
    row.shape = tensor.shape;
    row.shape.front() = static_cast<std::int64_t>(last - first);
    row.data = std::visit(part, tensor.data);
  }
  return rows;
}

Tensors checked_tensors(const Tensors& inputs, const Architecture& architecture) {
  return architecture.image ? checked_pixels(inputs, architecture) : checked_ids(inputs, architecture);
}

}  // namespace hydrant
