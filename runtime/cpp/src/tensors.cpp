#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "messages.h"

namespace hydrant {
namespace {

using Ids = std::vector<std::int64_t>;

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

// Integers [batch, sequence] from 0 to `limit` - 1; bytes are converted.
View integers(const std::string& name, const Tensor& tensor, std::int64_t limit,
              decltype(Checked::converted)& converted) {
  const auto* values = std::get_if<Ids>(&tensor.data);
  if (const auto* bytes = std::get_if<std::vector<std::uint8_t>>(&tensor.data))
    values = converted.emplace_back(std::make_unique<const Ids>(bytes->begin(), bytes->end())).get();
  if (values == nullptr || tensor.shape.size() != 2 || tensor.shape[1] < 1 || values->size() != count_of(tensor.shape))
    throw InputError(name + " is " + described(view_of(tensor)) + "; expected int64 [batch, sequence]");
  const auto [least, most] = std::minmax_element(values->begin(), values->end());
  if (least != values->end() && (*least < 0 || *most >= limit))
    throw InputError(concat(name, " has values from ", *least, " to ", *most, "; expected 0 to ", limit - 1));
  return {tensor.shape, values->data()};
}

void check_mask(const View& mask) {
  const auto* row = std::get<const std::int64_t*>(mask.data);
  for (std::int64_t index = 0; index < mask.shape[0]; ++index, row += mask.shape[1]) {
    if (std::all_of(row, row + mask.shape[1], [](std::int64_t value) { return value == 0; }))
      throw InputError(concat("attention_mask masks all of row ", index, "; expected at least one token"));
  }
}

Checked checked_ids(const Tensors& inputs, const Architecture& architecture) {
  const std::string ids_name = "input_ids", mask_name = "attention_mask", types_name = "token_type_ids";
  check_names(inputs, {ids_name, mask_name}, {ids_name, mask_name, types_name});
  Checked checked;
  const auto check = [&](const std::string& name, std::int64_t limit) {
    return checked.views.emplace(name, integers(name, inputs.at(name), limit, checked.converted)).first->second;
  };
  const Shape shape = check(ids_name, architecture.vocabulary).shape;
  if (shape[1] > architecture.max_sequence()) {
    throw InputError(
        concat("input_ids has ", shape[1], " tokens; ", architecture.reader, " at most ", architecture.max_sequence()));
  }
  if (inputs.count(types_name) > 0) check(types_name, std::max<std::int64_t>(architecture.token_types, 1));
  check(mask_name, 2);
  for (const auto& [name, view] : checked.views) {
    if (view.shape != shape)
      throw InputError(name + " has shape " + shape_text(view.shape) + "; expected the shape of input_ids, " +
                       shape_text(shape));
  }
  check_mask(checked.views.at(mask_name));
  if (architecture.token_types <= 1) {
    checked.views.erase(types_name);
  } else if (inputs.count(types_name) == 0) {
    const Ids& zeros = *checked.converted.emplace_back(std::make_unique<const Ids>(count_of(shape)));
    checked.views[types_name] = {shape, zeros.data()};
  }
  return checked;
}

}  // namespace

Views checked_pixels(const Tensor& pixels, const Architecture& architecture) {
  const Shape expected{architecture.channels, architecture.image_height, architecture.image_width};
  const auto* values = std::get_if<std::vector<float>>(&pixels.data);
  if (values == nullptr || pixels.shape.size() != 4 || values->size() != count_of(pixels.shape) ||
      !std::equal(expected.begin(), expected.end(), pixels.shape.begin() + 1)) {
    throw InputError("pixel_values is " + described(view_of(pixels)) + "; expected float32 [batch, " +
                     shape_text(expected).substr(1));
  }
  if (!std::all_of(values->begin(), values->end(), [](float value) { return std::isfinite(value); }))
    throw InputError("pixel_values has NaN or infinity; expected finite numbers");
  return {{"pixel_values", view_of(pixels)}};
}

Checked checked_tensors(const Tensors& inputs, const Architecture& architecture) {
  if (!architecture.image) return checked_ids(inputs, architecture);
  check_names(inputs, {"pixel_values"}, {"pixel_values"});
  return {{}, checked_pixels(inputs.at("pixel_values"), architecture)};
}

}  // namespace hydrant
