#include "view.h"

#include <algorithm>

#include "messages.h"

namespace hydrant {
View view_of(const Tensor& tensor) {
  return std::visit([&](const auto& values) -> View { return {tensor.shape, values.data()}; }, tensor.data);
}

Views views_of(const Tensors& tensors) {
  Views views;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t count = std::visit([](const auto& values) { return values.size(); }, tensor.data);
    const View view = view_of(tensor);
    if (count != count_of(tensor.shape))
      throw InputError(concat(name, " is ", described(view), ", but it has ", count, " values"));
    views.emplace(name, view);
  }
  return views;
}

Views rows_of(const Views& inputs, std::size_t first, std::size_t last) {
  Views rows;
  for (const auto& [name, whole] : inputs) {
    View& part = rows.emplace(name, whole).first->second;
    part.shape.front() = static_cast<std::int64_t>(last - first);
    std::visit([&, skip = first * width_of(whole.shape)](auto& values) { values += skip; }, part.data);
  }
  return rows;
}

std::size_t batch_of(const Views& inputs) {
  const auto rows = [](const Shape& shape) { return shape.empty() ? -1 : shape.front(); };
  const std::int64_t size = inputs.empty() ? -1 : rows(inputs.begin()->second.shape);
  const auto same = [&](const auto& each) { return rows(each.second.shape) == size; };
  if (size < 0 || !std::all_of(inputs.begin(), inputs.end(), same)) {
    throw InputError("the inputs are " + (inputs.empty() ? "none" : shapes_text(inputs)) +
                     "; expected tensors with the same number of rows");
  }
  return static_cast<std::size_t>(size);
}

std::optional<std::size_t> tokens_of(const Views& inputs) {
  const Shape& shape = inputs.begin()->second.shape;
  if (shape.size() != 2) return std::nullopt;
  return static_cast<std::size_t>(shape[1]);
}

std::size_t count_of(const Shape& shape) {
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t size) { return size < 0; })) return SIZE_MAX;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    if (count > SIZE_MAX / static_cast<std::size_t>(size)) return SIZE_MAX;
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

std::size_t width_of(const Shape& shape) { return count_of({shape.begin() + 1, shape.end()}); }

void extend(Outputs& whole, const Outputs& part) {
  for (const auto& [name, values] : part) whole[name].insert(whole[name].end(), values.begin(), values.end());
}

std::string described(const View& view) {
  constexpr const char* kTypes[] = {"float32", "int64", "uint8"};
  return std::string(kTypes[view.data.index()]) + " " + shape_text(view.shape);
}

std::string shapes_text(const Views& inputs) {
  std::vector<std::string> shapes;
  for (const auto& [name, view] : inputs) shapes.push_back(name + " " + shape_text(view.shape));
  return join(shapes);
}

}  // namespace hydrant
