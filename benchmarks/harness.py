"""Helpers of the benchmarks: options, results as JSON, tables in documents, and model shapes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hydrant
import numpy as np

ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "transformers", "onnxruntime", "onnxruntime-gpu", "numpy", "peft")
MEMBERS = 3
MODELS = ("ViT-B/16", "BERT-base", "MiniLM")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Parser with a program's docstring as help, and ``--output`` for :func:`save`."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("-o", "--output", type=Path, help="JSON file to write")
    return options


def save(path: Path | None, facts: Any) -> None:
    """Write results if a path is set; called after every step, so that interrupted runs keep results."""
    if path:
        path.write_text(json.dumps(facts, indent=1, default=vars) + "\n")


def about(sizes: Mapping[str, int] | None = None, packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """Command, machine, versions, and sizes of the data."""
    import torch

    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "command": command_line(), "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(), **gpu, "versions": {"hydrant": hydrant.__version__, **versions(packages)},
        "sizes": dict(sizes or {}),
    }  # fmt: skip


def versions(names: Sequence[str]) -> dict[str, str]:
    installed = {}
    for name in names:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


def command_line() -> str:
    """Command line without local folders: absolute paths are shortened, and ``--work`` is removed."""
    words = [part for word in sys.argv for part in (word.split("=", 1) if word.startswith("--") else [word])]
    if "--work" in words:
        del words[words.index("--work") : words.index("--work") + 2]
    named = [Path(word).name if Path(word).is_absolute() else word for word in words[1:]]
    return f"python benchmarks/{shlex.join([Path(words[0]).name, *named])}"


def has(module: str) -> bool:
    return find_spec(module) is not None


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def put_into(document: Path, text: str, name: str = "measured") -> None:
    """Replace the text between a document's markers of a name, or append it with markers."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    block = f"{begin}\n\n{text}\n\n{end}"
    old = document.read_text(encoding="utf-8") if document.is_file() else ""
    if begin in old and end in old:
        new = old[: old.index(begin)] + block + old[old.index(end) + len(end) :]
    else:
        new = f"{old.rstrip()}\n\n{block}\n".lstrip()
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(new, encoding="utf-8")


def config_of(name: str) -> tuple[str, Any]:
    """Class and configuration of a model by name."""
    from transformers import BertConfig, ViTConfig

    minilm = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    return {
        "ViT-B/16": ("ViTForImageClassification", ViTConfig(num_labels=1000)),
        "BERT-base": ("BertForSequenceClassification", BertConfig(num_labels=150)),
        "MiniLM": ("BertForSequenceClassification", BertConfig(num_labels=150, **minilm)),
    }[name]


def random_transformer(name: str) -> Any:
    """Hugging Face model with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    model_class, config = config_of(name)
    return getattr(transformers, model_class)(config).eval()


def architecture(name: str) -> Any:
    """Hydrant's architecture of a model by name."""
    from hydrant.models.family_registry import LAYOUTS

    model_class, config = config_of(name)
    (layout,) = [layout for layout in LAYOUTS if layout.model_class == model_class]
    return layout.architecture(config)


def random_plan(shape: Any, keep: int, fork: int, seed: int = 0) -> Any:
    """Plan with all heads below the fork and ``keep`` random heads from it on."""
    rng = np.random.default_rng(seed)
    whole = tuple(range(shape.heads))

    def heads(layer: int) -> tuple[int, ...]:
        return whole if layer < fork else tuple(sorted(rng.choice(shape.heads, keep, replace=False).tolist()))

    members = tuple(tuple(heads(layer) for layer in range(shape.layers)) for _ in range(MEMBERS))
    return hydrant.HeadPlan(shape.family, shape.layers, shape.heads, members, "random")


def inputs(shape: Any, batch: int, sequence: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    if shape.modality == "image":
        size = (batch, shape.channels, shape.image_height, shape.image_width)
        return {"pixel_values": rng.standard_normal(size, np.float32)}
    ids = rng.integers(1000, 20000, (batch, sequence))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def repeated(run: Callable[[], Any]) -> Callable[[], None]:
    """Run of a Deep Ensemble, one member after another."""

    def all_members() -> None:
        for _ in range(MEMBERS):
            run()

    return all_members


def times(ratio: Any, digits: int = 3) -> dict[str, float]:
    """Fields of a ratio of times: median, and range of 90 % of the rounds."""
    named = {"time": ratio.median, "from": ratio.p5, "to": ratio.p95}
    return {name: round(value, digits) for name, value in named.items()}
