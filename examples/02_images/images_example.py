"""Fine-tuned image classifier and a folder of images → a bundle that predicts pictures."""

import sys

import hydrant
from PIL import Image
from transformers import AutoImageProcessor

model, images, folder, *pictures = sys.argv[1:]

plan = hydrant.plan_heads(model, images, members=3, keep=0.66)
ensemble = hydrant.fuse(model, plan)
hydrant.save_bundle(ensemble, folder, processor=AutoImageProcessor.from_pretrained(model))
hydrant.export_onnx(folder)

with hydrant.load(folder) as predictor:
    prediction = predictor.predict([Image.open(picture) for picture in pictures])
    for picture, label, entropy in zip(pictures, prediction.label, prediction.predictive_entropy, strict=True):
        print(f"{predictor.labels[label]}\t{entropy:.3f}\t{picture}")
