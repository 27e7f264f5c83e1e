"""A TensorRT-RTX engine of a bundle, built without a GPU."""

import sys

import hydrant

(folder,) = sys.argv[1:]

hydrant.export_onnx(folder, precision="fp16")
text = hydrant.Bundle.open(folder).architecture().modality == "text"
made = hydrant.build_engine(
    folder,
    "tensorrt-rtx",
    "fp16",
    batch=["1:8:32"],
    sequence=["8:64:128"] if text else [],
    compute_capability=["8.9"],
)
fused, blocks = made.facts.fused[0], made.facts.attention_blocks
print(f"{made.path.name}: {fused} of {blocks} attention blocks fused")
