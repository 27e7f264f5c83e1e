// The functions of CUDA's driver and runtime that hydrant calls.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "standin.h"

namespace standin {

std::atomic<int> live{0};
std::atomic<bool> full{false};

namespace {

thread_local int device = 0;

// A block of memory, counted.
cudaError_t take(void** block, std::size_t size) {
  if (full) return cudaErrorMemoryAllocation;
  *block = std::malloc(std::max<std::size_t>(size, 1));
  ++live;
  return cudaSuccess;
}

cudaError_t give_back(void* block) {
  std::free(block);
  --live;
  return cudaSuccess;
}

}  // namespace
}  // namespace standin

extern "C" {

int standin_live() { return standin::live; }

// libcuda.so.1
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int* found, int) {
  *found = 0;
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 8 : 9;
  return 0;
}

// libcudart.so.13
cudaError_t cudaGetDevice(int* found) {
  *found = standin::device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int chosen) {
  standin::device = chosen;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags) {
  standin::expect(flags == cudaStreamNonBlocking, "a stream that waits for others");
  *made = new CUstream_st;
  ++standin::live;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  standin::expect(stream->work.empty(), "a stream was given back before its work was done");
  delete stream;
  --standin::live;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  for (const auto& step : stream->work) step();
  stream->work.clear();
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** block, std::size_t size, unsigned) { return standin::take(block, size); }
cudaError_t cudaFreeHost(void* block) { return standin::give_back(block); }
cudaError_t cudaMalloc(void** block, std::size_t size) {
  standin::expect(standin::device == 0, "memory of another GPU");
  return standin::take(block, size);
}
cudaError_t cudaFree(void* block) { return standin::give_back(block); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind, cudaStream_t stream) {
  stream->work.emplace_back([=] { std::memcpy(to, from, size); });
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "another error";
}
}
