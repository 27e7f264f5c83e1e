"""The bundle that programs on reliability run: three members of a small text classifier, calibrated, with its graph."""

from __future__ import annotations

import csv
from pathlib import Path

import hydrant


def small_bundle(model: Path, data: Path, folder: Path) -> Path:
    """Fuse members with heads drawn at random, export and calibrate them; the bundle's folder."""
    from transformers import AutoTokenizer

    plan = hydrant.plan_heads(str(model), str(data), "random", members=3, keep=2)
    hydrant.save_bundle(hydrant.fuse(str(model), plan), folder, processor=AutoTokenizer.from_pretrained(str(model)))
    hydrant.export_onnx(folder, form=hydrant.GraphForm(member_outputs=True))
    hydrant.calibrate(folder, str(data), fit=str(data))
    return folder


def texts_of(data: Path) -> list[str]:
    """The texts of a CSV with the column text."""
    with data.open(newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def backends() -> list[str]:
    """The backends for the CPU that are installed."""
    from importlib.util import find_spec

    names = {"onnxruntime": "onnxruntime", "openvino": "openvino", "torch": "torch"}
    return [backend for backend, library in names.items() if find_spec(library)]
