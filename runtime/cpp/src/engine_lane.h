// A stream, buffers and execution contexts, with which one thread at a time runs an engine.
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
  // The arguments outlive the lane. Throws BackendError: the GPU has not enough memory.
  Lane(const Cuda& cuda, const Engine& engine, const Profiles& profiles);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Outputs of the rows of a part, without those that were added. Throws BackendError: the library or CUDA failed.
  Outputs run(const Views& inputs, const Part& part, std::int64_t padding_token);

 private:
  // A tensor's page-locked memory on the host, and its memory on the GPU.
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
