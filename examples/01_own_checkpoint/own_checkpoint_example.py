"""Fine-tuned text classifier and a table of texts → a bundle that predicts."""

import sys

import hydrant
from hydrant.calib import Taylor
from transformers import AutoTokenizer

model, table, folder, *texts = sys.argv[1:]

plan = hydrant.plan_heads(model, table, Taylor(noise=0.5), members=3, keep=0.66)
ensemble = hydrant.fuse(model, plan)
hydrant.save_bundle(ensemble, folder, processor=AutoTokenizer.from_pretrained(model))
hydrant.export_onnx(folder)

with hydrant.load(folder) as predictor:
    prediction = predictor.predict(texts)
    for text, label, confidence, information in zip(
        texts, prediction.label, prediction.confidence, prediction.mutual_information, strict=True
    ):
        print(f"{predictor.labels[label]}\t{confidence:.3f}\t{information:.4f}\t{text}")
