"""What is fuzzed, before it is damaged: a tiny bundle of texts with all that one can have, a traced one, an adapter."""

import json
from pathlib import Path

import numpy as np
import onnx
import torch
from hydrant import calibrate, export_onnx, fuse, save_bundle
from hydrant.calib.decisions.targets import Coverage
from hydrant.models.tracing.members import trace
from hydrant.models.tracing.traced_model import prepared
from safetensors.torch import save_file
from support import CLASSES, feeds, make_model, make_tokenizer, random_plan
from traced_support import make as make_traced
from traced_support import plan_of
from transformers import ViTImageProcessorPil


def make_given(place: Path) -> None:
    """From fixed seeds: a calibrated bundle, its bare graph, checkpoint, an adapter; others, of images and traced."""
    model = make_model("bert")
    save_bundle(fuse(model, random_plan("bert", 2)), place / "bundle", make_tokenizer(place / "checkpoint"))
    graph = export_onnx(place / "bundle")
    inputs, training = (feeds("bert", batch=40, seed=seed) for seed in (0, 1))
    labels = np.arange(40) % CLASSES
    calibrate(place / "bundle", (inputs, labels), fit=(training, labels), abstain=Coverage(0.9))
    model.save_pretrained(place / "checkpoint")
    bare = onnx.load(graph)
    del bare.graph.node[:], bare.graph.initializer[:]
    onnx.save(bare, place / graph.name)
    processor = ViTImageProcessorPil(size={"height": 12, "width": 12})
    save_bundle(fuse(make_model("vit"), random_plan("vit", 2)), place / "pictures", processor)
    export_onnx(place / "pictures")
    make_small_adapter(place / "adapter")
    short = "deberta-v3-short"  # it is made again and again
    plan = plan_of(trace(prepared(make_traced(short))), fork=0)
    save_bundle(fuse(make_traced(short), plan, traced=True), place / "traced", tensors_only=True)


def make_small_adapter(folder: Path) -> None:
    """A LoRA adapter of rank one on the queries of two layers, as PEFT writes it."""
    folder.mkdir()
    tensors, start = {}, "base_model.model.bert.encoder.layer"
    for layer in (0, 1):
        for half, shape in (("A", (1, 32)), ("B", (32, 1))):
            tensors[f"{start}.{layer}.attention.self.query.lora_{half}.weight"] = torch.full(shape, 0.01)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": "tiny", "r": 1, "lora_alpha": 2,
              "target_modules": ["0.attention.self.query", "1.attention.self.query"], "bias": "none",
              "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "use_rslora": False,
              "init_lora_weights": True}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
