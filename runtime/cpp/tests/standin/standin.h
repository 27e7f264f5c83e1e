// A substitute for TensorRT and a GPU, under the names of their libraries: host memory and ONNX Runtime. It tests the
// host logic; nothing runs on a GPU.
//
// An "engine" is the line "stand-in", a line of JSON, and the ONNX graph. The JSON has `profiles` and optionally a
// `fault`: "run", "context", "profile", "address", "type" or "memory". A stream runs its work when synchronized.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <vector>

// Pending work of a stream.
struct CUstream_st {
  std::vector<std::function<void()>> work;
};

namespace standin {

// Aborts unless a condition of correct programs holds.
void expect(bool holds, const char* what);

extern std::atomic<int> live;   // unreleased objects and memory
extern std::atomic<bool> full;  // GPU memory is exhausted

}  // namespace standin
