"""Engines of TensorRT and TensorRT-RTX: choosing, loading and running them."""
