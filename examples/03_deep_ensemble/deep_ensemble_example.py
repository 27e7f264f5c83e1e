"""Independently trained checkpoints as one graph that equals their Deep Ensemble."""

import sys

import hydrant
from hydrant.evaluation import estimate_cost
from transformers import AutoTokenizer

folder, *models = sys.argv[1:]

ensemble = hydrant.fuse(models, keep_separate="all")
hydrant.save_bundle(ensemble, folder, processor=AutoTokenizer.from_pretrained(models[0]))
hydrant.export_onnx(folder)
print(f"{len(models)} members at {estimate_cost(folder).ratio:.2f} × the operations of one")
