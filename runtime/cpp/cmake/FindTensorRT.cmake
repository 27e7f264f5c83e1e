# Finds the headers of TensorRT (10 or later) or TensorRT-RTX, and of CUDA. Neither library is linked: libhydrant loads
# them at run time, so that one build serves machines with and without a GPU.
#
#   TENSORRT_ROOT   an unpacked archive, a checkout of NVIDIA/TensorRT, or any folder with include/; a variable of CMake or
#                   of the environment. Otherwise the system (libnvinfer-headers-dev)
#   CUDA_ROOT       a CUDA toolkit, or the folder of Python packages with nvidia-cuda-runtime and nvidia-cuda-crt; a
#                   variable of CMake or of the environment. Otherwise CUDAToolkit_ROOT, CUDA_PATH, /usr/local/cuda, the
#                   system
#
# Defines the target TensorRT::Headers, and TensorRT_NAME and TensorRT_VERSION of the headers.

set(tensorrt_roots "")
foreach(root "${TENSORRT_ROOT}" "$ENV{TENSORRT_ROOT}")
  if(root)
    get_filename_component(root "${root}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    list(APPEND tensorrt_roots "${root}")
  endif()
endforeach()
set(cuda_roots "")
foreach(root "${CUDA_ROOT}" "$ENV{CUDA_ROOT}" "${CUDAToolkit_ROOT}" "$ENV{CUDA_PATH}" /usr/local/cuda)
  if(root)
    get_filename_component(root "${root}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    list(APPEND cuda_roots "${root}")
  endif()
endforeach()

find_path(TensorRT_INCLUDE_DIR NvInferRuntime.h HINTS ${tensorrt_roots} PATH_SUFFIXES include)
find_path(TensorRT_CUDA_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_roots} PATH_SUFFIXES include nvidia/cu13/include)
set(TensorRT_CUDA_COMPLETE FALSE)  # the headers are spread over two Python packages
if(EXISTS "${TensorRT_CUDA_INCLUDE_DIR}/crt/host_defines.h")
  set(TensorRT_CUDA_COMPLETE TRUE)
endif()

if(TensorRT_INCLUDE_DIR)
  file(STRINGS "${TensorRT_INCLUDE_DIR}/NvInferVersion.h" lines REGEX "^#define [A-Z_]+ +[0-9]+")
  set(TensorRT_NAME TensorRT)
  set(TensorRT_VERSION "")
  if(lines MATCHES "TRT_MAJOR_RTX")
    set(TensorRT_NAME TensorRT-RTX)
  endif()
  foreach(part MAJOR MINOR)
    string(REGEX MATCH "(TRT_${part}_RTX|TRT_${part}_ENTERPRISE|NV_TENSORRT_${part}) +([0-9]+)" found "${lines}")
    string(APPEND TensorRT_VERSION ".${CMAKE_MATCH_2}")
  endforeach()
  string(SUBSTRING "${TensorRT_VERSION}" 1 -1 TensorRT_VERSION)
endif()
set(TensorRT_SERVES FALSE)
if(TensorRT_NAME STREQUAL TensorRT-RTX OR TensorRT_VERSION VERSION_GREATER_EQUAL 10)
  set(TensorRT_SERVES TRUE)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorRT
  REQUIRED_VARS TensorRT_INCLUDE_DIR TensorRT_SERVES TensorRT_CUDA_INCLUDE_DIR TensorRT_CUDA_COMPLETE
  REASON_FAILURE_MESSAGE "looked for NvInferRuntime.h of TensorRT 10 or later (-DTENSORRT_ROOT=FOLDER, or \
libnvinfer-headers-dev of NVIDIA's packages), and for cuda_runtime_api.h beside crt/host_defines.h (-DCUDA_ROOT=FOLDER: a \
CUDA toolkit, or the folder of the Python packages nvidia-cuda-runtime and nvidia-cuda-crt)")

if(TensorRT_FOUND AND NOT TARGET TensorRT::Headers)
  add_library(TensorRT::Headers INTERFACE IMPORTED)
  set_target_properties(TensorRT::Headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
    "${TensorRT_INCLUDE_DIR};${TensorRT_CUDA_INCLUDE_DIR}")
endif()
mark_as_advanced(TensorRT_INCLUDE_DIR TensorRT_CUDA_INCLUDE_DIR)
