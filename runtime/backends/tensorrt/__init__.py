"""TensorRT and TensorRT-RTX engines: choice, loading and execution."""
