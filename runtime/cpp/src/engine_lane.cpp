#include "engine_lane.h"

#include <algorithm>
#include <cstdint>

#include "messages.h"

namespace hydrant {
namespace {

nvinfer1::Dims dims_of(const Shape& shape) {
  nvinfer1::Dims sizes{};
  sizes.nbDims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), sizes.d);
  return sizes;
}

}  // namespace

Lane::Lane(const Cuda& cuda, const Engine& engine, const Profiles& profiles)
    : cuda_(cuda), engine_(engine), stream_(cuda.new_stream()) {
  for (const auto& [name, floats] : engine.inputs())
    inputs_.emplace(name, buffer(profiles.max_values(name), floats ? sizeof(float) : sizeof(std::int64_t)));
  for (const auto& [name, shape] : engine.outputs()) {
    Shape most = shape;
    most[0] = static_cast<std::int64_t>(profiles.rows());
    outputs_.emplace(name, buffer(count_of(most), sizeof(float)));
  }
}

Lane::~Lane() {
  const OnFirstGpu here(cuda_);
  try {
    cuda_.synchronize(stream_.get());  // work left by a failure
  } catch (const BackendError&) {      // an earlier failure, reported again
  }
  contexts_.clear();
  inputs_.clear();
  outputs_.clear();
  stream_.reset();
}

Lane::Buffer Lane::buffer(std::size_t values, std::size_t size) const {
  if (values > SIZE_MAX / size) throw BackendError("the engine's largest batch fits into no memory; rebuild it");
  return {cuda_.host(values * size), cuda_.device(values * size)};
}

Outputs Lane::run(const Views& inputs, const Part& part, std::int64_t padding_token) {
  nvinfer1::IExecutionContext& runs = context(part.profile);
  for (const auto& [name, view] : inputs) upload(runs, name, view, part, name == "input_ids" ? padding_token : 0);
  if (!runs.enqueueV3(stream_.get())) throw engine_.failure("the engine failed to run");
  Outputs found;
  for (const auto& [name, shape] : engine_.outputs()) {
    if (name == kLogits) continue;
    const Buffer& buffer = outputs_.at(name);
    const std::size_t size = part.rows * width_of(shape) * sizeof(float);
    cuda_.download(buffer.host.get(), buffer.device.get(), size, stream_.get());
  }
  cuda_.synchronize(stream_.get());
  for (const auto& [name, shape] : engine_.outputs()) {
    if (name == kLogits) continue;
    const auto* values = static_cast<const float*>(outputs_.at(name).host.get());
    found[name].assign(values, values + (part.stop - part.start) * width_of(shape));
  }
  return found;
}

void Lane::upload(nvinfer1::IExecutionContext& context, const std::string& name, const View& view, const Part& part,
                  std::int64_t padding) {
  const Buffer& buffer = inputs_.at(name);
  const Shape shape = fill(view, part, padding, buffer.host.get());
  const std::size_t value = std::holds_alternative<const float*>(view.data) ? sizeof(float) : sizeof(std::int64_t);
  cuda_.upload(buffer.device.get(), buffer.host.get(), count_of(shape) * value, stream_.get());
  if (!context.setInputShape(name.c_str(), dims_of(shape)))
    throw engine_.failure("the engine refuses " + name + " of shape " + shape_text(shape));
}

// The context of a profile, created on first use; a lane's buffers never move.
nvinfer1::IExecutionContext& Lane::context(std::size_t profile) {
  const auto found = contexts_.find(profile);
  if (found != contexts_.end()) return *found->second;
  auto made = engine_.new_context();
  if (!made->setOptimizationProfileAsync(static_cast<int32_t>(profile), stream_.get()))
    throw engine_.failure("the engine refuses profile " + std::to_string(profile));
  for (const auto* buffers : {&inputs_, &outputs_}) {
    for (const auto& [name, buffer] : *buffers) {
      if (!made->setTensorAddress(name.c_str(), buffer.device.get()))
        throw engine_.failure("the engine refuses memory for " + name);
    }
  }
  return *contexts_.emplace(profile, std::move(made)).first->second;
}

}  // namespace hydrant
