// A stream, buffers and execution contexts of an engine, used by one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cuda.h"
#include "engine_profiles.h"
#include "tensorrt.h"
#include "view.h"

namespace hydrant {

class Lane {
 public:
  // The arguments must outlive the lane. Throws BackendError: not enough GPU memory.
  Lane(const Cuda& cuda, const Engine& engine, const Profiles& profiles);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Outputs of a part, without padding rows. Throws BackendError: the library or CUDA failed.
  Outputs run(const Views& inputs, const Part& part, std::int64_t padding_token);

 private:
  // A tensor's page-locked host memory and GPU memory.
  struct Buffer {
    Memory host, device;
  };

  Buffer buffer(std::size_t values, std::size_t size) const;
  nvinfer1::IExecutionContext& context(std::size_t profile);
  void upload(nvinfer1::IExecutionContext& context, const std::string& name, const View& view, const Part& part,
              std::int64_t padding);

  const Cuda& cuda_;
  const Engine& engine_;
  Stream stream_;
  std::map<std::string, Buffer> inputs_, outputs_;
  std::map<std::size_t, std::unique_ptr<nvinfer1::IExecutionContext>> contexts_;  // by profile
};

}  // namespace hydrant
