// TensorRT or TensorRT-RTX, loaded at run time, and its engines.
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
  // The process's log, never destroyed, since a library may keep its first logger.
  static NativeLog& shared();

  void log(Severity severity, const char* text) noexcept override;

  // The latest errors on one line; clears them.
  std::string last();

 private:
  std::mutex lock_;
  std::deque<std::string> errors_;
};

class TensorRt {
 public:
  // The library file for "tensorrt" or "tensorrt-rtx"; nothing if the headers are for another library.
  static std::optional<std::string> file_of(const std::string& library);

  // Version of the headers, such as "TensorRT 11.1".
  static std::string headers();

  // Throws BackendError: the library is missing or cannot be loaded.
  explicit TensorRt(const std::string& library);

  // Such as "10.13.2.6".
  const std::string& version() const { return version_; }

  // A runtime that writes to the shared log; null if the library fails.
  std::unique_ptr<nvinfer1::IRuntime> runtime() const;

 private:
  Library library_;
  std::string version_;
};

// An engine in memory.
class Engine {
 public:
  // Deserialises bytes, without engine host code. Throws BackendError; BundleError: the metadata differs.
  Engine(const TensorRt& library, const std::string& data, const Chosen& chosen);

  const std::map<std::string, bool>& inputs() const { return inputs_; }     // name → true for float32, false for int64
  const std::map<std::string, Shape>& outputs() const { return outputs_; }  // name → shape, with −1 for the batch

  // A new execution context. Thread-safe. Throws BackendError: the library fails.
  std::unique_ptr<nvinfer1::IExecutionContext> new_context() const;

  // An error with the library's reason.
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
