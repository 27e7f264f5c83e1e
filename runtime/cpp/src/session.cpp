// The only file that uses ONNX Runtime.
#include "session.h"

#define ORT_API_MANUAL_INIT  // an older library is then an error, not a crash
#include <onnxruntime_cxx_api.h>
#undef ORT_API_MANUAL_INIT

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <type_traits>

#include "library.h"
#include "messages.h"

namespace hydrant {
namespace {

constexpr const char* kCpu = "CPUExecutionProvider";

// Disables telemetry of ONNX Runtime 1.29 and newer, before its environment exists.
[[maybe_unused]] const bool kSilent =
    setenv("ORT_DISABLE_TELEMETRY", "1", 0) == 0;  // NOLINT(concurrency-mt-unsafe): no threads yet

// Connects ONNX Runtime's C++ interface once. Throws BackendError: the library is too old.
void connect() {
  static std::once_flag once;
  std::call_once(once, [] { Ort::InitApi(); });
  if (Ort::Global<void>::api_ != nullptr) return;
  throw BackendError(concat("ONNX Runtime ", onnxruntime_version(), " is older than hydrant's headers (API ",
                            ORT_API_VERSION, "); install a newer library, or build with its own headers"));
}

// The shared environment, never destroyed, since NVIDIA's libraries cannot be unloaded.
Ort::Env& environment() {
  static Ort::Env& shared = *new Ort::Env(ORT_LOGGING_LEVEL_FATAL, "hydrant");  // failures are thrown
  return shared;
}

// Options of a provider, created and filled by ONNX Runtime.
template <typename Options, typename Create, typename Update, typename Release>
std::unique_ptr<Options, Release> provider_options(Create create, Update update, Release release,
                                                   const std::map<std::string, std::string>& options) {
  Options* created = nullptr;
  Ort::ThrowOnError(create(&created));
  std::unique_ptr<Options, Release> owned(created, release);
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  Ort::ThrowOnError(update(created, keys.data(), values.data(), keys.size()));
  return owned;
}

void append_cuda(Ort::SessionOptions& settings, std::map<std::string, std::string> options) {
  options["use_tf32"] = "0";  // multiply float32 in float32
  const OrtApi& api = Ort::GetApi();
  settings.AppendExecutionProvider_CUDA_V2(*provider_options<OrtCUDAProviderOptionsV2>(
      api.CreateCUDAProviderOptions, api.UpdateCUDAProviderOptions, api.ReleaseCUDAProviderOptions, options));
}

void append_tensorrt(Ort::SessionOptions& settings, const std::map<std::string, std::string>& options) {
  const OrtApi& api = Ort::GetApi();
  settings.AppendExecutionProvider_TensorRT_V2(*provider_options<OrtTensorRTProviderOptionsV2>(
      api.CreateTensorRTProviderOptions, api.UpdateTensorRTProviderOptions, api.ReleaseTensorRTProviderOptions,
      options));
  append_cuda(settings, {{"device_id", options.at("device_id")}});  // for nodes that TensorRT rejects
}

// Adds a provider from a plug-in. Throws BackendError or Ort::Exception.
void append_plugin(Ort::SessionOptions& settings, const Provider& provider) {
#if ORT_API_VERSION >= 22
  static Plugins plugins;
  Ort::Env& env = environment();
  const std::filesystem::path library = absolute_path(provider.library);
  plugins.add(provider.name, library,
              [&] { env.RegisterExecutionProviderLibrary(provider.name.c_str(), library.native()); });
  std::vector<Ort::ConstEpDevice> devices;
  for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
    if (device.EpName() == provider.name) devices.push_back(device);
  }
  if (devices.empty())
    throw BackendError("ONNX Runtime found no device for " + provider.name + " in " + provider.library.string());
  const std::unordered_map<std::string, std::string> options(provider.options.begin(), provider.options.end());
  settings.AppendExecutionProvider_V2(env, devices, options);
#else
  static_cast<void>(settings);
  throw BackendError(concat("hydrant was built with ONNX Runtime 1.", ORT_API_VERSION,
                            ", which has no plug-ins such as ", provider.library.string(),
                            "; build it with 1.22 or newer"));
#endif
}

void append(Ort::SessionOptions& settings, const Provider& provider) {
  if (!provider.library.empty()) return append_plugin(settings, provider);
  if (provider.name == kCpu) return;
  if (provider.name == "CUDAExecutionProvider") return append_cuda(settings, provider.options);
  if (provider.name == "TensorrtExecutionProvider") return append_tensorrt(settings, provider.options);
  settings.AppendExecutionProvider(provider.name, {provider.options.begin(), provider.options.end()});
}

Ort::Value value_of(const View& view, const Ort::MemoryInfo& memory) {
  return std::visit(
      [&](const auto* values) -> Ort::Value {
        using Type = std::remove_const_t<std::remove_pointer_t<decltype(values)>>;
        auto* data = const_cast<Type*>(values);  // ONNX Runtime only reads inputs
        const std::size_t count = count_of(view.shape);
        return Ort::Value::CreateTensor<Type>(memory, data, count, view.shape.data(), view.shape.size());
      },
      view.data);
}

}  // namespace

// A loaded graph.
struct Loaded {
  Ort::Session session{nullptr};
  std::vector<std::string> outputs;

  void open(const std::filesystem::path& graph, const Ort::SessionOptions& settings) {
    session = Ort::Session(environment(), graph.c_str(), settings);
    const Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetOutputCount(); ++i) {
      const std::string name = session.GetOutputNameAllocated(i, allocator).get();
      if (name != kLogits) outputs.push_back(name);
    }
  }

  template <typename Value>
  std::map<std::string, std::vector<Value>> run(const std::vector<const char*>& names,
                                                const std::vector<Ort::Value>& values, const char* remedy) {
    std::vector<const char*> wanted;
    for (const std::string& name : outputs) wanted.push_back(name.c_str());
    const std::vector<Ort::Value> tensors =
        session.Run(Ort::RunOptions{nullptr}, names.data(), values.data(), values.size(), wanted.data(), wanted.size());
    std::map<std::string, std::vector<Value>> results;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto facts = tensors[i].GetTensorTypeAndShapeInfo();
      if (facts.GetElementType() != Ort::TypeToTensorType<Value>::type)
        throw BackendError("the graph's output " + outputs[i] + " has an unexpected type; " + remedy);
      const auto* data = tensors[i].GetTensorData<Value>();
      results[outputs[i]].assign(data, data + facts.GetElementCount());
    }
    return results;
  }
};

struct Session::State : Loaded {};

Session::Session(const std::filesystem::path& graph, const Provider& provider, std::optional<int> threads)
    : state_(std::make_unique<State>()) {
  connect();
  try {
    Ort::SessionOptions settings;
    settings.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
    settings.AddConfigEntry("session.force_spinning_stop", "1");  // idle sessions free their cores
    if (threads) settings.SetIntraOpNumThreads(*threads);
    append(settings, provider);
    state_->open(graph, settings);
  } catch (const Ort::Exception& error) {
    const std::string why = "ONNX Runtime " + onnxruntime_version() + " cannot ";
    if (provider.name == kCpu)
      throw BundleError(why + "load " + graph.string() + ": " + cut(error.what(), 200) + "; export it again");
    throw BackendError(why + "run " + graph.string() + " with " + provider.name + ": " + cut(error.what(), 200) +
                       "; install what is missing, or choose another backend, such as onnxruntime");
  }
}

Session::~Session() = default;

const std::vector<std::string>& Session::outputs() const { return state_->outputs; }

Outputs Session::run(const Views& inputs) const {
  try {
    const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    std::vector<const char*> names;
    std::vector<Ort::Value> values;
    for (const auto& [name, view] : inputs) {
      names.push_back(name.c_str());
      values.push_back(value_of(view, memory));
    }
    return state_->run<float>(names, values, "export it again with `hydrant export`");
  } catch (const Ort::Exception& error) {
    throw BackendError("ONNX Runtime failed on inputs of shape " + shapes_text(inputs) + ": " + cut(error.what(), 200));
  }
}

struct TextSession::State : Loaded {
  std::string input;
};

TextSession::TextSession(const std::filesystem::path& graph, const std::string& library)
    : state_(std::make_unique<State>()) {
  connect();
  Ort::SessionOptions settings{nullptr};
  try {
    settings = Ort::SessionOptions();
    settings.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
    settings.SetIntraOpNumThreads(1);
    settings.RegisterCustomOpsLibrary(library.c_str());
  } catch (const Ort::Exception& error) {
    const std::string why = error.what();
    throw BackendError(library + " cannot be loaded (" + cut(why, 200) + ")" +
                       (why.find("undefined symbol") == std::string::npos
                            ? ""
                            : "; the library of the Python package needs Python's own: "
                              "LD_PRELOAD=libpython3.11.so.1.0, of its version"));
  }
  try {
    state_->open(graph, settings);
    state_->input = state_->session.GetInputNameAllocated(0, Ort::AllocatorWithDefaultOptions()).get();
  } catch (const Ort::Exception& error) {
    throw BundleError("ONNX Runtime " + onnxruntime_version() + " cannot load " + graph.string() + ": " +
                      cut(error.what(), 200) + "; make it again with `hydrant export --tokenizer`");
  }
}

TextSession::~TextSession() = default;

std::map<std::string, std::vector<std::int64_t>> TextSession::run(const std::vector<std::string>& texts) const {
  try {
    const Ort::AllocatorWithDefaultOptions allocator;
    const auto count = static_cast<std::int64_t>(texts.size());
    std::vector<Ort::Value> values;
    values.push_back(Ort::Value::CreateTensor(allocator, &count, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING));
    for (std::size_t i = 0; i < texts.size(); ++i) values[0].FillStringTensorElement(texts[i].c_str(), i);
    return state_->run<std::int64_t>({state_->input.c_str()}, values, "make tokenizer.onnx again");
  } catch (const Ort::Exception& error) {
    throw BackendError("the tokenizer failed: " + cut(error.what(), 200));
  }
}

std::string TextSession::metadata(const std::string& key) const {
  try {
    const Ort::AllocatorWithDefaultOptions allocator;
    const auto value = state_->session.GetModelMetadata().LookupCustomMetadataMapAllocated(key.c_str(), allocator);
    return value == nullptr ? "" : value.get();
  } catch (const Ort::Exception& error) {
    throw BundleError("tokenizer.onnx has unreadable metadata (" + cut(error.what(), 200) + "); make it again");
  }
}

bool has_provider(const std::string& name) {
  connect();
  try {
    const std::vector<std::string> providers = Ort::GetAvailableProviders();
    return std::find(providers.begin(), providers.end(), name) != providers.end();
  } catch (const Ort::Exception& error) {
    throw BackendError(concat("ONNX Runtime ", onnxruntime_version(), " cannot list its providers: ",
                              cut(error.what(), 200), "; link hydrant with another build"));
  }
}

std::string onnxruntime_version() { return OrtGetApiBase()->GetVersionString(); }

}  // namespace hydrant
