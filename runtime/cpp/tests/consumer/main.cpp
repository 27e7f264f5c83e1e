#include <hydrant/hydrant.h>

#include <iostream>

int main() {
  std::cout << hydrant::version() << ", ONNX Runtime " << hydrant::onnxruntime_version() << '\n';
  try {
    const hydrant::Predictor predictor(".");
  } catch (const hydrant::BundleError& error) {
    std::cout << error.what() << '\n';
    return 0;
  }
  return 1;
}
