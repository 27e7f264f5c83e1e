// The functions of TensorRT's runtime, engines and execution contexts that hydrant calls.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "standin.h"
#include "unused.h"

using nvinfer1::DataType, nvinfer1::Dims;

namespace standin {

void unexpected(const char* function) {
  std::fprintf(stderr, "stand-in: %s\n", function);
  std::abort();
}

void expect(bool holds, const char* what) {
  if (!holds) unexpected(what);
}

namespace {

constexpr const char* kMagic = "stand-in\n";

// Counts live objects.
struct Counted {
  Counted() { ++live; }
  ~Counted() { --live; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

using Shape = std::vector<std::int64_t>;

Shape shape_of(const Dims& sizes) { return {sizes.d, sizes.d + sizes.nbDims}; }

Dims dims_of(const Shape& shape) {
  Dims sizes{};
  sizes.nbDims = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), sizes.d);
  return sizes;
}

struct Tensor {
  std::string name;
  bool input;
  DataType type;
  Shape shape;
};

class Engine final : public nvinfer1::ICudaEngine, public UnusedEngine {
 public:
  Engine(const std::string& header, const char* model, std::size_t size, nvinfer1::ILogger& log_)
      : log(log_), facts(nlohmann::json::parse(header)) {
    mImpl = this;
    Ort::SessionOptions options;
    options.SetIntraOpNumThreads(1);
    session = Ort::Session(env, model, size, options);
    const Ort::AllocatorWithDefaultOptions memory;
    for (std::size_t i = 0; i < session.GetInputCount(); ++i)
      add(session.GetInputNameAllocated(i, memory).get(), true, session.GetInputTypeInfo(i));
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i)
      add(session.GetOutputNameAllocated(i, memory).get(), false, session.GetOutputTypeInfo(i));
    full = fault("memory");
  }

  bool fault(const char* kind) const { return facts.value("fault", "") == kind; }
  void fail(const char* why) const { log.log(nvinfer1::ILogger::Severity::kERROR, why); }
  const Tensor& at(const std::string& name) const {
    const auto found =
        std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& each) { return each.name == name; });
    expect(found != tensors.end(), "a tensor that the engine does not have");
    return *found;
  }
  Shape profile(const std::string& input, int32_t index, int32_t which) const {
    return facts["profiles"][static_cast<std::size_t>(index)][input][static_cast<std::size_t>(which)].get<Shape>();
  }

  nvinfer1::IExecutionContext* createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy) noexcept override;
  int32_t getNbOptimizationProfiles() const noexcept override { return static_cast<int32_t>(facts["profiles"].size()); }
  Dims getTensorShape(const char* name) const noexcept override { return dims_of(at(name).shape); }
  DataType getTensorDataType(const char* name) const noexcept override {
    return fault("type") ? DataType::kINT32 : at(name).type;
  }
  nvinfer1::TensorIOMode getTensorIOMode(const char* name) const noexcept override {
    return at(name).input ? nvinfer1::TensorIOMode::kINPUT : nvinfer1::TensorIOMode::kOUTPUT;
  }
  Dims getProfileShape(const char* name, int32_t index, nvinfer1::OptProfileSelector which) const noexcept override {
    return dims_of(profile(name, index, static_cast<int32_t>(which)));
  }
  int32_t getNbIOTensors() const noexcept override { return static_cast<int32_t>(tensors.size()); }
  const char* getIOTensorName(int32_t index) const noexcept override {
    return tensors[static_cast<std::size_t>(index)].name.c_str();
  }

  nvinfer1::ILogger& log;
  const nlohmann::json facts;
  std::vector<Tensor> tensors;
  Ort::Env env{ORT_LOGGING_LEVEL_FATAL, "stand-in"};
  Ort::Session session{nullptr};

 private:
  void add(const char* name, bool input, const Ort::TypeInfo& info) {
    const auto facts_of = info.GetTensorTypeAndShapeInfo();
    const bool floats = facts_of.GetElementType() == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    tensors.push_back({name, input, floats ? DataType::kFLOAT : DataType::kINT64, facts_of.GetShape()});
  }

  Counted counted_;
};

class Context final : public nvinfer1::IExecutionContext, public UnusedContext {
 public:
  explicit Context(const Engine& engine) : engine_(engine) { mImpl = this; }
  ~Context() override { expect(!busy_, "a context was given back while it runs"); }

  bool setOptimizationProfileAsync(int32_t index, cudaStream_t) noexcept override {
    profile_ = index;
    return index < engine_.getNbOptimizationProfiles() && !engine_.fault("profile");
  }
  bool setInputShape(const char* name, const Dims& sizes) noexcept override {
    expect(profile_ >= 0, "a shape before a profile");
    const Shape shape = shape_of(sizes), least = engine_.profile(name, profile_, 0),
                most = engine_.profile(name, profile_, 2);
    shapes_[name] = shape;
    bool within = shape.size() == least.size();
    for (std::size_t axis = 0; within && axis < shape.size(); ++axis)
      within = least[axis] <= shape[axis] && shape[axis] <= most[axis];
    if (!within) engine_.fail("[context.cpp::shape::7] out of range");
    return within;
  }
  bool setTensorAddress(const char* name, void* address) noexcept override {
    addresses_[engine_.at(name).name] = address;
    return !engine_.fault("address");
  }
  bool enqueueV3(cudaStream_t stream) noexcept override {
    expect(addresses_.size() == engine_.tensors.size(), "a tensor has no address");
    expect(!busy_.exchange(true), "two threads share a context");
    if (engine_.fault("run")) {
      engine_.fail("[runtime.cpp::execute::12] kernel 7 was lost");
      busy_ = false;
      return false;
    }
    stream->work.emplace_back([this, shapes = shapes_] {
      compute(shapes);
      busy_ = false;
    });
    return true;
  }

 private:
  void compute(const std::map<std::string, Shape>& shapes) const {
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<const char*> inputs, outputs;
    std::vector<Ort::Value> values;
    for (const Tensor& tensor : engine_.tensors) {
      if (!tensor.input) {
        outputs.push_back(tensor.name.c_str());
        continue;
      }
      inputs.push_back(tensor.name.c_str());
      const Shape& shape = shapes.at(tensor.name);
      std::size_t count = 1;
      for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
      void* address = addresses_.at(tensor.name);
      values.push_back(
          tensor.type == DataType::kFLOAT
              ? Ort::Value::CreateTensor<float>(memory, static_cast<float*>(address), count, shape.data(), shape.size())
              : Ort::Value::CreateTensor<std::int64_t>(memory, static_cast<std::int64_t*>(address), count, shape.data(),
                                                       shape.size()));
    }
    auto& session = const_cast<Ort::Session&>(engine_.session);
    const auto found = session.Run(Ort::RunOptions{nullptr}, inputs.data(), values.data(), values.size(),
                                   outputs.data(), outputs.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t count = found[i].GetTensorTypeAndShapeInfo().GetElementCount();
      std::memcpy(addresses_.at(outputs[i]), found[i].GetTensorData<float>(), count * sizeof(float));
    }
  }

  const Engine& engine_;
  std::map<std::string, Shape> shapes_;
  std::map<std::string, void*> addresses_;
  int32_t profile_ = -1;
  std::atomic<bool> busy_{false};
  Counted counted_;
};

nvinfer1::IExecutionContext* Engine::createExecutionContext(nvinfer1::ExecutionContextAllocationStrategy) noexcept {
  if (!fault("context")) return new Context(*this);
  fail("no room for a context");
  return nullptr;
}

class Runtime final : public nvinfer1::IRuntime, public UnusedRuntime {
 public:
  explicit Runtime(nvinfer1::ILogger& log) : log_(log) { mImpl = this; }

  void setEngineHostCodeAllowed(bool allowed) noexcept override { host_code_ = allowed; }
  bool getEngineHostCodeAllowed() const noexcept override { return host_code_; }
  nvinfer1::ICudaEngine* deserializeCudaEngine(const void* bytes, std::size_t size) noexcept override {
    expect(!host_code_, "code for the host was allowed");
    const std::string data(static_cast<const char*>(bytes), size), magic = kMagic;
    const std::size_t end = data.find('\n', magic.size());
    if (data.compare(0, magic.size(), magic) != 0 || end == std::string::npos) {
      log_.log(nvinfer1::ILogger::Severity::kWARNING, "a warning");
      log_.log(nvinfer1::ILogger::Severity::kERROR, "[runtime.cpp::readHeader::765] magic tag failed");
      return nullptr;
    }
    return new Engine(data.substr(magic.size(), end - magic.size()), data.data() + end + 1, size - end - 1, log_);
  }

 private:
  nvinfer1::ILogger& log_;
  bool host_code_ = true;
  Counted counted_;
};

}  // namespace
}  // namespace standin

extern "C" {

// libnvinfer.so.11 and libtensorrt_rtx.so.1
int32_t getInferLibMajorVersion() noexcept { return 11; }
int32_t getInferLibMinorVersion() noexcept { return 1; }
int32_t getInferLibPatchVersion() noexcept { return 0; }
int32_t getInferLibBuildVersion() noexcept { return 106; }
int32_t getInferLibVersion() noexcept { return 110100; }
void* createInferRuntime_INTERNAL(void* logger, int32_t version) noexcept {
  standin::expect(version == 110100, "a runtime of another version");
  return static_cast<nvinfer1::IRuntime*>(new standin::Runtime(*static_cast<nvinfer1::ILogger*>(logger)));
}
}
