// Functions of TensorRT 11.1 that hydrant does not call; calling one aborts.
#pragma once

#include <NvInferRuntime.h>

namespace standin {

[[noreturn]] void unexpected(const char* function);

#define UNUSED(Result, name, ...) \
  Result name __VA_ARGS__ noexcept override { unexpected(#name); }

class UnusedRuntime : public nvinfer1::apiv::VRuntime {
 public:
  UNUSED(nvinfer1::IRuntime*, getPImpl, ())
  UNUSED(void, setDLACore, (int32_t))
  UNUSED(int32_t, getDLACore, () const)
  UNUSED(int32_t, getNbDLACores, () const)
  UNUSED(void, setGpuAllocator, (nvinfer1::IGpuAllocator*))
  UNUSED(void, setErrorRecorder, (nvinfer1::IErrorRecorder*))
  UNUSED(nvinfer1::IErrorRecorder*, getErrorRecorder, () const)
  UNUSED(nvinfer1::ILogger*, getLogger, () const)
  UNUSED(bool, setMaxThreads, (int32_t))
  UNUSED(int32_t, getMaxThreads, () const)
  UNUSED(void, setTemporaryDirectory, (const char*))
  UNUSED(const char*, getTemporaryDirectory, () const)
  UNUSED(void, setTempfileControlFlags, (nvinfer1::TempfileControlFlags))
  UNUSED(nvinfer1::TempfileControlFlags, getTempfileControlFlags, () const)
  UNUSED(nvinfer1::IPluginRegistry&, getPluginRegistry, ())
  UNUSED(void, setPluginRegistryParent, (nvinfer1::IPluginRegistry*))
  UNUSED(nvinfer1::IRuntime*, loadRuntime, (const char*))
  UNUSED(nvinfer1::ICudaEngine*, deserializeCudaEngineV2, (nvinfer1::IStreamReaderV2&))
};

class UnusedEngine : public nvinfer1::apiv::VCudaEngine {
 public:
  UNUSED(nvinfer1::ICudaEngine*, getPImpl, ())
  UNUSED(int32_t, getNbLayers, () const)
  UNUSED(nvinfer1::IHostMemory*, serialize, () const)
  UNUSED(bool, isRefittable, () const)
  UNUSED(const char*, getName, () const)
  UNUSED(nvinfer1::EngineCapability, getEngineCapability, () const)
  UNUSED(void, setErrorRecorder, (nvinfer1::IErrorRecorder*))
  UNUSED(nvinfer1::IErrorRecorder*, getErrorRecorder, () const)
  UNUSED(nvinfer1::TacticSources, getTacticSources, () const)
  UNUSED(nvinfer1::ProfilingVerbosity, getProfilingVerbosity, () const)
  UNUSED(nvinfer1::IEngineInspector*, createEngineInspector, () const)
  UNUSED(nvinfer1::TensorLocation, getTensorLocation, (const char*) const)
  UNUSED(bool, isShapeInferenceIO, (const char*) const)
  UNUSED(int32_t, getTensorBytesPerComponent, (const char*) const)
  UNUSED(int32_t, getTensorComponentsPerElement, (const char*) const)
  UNUSED(nvinfer1::TensorFormat, getTensorFormat, (const char*) const)
  UNUSED(const char*, getTensorFormatDesc, (const char*) const)
  UNUSED(int32_t, getTensorVectorizedDim, (const char*) const)
  UNUSED(nvinfer1::HardwareCompatibilityLevel, getHardwareCompatibilityLevel, () const)
  UNUSED(int32_t, getNbAuxStreams, () const)
  UNUSED(int32_t, getTensorBytesPerComponentV2, (const char*, int32_t) const)
  UNUSED(int32_t, getTensorComponentsPerElementV2, (const char*, int32_t) const)
  UNUSED(nvinfer1::TensorFormat, getTensorFormatV2, (const char*, int32_t) const)
  UNUSED(const char*, getTensorFormatDescV2, (const char*, int32_t) const)
  UNUSED(int32_t, getTensorVectorizedDimV2, (const char*, int32_t) const)
  UNUSED(nvinfer1::ISerializationConfig*, createSerializationConfig, ())
  UNUSED(nvinfer1::IHostMemory*, serializeWithConfig, (nvinfer1::ISerializationConfig&) const)
  UNUSED(nvinfer1::IRefitter*, createRefitter, (nvinfer1::ILogger&))
  UNUSED(int64_t, getStreamableWeightsSize, () const)
  UNUSED(bool, isDebugTensor, (const char*) const)
  UNUSED(bool, setWeightStreamingBudgetV2, (int64_t))
  UNUSED(int64_t, getWeightStreamingBudgetV2, () const)
  UNUSED(int64_t, getWeightStreamingAutomaticBudget, () const)
  UNUSED(int64_t, getWeightStreamingScratchMemorySize, () const)
  UNUSED(int64_t, getDeviceMemorySizeV2, () const)
  UNUSED(int64_t, getDeviceMemorySizeForProfileV2, (int32_t) const)
  UNUSED(const int64_t*, getProfileTensorValuesV2, (const char*, int32_t, nvinfer1::OptProfileSelector) const)
  UNUSED(nvinfer1::IExecutionContext*, createExecutionContextWithRuntimeConfig, (nvinfer1::IRuntimeConfig*))
  UNUSED(nvinfer1::IRuntimeConfig*, createRuntimeConfig, ())
  UNUSED(int64_t, getEngineStat, (nvinfer1::EngineStat) const)
  UNUSED(const char*, getAliasedInputTensor, (const char*) const)
};

class UnusedContext : public nvinfer1::apiv::VExecutionContext {
 public:
  UNUSED(nvinfer1::IExecutionContext*, getPImpl, ())
  UNUSED(void, setDebugSync, (bool))
  UNUSED(bool, getDebugSync, () const)
  UNUSED(void, setProfiler, (nvinfer1::IProfiler*))
  UNUSED(nvinfer1::IProfiler*, getProfiler, () const)
  UNUSED(const nvinfer1::ICudaEngine&, getEngine, () const)
  UNUSED(void, setName, (const char*))
  UNUSED(const char*, getName, () const)
  UNUSED(void, setDeviceMemory, (void*))
  UNUSED(int32_t, getOptimizationProfile, () const)
  UNUSED(bool, allInputDimensionsSpecified, () const)
  UNUSED(void, setErrorRecorder, (nvinfer1::IErrorRecorder*))
  UNUSED(nvinfer1::IErrorRecorder*, getErrorRecorder, () const)
  UNUSED(bool, executeV2, (void* const*))
  UNUSED(void, setEnqueueEmitsProfile, (bool))
  UNUSED(bool, getEnqueueEmitsProfile, () const)
  UNUSED(bool, reportToProfiler, () const)
  UNUSED(nvinfer1::Dims, getTensorShape, (const char*) const)
  UNUSED(nvinfer1::Dims, getTensorStrides, (const char*) const)
  UNUSED(const void*, getTensorAddress, (const char*) const)
  UNUSED(bool, setInputTensorAddress, (const char*, const void*))
  UNUSED(bool, setOutputTensorAddress, (const char*, void*))
  UNUSED(int32_t, inferShapes, (int32_t, const char**))
  UNUSED(bool, setInputConsumedEvent, (cudaEvent_t))
  UNUSED(cudaEvent_t, getInputConsumedEvent, () const)
  UNUSED(void*, getOutputTensorAddress, (const char*) const)
  UNUSED(bool, setOutputAllocator, (const char*, nvinfer1::IOutputAllocator*))
  UNUSED(nvinfer1::IOutputAllocator*, getOutputAllocator, (const char*))
  UNUSED(int64_t, getMaxOutputSize, (const char*) const)
  UNUSED(bool, setTemporaryStorageAllocator, (nvinfer1::IGpuAllocator*))
  UNUSED(nvinfer1::IGpuAllocator*, getTemporaryStorageAllocator, () const)
  UNUSED(void, setPersistentCacheLimit, (size_t))
  UNUSED(size_t, getPersistentCacheLimit, () const)
  UNUSED(bool, setNvtxVerbosity, (nvinfer1::ProfilingVerbosity))
  UNUSED(nvinfer1::ProfilingVerbosity, getNvtxVerbosity, () const)
  UNUSED(void, setAuxStreams, (cudaStream_t*, int32_t))
  UNUSED(bool, setDebugListener, (nvinfer1::IDebugListener*))
  UNUSED(nvinfer1::IDebugListener*, getDebugListener, ())
  UNUSED(bool, setTensorDebugState, (const char*, bool))
  UNUSED(bool, getDebugState, (const char*) const)
  UNUSED(bool, setAllTensorsDebugState, (bool))
  UNUSED(size_t, updateDeviceMemorySizeForShapes, ())
  UNUSED(void, setDeviceMemoryV2, (void*, int64_t))
  UNUSED(nvinfer1::IRuntimeConfig*, getRuntimeConfig, () const)
  UNUSED(bool, setUnfusedTensorsDebugState, (bool))
  UNUSED(bool, getUnfusedTensorsDebugState, () const)
  UNUSED(bool, setCommunicator, (void*))
};

#undef UNUSED

}  // namespace standin
