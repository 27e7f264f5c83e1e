#include "tensorrt.h"

#include <algorithm>

#include "hydrant/hydrant.h"
#include "messages.h"

namespace hydrant {
namespace {

constexpr std::size_t kErrors = 8;

// An error without its source location, such as "[runtime.cpp::read::12] ".
std::string without_place(const std::string& text) {
  const std::size_t end = text.find("] ");
  return text.empty() || text[0] != '[' || end == std::string::npos ? text : text.substr(end + 2);
}

Shape shape_of(const nvinfer1::Dims& sizes) { return {sizes.d, sizes.d + std::max(sizes.nbDims, 0)}; }

const char* type_name(nvinfer1::DataType type) {
  switch (type) {
    case nvinfer1::DataType::kFLOAT:
      return "FLOAT";
    case nvinfer1::DataType::kINT64:
      return "INT64";
    case nvinfer1::DataType::kINT32:
      return "INT32";
    case nvinfer1::DataType::kHALF:
      return "HALF";
    default:
      return "another type";
  }
}

std::string version_of(const Library& library) {
  std::vector<std::string> numbers;
  for (const char* part : {"Major", "Minor", "Patch", "Build"}) {
    const std::string name = std::string("getInferLib") + part + "Version";
    numbers.push_back(std::to_string(library.function<int32_t()>(name.c_str())()));
  }
  return join(numbers, ".");
}

std::string profile_text(const Profile& profile) {
  std::vector<std::string> inputs;
  for (const auto& [name, shapes] : profile)
    inputs.push_back(name + " " + shape_text(shapes.min) + shape_text(shapes.opt) + shape_text(shapes.max));
  return join(inputs);
}

}  // namespace

NativeLog& NativeLog::shared() {
  static NativeLog& log = *new NativeLog;
  return log;
}

void NativeLog::log(Severity severity, const char* text) noexcept {
  if (severity > Severity::kERROR) return;
  try {
    const std::lock_guard<std::mutex> held(lock_);
    if (errors_.size() == kErrors) errors_.pop_front();
    errors_.push_back(without_place(text));
  } catch (const std::exception&) {  // no memory; exceptions must not reach the library
  }
}

std::string NativeLog::last() {
  const std::lock_guard<std::mutex> held(lock_);
  std::vector<std::string> said;
  for (const std::string& error : errors_) {
    if (std::find(said.begin(), said.end(), error) == said.end()) said.push_back(error);
  }
  errors_.clear();
  return cut(said.empty() ? "no reason given" : join(said, "; "), 300);
}

// The binary interface is fixed for a major version. TensorRT-RTX 1.7 has the functions of TensorRT 11 used here;
// TensorRT 10 differs.
std::optional<std::string> TensorRt::file_of(const std::string& library) {
#if defined(TRT_MAJOR_RTX)
  if (library == "tensorrt-rtx") return "libtensorrt_rtx.so." + std::to_string(TRT_MAJOR_RTX);
#else
  if (library == "tensorrt") return "libnvinfer.so." + std::to_string(NV_TENSORRT_MAJOR);
  if (library == "tensorrt-rtx" && NV_TENSORRT_MAJOR == 11) return "libtensorrt_rtx.so.1";
#endif
  return std::nullopt;
}

std::string TensorRt::headers() {
#if defined(TRT_MAJOR_RTX)
  const std::string name = "TensorRT-RTX ";
#else
  const std::string name = "TensorRT ";
#endif
  return name + std::to_string(NV_TENSORRT_MAJOR) + "." + std::to_string(NV_TENSORRT_MINOR);
}

TensorRt::TensorRt(const std::string& library)
    : library_(file_of(library).value_or(library), "install it, or add its folder to LD_LIBRARY_PATH"),
      version_(version_of(library_)) {}

std::unique_ptr<nvinfer1::IRuntime> TensorRt::runtime() const {
  auto* const create = library_.function<void*(void*, int32_t)>("createInferRuntime_INTERNAL");
  const auto version = library_.function<int32_t()>("getInferLibVersion")();
  return std::unique_ptr<nvinfer1::IRuntime>(
      static_cast<nvinfer1::IRuntime*>(create(static_cast<nvinfer1::ILogger*>(&NativeLog::shared()), version)));
}

Engine::Engine(const TensorRt& library, const std::string& data, const Chosen& chosen)
    : name_(chosen.facts.library), runtime_(library.runtime()) {
  const std::string what = name_ + " " + library.version(), rebuild = "`" + command_text(chosen.rebuild) + "`";
  if (!runtime_) throw BackendError(what + " gave no runtime: " + NativeLog::shared().last() + "; reinstall it");
  runtime_->setEngineHostCodeAllowed(false);
  engine_.reset(runtime_->deserializeCudaEngine(data.data(), data.size()));
  if (!engine_) {
    throw BackendError(what + " cannot load engine " + chosen.name + ": " + NativeLog::shared().last() +
                       "; rebuild it with " + rebuild);
  }
  read_tensors(chosen);
  check_profiles(chosen);
}

// Reads types of inputs and shapes of outputs. Throws BundleError: hydrant's graphs never have them.
void Engine::read_tensors(const Chosen& chosen) {
  for (int32_t index = 0; index < engine_->getNbIOTensors(); ++index) {
    const char* name = engine_->getIOTensorName(index);
    const nvinfer1::DataType type = engine_->getTensorDataType(name);
    const Shape shape = shape_of(engine_->getTensorShape(name));
    const bool floats = type == nvinfer1::DataType::kFLOAT;
    const bool input = engine_->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT;
    bool right = floats || type == nvinfer1::DataType::kINT64;
    if (input) {
      inputs_[name] = floats;
    } else {
      right = floats && !shape.empty() && shape[0] == -1 &&
              std::all_of(shape.begin() + 1, shape.end(), [](std::int64_t size) { return size > 0; });
      outputs_[name] = shape;
    }
    if (right) continue;
    throw BundleError("engine " + chosen.name + " has " + cut(name) + " as " + type_name(type) + " " +
                      shape_text(shape) + "; expected " + (input ? "INT64 or FLOAT" : "FLOAT [-1, …]") +
                      "; rebuild it with `" + command_text(chosen.rebuild) + "`");
  }
}

// Throws BundleError: the metadata's profiles, which determine buffer sizes, differ from the engine's.
void Engine::check_profiles(const Chosen& chosen) const {
  std::vector<Profile> found;
  for (int32_t index = 0; index < engine_->getNbOptimizationProfiles(); ++index) {
    Profile& profile = found.emplace_back();
    for (const auto& [name, floats] : inputs_) {
      const auto shape = [&, input = name.c_str()](nvinfer1::OptProfileSelector which) {
        return shape_of(engine_->getProfileShape(input, index, which));
      };
      profile[name] = {shape(nvinfer1::OptProfileSelector::kMIN), shape(nvinfer1::OptProfileSelector::kOPT),
                       shape(nvinfer1::OptProfileSelector::kMAX)};
    }
  }
  if (found == chosen.facts.profiles) return;
  const auto shown = [](const std::vector<Profile>& profiles) {
    std::vector<std::string> texts;
    std::transform(profiles.begin(), profiles.end(), std::back_inserter(texts), profile_text);
    return cut(join(texts, "; "), 200);
  };
  throw BundleError("engine " + chosen.name + " has the optimization profiles " + shown(found) +
                    ", but its metadata says " + shown(chosen.facts.profiles) + "; rebuild it with `" +
                    command_text(chosen.rebuild) + "`");
}

std::unique_ptr<nvinfer1::IExecutionContext> Engine::new_context() const {
  const std::lock_guard<std::mutex> held(lock_);
  std::unique_ptr<nvinfer1::IExecutionContext> context(engine_->createExecutionContext());
  if (context) return context;
  throw BackendError(name_ + " gave no execution context: " + NativeLog::shared().last() +
                     "; use fewer threads, or free the GPU's memory");
}

BackendError Engine::failure(const std::string& what) const {
  return BackendError(what + ": " + NativeLog::shared().last());
}

}  // namespace hydrant
