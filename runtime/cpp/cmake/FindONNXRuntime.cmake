# Finds ONNX Runtime's headers and shared library, each where it can be had:
#
#   ONNXRUNTIME_ROOT   a release archive, or any folder with include/ (and lib/); a variable of CMake or of the environment
#   the system         libonnxruntime-dev of Debian 13 or Ubuntu
#   a wheel            the library of the Python package onnxruntime, beside headers from any of these; of the Python
#                      that ONNXRuntime_PYTHON names, the active or local virtual environment, or the system
#
# Defines the target ONNXRuntime::ONNXRuntime, and ONNXRuntime_FROM_WHEEL where the library is a wheel's.
# The release archive's own CMake files name folders that it does not have; they are not used.

set(roots "")
foreach(root "${ONNXRUNTIME_ROOT}" "$ENV{ONNXRUNTIME_ROOT}")
  if(root)
    get_filename_component(root "${root}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    list(APPEND roots "${root}" "${root}/usr")
  endif()
endforeach()
list(APPEND roots "${CMAKE_SOURCE_DIR}/.build/onnxruntime/usr")  # where .ci/onnxruntime-headers puts them

# Where this build folder was made with other answers to these questions, or what was found is gone, it is looked for anew.
set(asked "${ONNXRUNTIME_ROOT};${ONNXRuntime_PYTHON}")  # the environment may differ where a build configures itself anew
set(sought "")
foreach(kind INCLUDE_DIR LIBRARY)
  if(ONNXRuntime_${kind} STREQUAL ONNXRuntime_SEEN_${kind})  # else it was given by hand
    if((DEFINED ONNXRuntime_ASKED AND NOT ONNXRuntime_ASKED STREQUAL asked) OR NOT EXISTS "${ONNXRuntime_${kind}}")
      unset(ONNXRuntime_${kind} CACHE)
    endif()
  endif()
  if(NOT ONNXRuntime_${kind})
    list(APPEND sought ${kind})
  endif()
endforeach()
find_path(ONNXRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  HINTS ${roots} PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session
  onnxruntime onnxruntime/core/session)  # the last two: of the system's include folders
find_library(ONNXRuntime_LIBRARY NAMES onnxruntime HINTS ${roots} PATH_SUFFIXES lib lib64)

if(NOT ONNXRuntime_LIBRARY)
  # Python's wheel has the library without the name that linkers look for. The first Python that has it is taken.
  find_program(python_of_system NAMES python3 python NO_CACHE)
  foreach(python "${ONNXRuntime_PYTHON}" "$ENV{VIRTUAL_ENV}/bin/python" "${CMAKE_SOURCE_DIR}/.venv/bin/python"
      "${python_of_system}")
    if(NOT EXISTS "${python}")
      continue()
    endif()
    execute_process(
      COMMAND "${python}" -c "import importlib.util as u, glob; print(*glob.glob(u.find_spec('onnxruntime').submodule_search_locations[0] + '/capi/libonnxruntime.so.*'), end='')"
      OUTPUT_VARIABLE wheel ERROR_QUIET)
    if(wheel)
      break()
    endif()
  endforeach()
  if(wheel)
    set(ONNXRuntime_LIBRARY "${wheel}" CACHE FILEPATH "ONNX Runtime's shared library" FORCE)
  endif()
endif()

set(ONNXRuntime_ASKED "${asked}" CACHE INTERNAL "where this file was told to look")
foreach(kind IN LISTS sought)
  set(ONNXRuntime_SEEN_${kind} "${ONNXRuntime_${kind}}" CACHE INTERNAL "what it found there")
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONNXRuntime
  REQUIRED_VARS ONNXRuntime_LIBRARY ONNXRuntime_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "give a release archive with -DONNXRUNTIME_ROOT=FOLDER, install libonnxruntime-dev (Debian 13), \
or install the Python package onnxruntime and unpack the headers with .ci/onnxruntime-headers .build/onnxruntime")

if(ONNXRuntime_FOUND AND NOT TARGET ONNXRuntime::ONNXRuntime)
  set(location "${ONNXRuntime_LIBRARY}")
  set(ONNXRuntime_FROM_WHEEL FALSE)
  if(location MATCHES "/capi/libonnxruntime\\.so\\.")
    # The wheel's file lacks its own SONAME as a name: a link beside the build provides it to the loader.
    set(ONNXRuntime_FROM_WHEEL TRUE)
    # It has a folder of its own, so that what was linked with another library is linked anew: each wants its version.
    string(MD5 own "${ONNXRuntime_LIBRARY}")
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/onnxruntime/${own}")
    set(location "${CMAKE_BINARY_DIR}/onnxruntime/${own}/libonnxruntime.so.1")
    if(NOT EXISTS "${location}")
      file(CREATE_LINK "${ONNXRuntime_LIBRARY}" "${location}" SYMBOLIC)
    endif()
  endif()
  add_library(ONNXRuntime::ONNXRuntime SHARED IMPORTED)
  set_target_properties(ONNXRuntime::ONNXRuntime PROPERTIES
    IMPORTED_LOCATION "${location}" INTERFACE_INCLUDE_DIRECTORIES "${ONNXRuntime_INCLUDE_DIR}")
endif()
mark_as_advanced(ONNXRuntime_INCLUDE_DIR ONNXRuntime_LIBRARY)
