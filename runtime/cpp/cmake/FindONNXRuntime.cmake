# Finds ONNX Runtime's headers and shared library in:
#
#   ONNXRUNTIME_ROOT   a release archive, or any folder with include/ (and lib/); a variable of CMake or of the environment
#   the system         libonnxruntime-dev of Debian 13 or Ubuntu
#   a wheel            the library of the Python package onnxruntime, with headers from above; of the Python in
#                      ONNXRuntime_PYTHON, the active or local virtual environment, or the system
#
# Defines the target ONNXRuntime::ONNXRuntime, and ONNXRuntime_FROM_WHEEL for a wheel's library.
# The release archive's own CMake files name missing folders and are not used.

set(roots "")
foreach(root "${ONNXRUNTIME_ROOT}" "$ENV{ONNXRUNTIME_ROOT}")
  if(root)
    get_filename_component(root "${root}" ABSOLUTE BASE_DIR "${CMAKE_SOURCE_DIR}")
    list(APPEND roots "${root}" "${root}/usr")
  endif()
endforeach()
list(APPEND roots "${CMAKE_SOURCE_DIR}/.build/onnxruntime/usr")  # from .ci/onnxruntime-headers

# Searches again if these settings changed, or if the files are gone.
set(settings "${ONNXRUNTIME_ROOT};${ONNXRuntime_PYTHON}")  # not the environment, which differs in automatic configurations
set(missing "")
foreach(kind INCLUDE_DIR LIBRARY)
  if(ONNXRuntime_${kind} STREQUAL ONNXRuntime_SEEN_${kind})  # else it was set by hand
    if((DEFINED ONNXRuntime_ASKED AND NOT ONNXRuntime_ASKED STREQUAL settings) OR NOT EXISTS "${ONNXRuntime_${kind}}")
      unset(ONNXRuntime_${kind} CACHE)
    endif()
  endif()
  if(NOT ONNXRuntime_${kind})
    list(APPEND missing ${kind})
  endif()
endforeach()
find_path(ONNXRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  HINTS ${roots} PATH_SUFFIXES include include/onnxruntime include/onnxruntime/core/session
  onnxruntime onnxruntime/core/session)  # the last two are below the system's include folders
find_library(ONNXRuntime_LIBRARY NAMES onnxruntime HINTS ${roots} PATH_SUFFIXES lib lib64)

if(NOT ONNXRuntime_LIBRARY)
  # A wheel's library lacks the name that linkers expect. The first Python with a wheel is used.
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

set(ONNXRuntime_ASKED "${settings}" CACHE INTERNAL "settings of the last search")
foreach(kind IN LISTS missing)
  set(ONNXRuntime_SEEN_${kind} "${ONNXRuntime_${kind}}" CACHE INTERNAL "result of the last search")
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(ONNXRuntime
  REQUIRED_VARS ONNXRuntime_LIBRARY ONNXRuntime_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "name a release archive with -DONNXRUNTIME_ROOT=FOLDER, install libonnxruntime-dev (Debian 13), \
or install the Python package onnxruntime and unpack the headers with .ci/onnxruntime-headers .build/onnxruntime")

if(ONNXRuntime_FOUND AND NOT TARGET ONNXRuntime::ONNXRuntime)
  set(location "${ONNXRuntime_LIBRARY}")
  set(ONNXRuntime_FROM_WHEEL FALSE)
  if(location MATCHES "/capi/libonnxruntime\\.so\\.")
    # The wheel's file is not named like its SONAME: a link provides that name to the loader.
    set(ONNXRuntime_FROM_WHEEL TRUE)
    # Each library has its own folder, so that programs are linked again after a change.
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
