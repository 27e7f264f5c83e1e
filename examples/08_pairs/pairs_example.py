"""A sentence-pair classifier: two texts make one input."""

import sys

import hydrant
from transformers import AutoTokenizer

model, table, folder, first, second = sys.argv[1:]

reading = hydrant.DataOptions(text_pair="second")
plan = hydrant.plan_heads(model, table, members=3, keep=0.66, reading=reading)
ensemble = hydrant.fuse(model, plan)
hydrant.save_bundle(ensemble, folder, processor=AutoTokenizer.from_pretrained(model))
hydrant.export_onnx(folder)

with hydrant.load(folder) as predictor:
    found = predictor.predict([(first, second)])
    print(predictor.labels[found.label[0]], float(found.confidence[0]), float(found.mutual_information[0]))
