#include "cuda.h"

#include <optional>
#include <string>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

// Supported versions, in the order in which they are tried; drivers reject newer ones.
constexpr const char* kLibraries[] = {"libcudart.so.13", "libcudart.so.12"};

}  // namespace

Cuda Cuda::open() {
  std::optional<BackendError> reason;
  for (const char* name : kLibraries) {
    bool loaded = false;
    try {
      Cuda cuda{Library(name, "install the CUDA runtime (cuda-cudart), or add its folder to LD_LIBRARY_PATH")};
      loaded = true;
      const OnFirstGpu here(cuda);
      cuda.check(cuda.set_device_(0), "cudaSetDevice");
      return cuda;
    } catch (const BackendError& error) {
      if (loaded || !reason) reason = error;
    }
  }
  throw BackendError(*reason);
}

Cuda::Cuda(const Library& library)
    : get_device_(library.function<decltype(cudaGetDevice)>("cudaGetDevice")),
      set_device_(library.function<decltype(cudaSetDevice)>("cudaSetDevice")),
      new_stream_(library.function<cudaError_t(cudaStream_t*, unsigned)>("cudaStreamCreateWithFlags")),
      free_stream_(library.function<decltype(cudaStreamDestroy)>("cudaStreamDestroy")),
      synchronize_(library.function<decltype(cudaStreamSynchronize)>("cudaStreamSynchronize")),
      new_host_(library.function<cudaError_t(void**, std::size_t, unsigned)>("cudaHostAlloc")),
      free_host_(library.function<decltype(cudaFreeHost)>("cudaFreeHost")),
      new_device_(library.function<cudaError_t(void**, std::size_t)>("cudaMalloc")),
      free_device_(library.function<decltype(cudaFree)>("cudaFree")),
      copy_(library.function<decltype(cudaMemcpyAsync)>("cudaMemcpyAsync")),
      text_(library.function<decltype(cudaGetErrorString)>("cudaGetErrorString")) {}

void Cuda::check(cudaError_t error, const char* function) const {
  if (error == cudaSuccess) return;
  throw BackendError(std::string("CUDA failed in ") + function + ": " + cut(text_(error), 120) +
                     (error == cudaErrorMemoryAllocation ? "; use smaller batches, or free the GPU's memory" : ""));
}

Stream Cuda::new_stream() const {
  cudaStream_t made = nullptr;
  check(new_stream_(&made, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return {made, free_stream_};
}

Memory Cuda::host(std::size_t size) const {
  void* made = nullptr;
  check(new_host_(&made, size, cudaHostAllocDefault), "cudaHostAlloc");
  return {made, free_host_};
}

Memory Cuda::device(std::size_t size) const {
  void* made = nullptr;
  check(new_device_(&made, size), "cudaMalloc");
  return {made, free_device_};
}

void Cuda::upload(void* target, const void* source, std::size_t size, cudaStream_t stream) const {
  copy(target, source, size, cudaMemcpyHostToDevice, stream);
}

void Cuda::download(void* target, const void* source, std::size_t size, cudaStream_t stream) const {
  copy(target, source, size, cudaMemcpyDeviceToHost, stream);
}

void Cuda::copy(void* target, const void* source, std::size_t size, cudaMemcpyKind kind, cudaStream_t stream) const {
  check(copy_(target, source, size, kind, stream), "cudaMemcpyAsync");
}

void Cuda::synchronize(cudaStream_t stream) const { check(synchronize_(stream), "cudaStreamSynchronize"); }

OnFirstGpu::OnFirstGpu(const Cuda& cuda) noexcept : cuda_(cuda) {
  if (cuda_.get_device_(&before_) == cudaSuccess && before_ != 0) cuda_.set_device_(0);
}

OnFirstGpu::~OnFirstGpu() {
  if (before_ != 0) cuda_.set_device_(before_);
}

}  // namespace hydrant
