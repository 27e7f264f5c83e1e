"""LoRA adapters of one base model as the members of one graph."""

import sys

import hydrant
from transformers import AutoTokenizer

base, folder, *adapters = sys.argv[1:]

ensemble = hydrant.fuse(base, adapters=adapters, low_rank="auto")
hydrant.save_bundle(ensemble, folder, processor=AutoTokenizer.from_pretrained(base))
hydrant.export_onnx(folder)
updates = [name for name, form in ensemble.provenance["adapted"].items() if form["low_rank"]]
print(f"{len(adapters)} members; {len(updates)} low-rank updates kept, the others merged")
