// The first GPU, through CUDA's runtime library, loaded at run time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "library.h"

namespace hydrant {

// A stream or memory, freed with its owner.
using Stream = std::unique_ptr<CUstream_st, cudaError_t (*)(cudaStream_t)>;
using Memory = std::unique_ptr<void, cudaError_t (*)(void*)>;

// All methods throw BackendError if CUDA fails.
class Cuda {
 public:
  // The newest library that the driver supports. Throws BackendError: no library, or no GPU.
  static Cuda open();

  // A stream independent of the default stream.
  Stream new_stream() const;

  // Page-locked host memory and GPU memory, in bytes.
  Memory host(std::size_t size) const;
  Memory device(std::size_t size) const;

  // Asynchronous copies in bytes; `synchronize` waits for all work on the stream.
  void upload(void* target, const void* source, std::size_t size, cudaStream_t stream) const;
  void download(void* target, const void* source, std::size_t size, cudaStream_t stream) const;
  void synchronize(cudaStream_t stream) const;

 private:
  friend class OnFirstGpu;

  explicit Cuda(const Library& library);
  void check(cudaError_t error, const char* function) const;
  void copy(void* target, const void* source, std::size_t size, cudaMemcpyKind kind, cudaStream_t stream) const;

  decltype(&cudaGetDevice) get_device_;
  decltype(&cudaSetDevice) set_device_;
  cudaError_t (*new_stream_)(cudaStream_t*, unsigned);
  decltype(&cudaStreamDestroy) free_stream_;
  decltype(&cudaStreamSynchronize) synchronize_;
  cudaError_t (*new_host_)(void**, std::size_t, unsigned);
  decltype(&cudaFreeHost) free_host_;
  cudaError_t (*new_device_)(void**, std::size_t);
  decltype(&cudaFree) free_device_;
  decltype(&cudaMemcpyAsync) copy_;
  decltype(&cudaGetErrorString) text_;
};

// Selects the first GPU for this thread during its lifetime; failures appear in later calls.
class OnFirstGpu {
 public:
  explicit OnFirstGpu(const Cuda& cuda) noexcept;
  ~OnFirstGpu();
  OnFirstGpu(const OnFirstGpu&) = delete;
  OnFirstGpu& operator=(const OnFirstGpu&) = delete;

 private:
  const Cuda& cuda_;
  int before_ = 0;
};

}  // namespace hydrant
