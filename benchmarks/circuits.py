"""Time of a circuit search against the naive one: L × H full forward passes of the Hugging Face model.

    python benchmarks/circuits.py -o benchmarks/results/circuits.json

BERT-base shape with random weights; random tokens, half of the examples taken as out of distribution. Layer by layer
the naive passes and ours run in turn, so that a busy machine slows both; then scores and heads are compared. "With
torch's linear" is ours without oneDNN's packed weights: what the rearranged search alone gains.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from hydrant.calib.heads import encoder as products
from hydrant.calib.heads.masking import MaskedRuns
from hydrant.calib.heads.objectives import Statistics, entropies, evaluate, label_losses
from hydrant.calib.heads.selection import choose_heads

CLASSES = 20


class Tokens:
    """A processor of ready token ids."""

    def encode(self, items: Sequence[np.ndarray], first: int = 0) -> list[Any]:  # noqa: ARG002
        return [SimpleNamespace(ids=item, tokens=len(item), truncated=False) for item in items]

    def collate(self, items: Sequence[Any]) -> dict[str, np.ndarray]:
        ids = np.stack([item.ids for item in items])
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    def describe(self) -> dict[str, Any]:
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=8, help="number of examples (default 8)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each (default 128)")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model (default 12)")
    parser.add_argument("--keep", type=int, default=8, help="heads kept in each layer (default 8)")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=CLASSES, num_hidden_layers=options.layers)
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.classifier.parameters():
            parameter.normal_(0, 0.3)  # logits that differ
    inputs = np.random.default_rng(0).integers(5, config.vocab_size, (options.examples, options.tokens))
    report = compare(model, inputs, options.keep)
    print(markdown(report))
    if options.output:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
        about |= {"versions": {package: version(package) for package in ("torch", "transformers", "numpy")}}
        about |= {"command": "python benchmarks/circuits.py", "shape": vars(options) | {"output": None}}
        options.output.write_text(json.dumps({**about, **report}, indent=1) + "\n")


def compare(model: Any, inputs: np.ndarray, keep: int) -> dict[str, Any]:
    """Both searches, layer by layer; times in seconds."""
    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    known = len(inputs) // 2
    labels = np.random.default_rng(1).integers(0, CLASSES, known)
    runs = {"ours": MaskedRuns(model, {"": inputs}, Tokens(), len(inputs))}
    with mock.patch.object(products, "_has_packed", lambda: False):
        runs["ours, with torch's linear"] = MaskedRuns(model, {"": inputs}, Tokens(), len(inputs))
    seconds = dict.fromkeys(("naive", *runs), 0.0)
    ids = torch.from_numpy(inputs)
    with torch.no_grad():
        model(input_ids=ids)  # warm
    chosen: tuple[tuple[int, ...], ...] = ()
    difference, same = 0.0, True
    for layer in range(layers):
        logits = {}
        for name in seconds:
            start = time.perf_counter()
            if name == "naive":
                logits[name] = torch.stack([masked_pass(model, ids, chosen, layer, head) for head in range(heads)])
            else:
                logits[name] = torch.cat([found for _, found in runs[name].each_head_masked(chosen)])
            seconds[name] += time.perf_counter() - start
        scores = {name: _scores(found, labels) for name, found in logits.items()}
        picked = {name: choose_heads(found[None], [keep]) for name, found in scores.items()}
        difference = max(difference, *(float(np.abs(found - scores["naive"]).max()) for found in scores.values()))
        same = same and len(set(picked.values())) == 1
        chosen = (*chosen, *picked["naive"])
        print(f"layer {layer}: { ({name: round(value, 1) for name, value in seconds.items()}) }", flush=True)
    ratios = {name: seconds["naive"] / value for name, value in seconds.items()}
    return {"seconds": seconds, "ratios": ratios, "score_difference": difference, "same_heads": same}


def masked_pass(model: Any, ids: torch.Tensor, chosen: Sequence[Sequence[int]], layer: int, head: int) -> torch.Tensor:
    """Logits [N, C] of one full forward pass, masked heads zeroed by hooks before the output projection."""
    heads = model.config.num_attention_heads
    masked = {below: [h for h in range(heads) if h not in kept] for below, kept in enumerate(chosen)}
    masked[layer] = [head]

    def silence(which: Sequence[int]) -> Any:
        def hook(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
            states = arguments[0].unflatten(-1, (heads, -1)).clone()
            states[..., list(which), :] = 0
            return (states.flatten(-2),)

        return hook

    layers = model.bert.encoder.layer
    handles = [
        layers[index].attention.output.dense.register_forward_pre_hook(silence(which))
        for index, which in masked.items()
    ]
    try:
        with torch.no_grad():
            return model(input_ids=ids).logits
    finally:
        for handle in handles:
            handle.remove()


def markdown(report: dict[str, Any]) -> str:
    lines = ["| search | seconds | naive ÷ it |", "|---|---|---|"]
    lines += [f"| {name} | {value:.1f} | {report['ratios'][name]:.2f} |" for name, value in report["seconds"].items()]
    heads = "the same heads" if report["same_heads"] else "OTHER HEADS"
    return "\n".join([*lines, "", f"{heads}; largest difference of a score {report['score_difference']:.1e}"])


def _scores(logits: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """The objective ``both`` of each variant, [H]."""
    known, entropy = len(labels), entropies(logits)
    found = Statistics(label_losses(logits[:, :known], labels), entropy[:, :known], entropy[:, known:])
    return evaluate("both", found, np.ones(known), np.ones(entropy.shape[1] - known))


if __name__ == "__main__":
    main()
