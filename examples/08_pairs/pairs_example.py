"""Sentence-pair classifier: two texts form one input."""

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
    p = predictor.predict([(first, second)])
    print(predictor.labels[p.label[0]], float(p.confidence[0]), float(p.mutual_information[0]))
