// TensorRT or TensorRT-RTX, loaded at run time, and its engines; only tensorrt.cpp and the lanes know it, too.
#pragma once

#include <NvInferRuntime.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine_choice.h"
#include "hydrant/hydrant.h"
#include "library.h"

namespace hydrant {

// The libraries' latest errors.
class NativeLog : public nvinfer1::ILogger {
 public:
  // This process's log, which is never destroyed: a library may keep the first logger that it was given.
  static NativeLog& shared();

  void log(Severity severity, const char* text) noexcept override;

  // These errors in one line, for a message; they are then forgotten.
  std::string last();

 private:
  std::mutex lock_;
  std::deque<std::string> errors_;
};

class TensorRt {
 public:
  // The library file of "tensorrt" or "tensorrt-rtx" that the headers describe, or nothing.
  static std::optional<std::string> file_of(const std::string& library);

  // What the headers describe, such as "TensorRT 11.1".
  static std::string headers();

  // Throws BackendError: it is not there, or cannot be loaded.
  explicit TensorRt(const std::string& library);

  // Such as "10.13.2.6".
  const std::string& version() const { return version_; }

  // A runtime that writes to the shared log; null where the library gives none.
  std::unique_ptr<nvinfer1::IRuntime> runtime() const;

 private:
  Library library_;
  std::string version_;
};

// An engine in memory.
class Engine {
 public:
  // Deserialises bytes, without engine host code. Throws BackendError or, where the metadata differs, BundleError.
  Engine(const TensorRt& library, const std::string& data, const Chosen& chosen);

  const std::map<std::string, bool>& inputs() const { return inputs_; }     // name → whether it is float32, else int64
  const std::map<std::string, Shape>& outputs() const { return outputs_; }  // name → shape, with −1 for the batch

  // An execution context, made by any thread. Throws BackendError: the library gives none.
  std::unique_ptr<nvinfer1::IExecutionContext> new_context() const;

  // An error with what failed and the library's reason.
  BackendError failure(const std::string& what) const;

 private:
  void read_tensors(const Chosen& chosen);
  void check_profiles(const Chosen& chosen) const;

  std::string name_;  // of the library
  std::unique_ptr<nvinfer1::IRuntime> runtime_;
  std::unique_ptr<nvinfer1::ICudaEngine> engine_;
  std::map<std::string, bool> inputs_;
  std::map<std::string, Shape> outputs_;
  mutable std::mutex lock_;
};

}  // namespace hydrant
