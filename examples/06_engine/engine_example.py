"""A TensorRT-RTX engine of a bundle, built without a GPU."""

import sys

import hydrant
from hydrant.build import TensorRTForRTX

(folder,) = sys.argv[1:]

hydrant.export_onnx(folder, precision="fp16")
model = hydrant.Bundle.open(folder).architecture()
longest = min(128, model.max_sequence)
built = hydrant.build_engine(
    folder,
    TensorRTForRTX(compute_capability=["8.9"]),
    "fp16",
    batch=["1:8:32"],
    sequence=[f"8:{longest // 2}:{longest}"] if model.modality == "text" else [],
)
fused, blocks = built.facts.fused[0], built.facts.attention_blocks
print(f"{built.path.name}: {fused} of {blocks} attention blocks fused")
