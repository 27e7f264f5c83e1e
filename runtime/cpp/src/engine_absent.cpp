// Replaces engine.cpp in builds without TensorRT's headers.
#include "engine.h"

namespace hydrant {

bool built_for(const std::string&) { return false; }

namespace {

std::string missing_headers(const std::string& library) {
  return "this libhydrant was built without TensorRT; build it with TensorRT's headers (-DTENSORRT_ROOT=FOLDER), " +
         std::string(library == "tensorrt-rtx" ? "name ONNX Runtime's plug-in (--provider-library)"
                                               : "run the graph with onnxruntime-tensorrt") +
         ", or use `hydrant predict`";
}

}  // namespace

std::optional<std::string> why_no_engines(const std::string& library) { return missing_headers(library); }

std::unique_ptr<const Backend> open_engine(const Bundle&, const Architecture&, const std::string& library,
                                           const Options&) {
  throw BackendError("backend " + library + " cannot run here: " + missing_headers(library));
}

}  // namespace hydrant
