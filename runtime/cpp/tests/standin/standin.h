// A stand-in for TensorRT and for a GPU, under the names of their libraries: memory of the host, and ONNX Runtime. It
// tests the logic on the host; nothing runs on a GPU.
//
// An "engine" is the line "stand-in", a line of JSON, and the ONNX graph. The JSON holds `profiles`, and maybe a
// `fault`: "run", "context", "profile", "address", "type" or "memory". A stream does nothing until it is waited for.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <vector>

// What is on a stream and not done yet.
struct CUstream_st {
  std::vector<std::function<void()>> work;
};

namespace standin {

// Ends the test unless what every correct program ensures holds.
void expect(bool holds, const char* what);

extern std::atomic<int> live;   // objects and blocks of memory that were not given back
extern std::atomic<bool> full;  // whether the GPU's memory is

}  // namespace standin
