// A substitute for a plug-in of ONNX Runtime: a provider without nodes, so that the CPU runs all.
#include <onnxruntime_c_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace {

constexpr const char* kName = "StandinExecutionProvider";

std::atomic<int> registrations{0};

const OrtApi* api = nullptr;

struct Provider : OrtEp {
  Provider() : OrtEp{} {
    ort_version_supported = ORT_API_VERSION;
    OrtEp::GetName = [](const OrtEp*) noexcept { return kName; };
    OrtEp::GetCapability = [](OrtEp*, const OrtGraph*, OrtEpGraphSupportInfo*) noexcept -> OrtStatus* {
      return nullptr;
    };
    OrtEp::Compile = [](OrtEp*, const OrtGraph**, const OrtNode**, std::size_t, OrtNodeComputeInfo**,
                        OrtNode**) noexcept -> OrtStatus* {
      return api->CreateStatus(ORT_NOT_IMPLEMENTED, "the stand-in compiles nothing");
    };
    OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo**, std::size_t) noexcept {};
  }
};

struct Factory : OrtEpFactory {
  Factory() : OrtEpFactory{} {
    ort_version_supported = ORT_API_VERSION;
    OrtEpFactory::GetName = [](const OrtEpFactory*) noexcept { return kName; };
    OrtEpFactory::GetVendor = [](const OrtEpFactory*) noexcept { return "hydrant"; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) noexcept { return std::uint32_t{0}; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) noexcept { return "1.0.0"; };
    OrtEpFactory::GetSupportedDevices = [](OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                                           std::size_t count, OrtEpDevice** found, std::size_t,
                                           std::size_t* found_count) noexcept -> OrtStatus* {
      *found_count = count == 0 ? 0 : 1;
      return count == 0 ? nullptr : api->GetEpApi()->CreateEpDevice(self, devices[0], nullptr, nullptr, found);
    };
    OrtEpFactory::CreateEp = [](OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*,
                                std::size_t, const OrtSessionOptions*, const OrtLogger*,
                                OrtEp** made) noexcept -> OrtStatus* {
      *made = new Provider;
      return nullptr;
    };
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** made) noexcept -> OrtStatus* {
      *made = nullptr;
      return nullptr;
    };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* provider) noexcept { delete static_cast<Provider*>(provider); };
  }
};

}  // namespace

extern "C" {

// Number of registrations by ONNX Runtime.
int standin_registrations() { return registrations; }

OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*, OrtEpFactory** factories,
                             std::size_t, std::size_t* count) {
  ++registrations;
  api = base->GetApi(ORT_API_VERSION);
  factories[0] = new Factory;
  *count = 1;
  return nullptr;
}

OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<Factory*>(factory);
  return nullptr;
}
}
