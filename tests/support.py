"""What tests build on: tiny random models of every family, inputs, plans, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from hydrant import HeadPlan
from hydrant.calib.data import Examples

os.environ.setdefault("HF_HUB_OFFLINE", "1")

FAMILIES = ("bert", "roberta", "distilbert", "vit", "deit")
TEXT_FAMILIES = FAMILIES[:3]
LAYERS, HEADS, CLASSES, VOCABULARY = 3, 4, 5, 99

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]


def make_model(family: str, seed: int = 0, **settings: Any) -> torch.nn.Module:
    """A tiny classifier of a family, with random weights large enough for heads to matter."""
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 40, "num_labels": CLASSES}
    shape = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
    image = {"image_size": 12, "patch_size": 4, "num_labels": CLASSES}
    slim = {"dim": 32, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 48}
    makers: dict[str, Callable[[], torch.nn.Module]] = {
        "bert": lambda: transformers.BertForSequenceClassification(
            transformers.BertConfig(**{**text, **shape, **settings})
        ),
        "roberta": lambda: transformers.RobertaForSequenceClassification(
            transformers.RobertaConfig(**{**text, **shape, "type_vocab_size": 1, "pad_token_id": 1, **settings})
        ),
        "distilbert": lambda: transformers.DistilBertForSequenceClassification(
            transformers.DistilBertConfig(**{**text, **slim, **settings})
        ),
        "vit": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**{**shape, **image, **settings})),
        "deit": lambda: transformers.DeiTForImageClassification(
            transformers.DeiTConfig(**{**shape, **image, **settings})
        ),
    }
    torch.manual_seed(seed)
    model = makers[family]()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() and name.endswith("weight")
            centre = 1.0 if is_norm else 0.0
            parameter.normal_(centre, 0.3)
    return model.eval()


def random_plan(family: str, members: int, seed: int = 0) -> HeadPlan:
    """A plan with unequal head counts between members and layers."""
    rng = np.random.default_rng(seed)
    keep = tuple(
        tuple(
            tuple(sorted(rng.choice(HEADS, rng.integers(1, HEADS + 1), replace=False).tolist())) for _ in range(LAYERS)
        )
        for _ in range(members)
    )
    return HeadPlan(family, LAYERS, HEADS, keep, "random")


def make_inputs(family: str, batch: int = 4, seed: int = 0, padded: bool = True) -> dict[str, torch.Tensor]:
    """Inputs of a tiny model; text with rows of different lengths when padded."""
    rng = np.random.default_rng(seed)
    if family in ("vit", "deit"):
        return {"pixel_values": torch.from_numpy(rng.standard_normal((batch, 3, 12, 12)).astype(np.float32))}
    tokens = 9
    ids = torch.from_numpy(rng.integers(5, VOCABULARY, (batch, tokens)))
    mask = torch.ones_like(ids)
    if padded:
        for row, length in enumerate(rng.integers(2, tokens + 1, batch)):
            mask[row, length:] = 0
        mask[0] = 1
        ids[mask == 0] = 1 if family == "roberta" else 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family == "bert":
        inputs["token_type_ids"] = torch.from_numpy(rng.integers(0, 2, (batch, tokens))) * mask
    return inputs


class Item:
    """One ready-made example: unpadded tensors without a batch axis."""

    truncated = False

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    @property
    def tokens(self) -> int:
        return len(next(iter(self.tensors.values())))


class ReadyTensors:
    """A processor whose inputs are ready; batches are padded on the right."""

    def __init__(self, padding: int) -> None:
        self.padding = padding
        self.shapes: list[tuple[int, ...]] = []

    def encode(self, items: Sequence[Item], first: int = 0) -> list[Item]:
        return list(items)

    def collate(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        longest = max(item.tokens for item in items)
        batch = {}
        for name in items[0].tensors:
            fill = self.padding if name == "input_ids" else 0
            rows = [item.tensors[name] for item in items]
            pads = [[(0, longest - len(row)), *[(0, 0)] * (row.ndim - 1)] for row in rows]
            batch[name] = np.stack(
                [np.pad(row, pad, constant_values=fill) for row, pad in zip(rows, pads, strict=True)]
            )
        self.shapes.append(next(iter(batch.values())).shape)
        return batch

    def describe(self) -> dict[str, Any]:
        return {}


def examples_of(family: str, count: int) -> Examples:
    """Ready-made examples of a tiny model, texts unpadded, with random labels."""
    inputs = {name: tensor.numpy() for name, tensor in make_inputs(family, batch=count, seed=3).items()}
    items = []
    for row in range(count):
        length = inputs["attention_mask"][row].sum() if "attention_mask" in inputs else None
        items.append(Item({name: array[row][:length] for name, array in inputs.items()}))
    labels = np.random.default_rng(5).integers(0, CLASSES, count)
    return Examples(items, labels, "test")


def make_tokenizer(folder: Path) -> Any:
    """A small WordPiece tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=40)


def run_cli(*arguments: object, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a subprocess, outside the checkout."""
    command = [sys.executable, "-m", "hydrant.cli", *map(str, arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    return subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        cwd=options.pop("cwd", "/"),
        **options,
    )
