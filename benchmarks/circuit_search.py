"""Time of hydrant's circuit search, and of a naive one: L × H full forward passes of the Hugging Face model.

    python benchmarks/circuit_search.py -o benchmarks/results/circuits-cpu.json

BERT-base's shape with random weights and tokens; the objective is the negative log-likelihood. Times are medians of
alternating rounds. Scores and heads are compared; status 1 if the heads differ.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import harness
import hydrant
import numpy as np
import torch
import transformers
from hydrant.calib import Circuit

CLASSES = 20


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--examples", type=int, default=8, help="number of examples (default 8)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per example (default 128)")
    parser.add_argument("--layers", type=int, default=12, help="layers of the model (default 12)")
    parser.add_argument("--keep", type=int, default=8, help="heads kept in each layer (default 8)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both searches (default 3)")
    options = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.BertConfig(num_labels=CLASSES, num_hidden_layers=options.layers)
    model = transformers.BertForSequenceClassification(config).eval()
    for parameter in model.classifier.parameters():
        parameter.data.normal_(0, 0.3)  # distinct logits
    rng = np.random.default_rng(0)
    ids = rng.integers(5, config.vocab_size, (options.examples, options.tokens))
    labels = rng.integers(0, CLASSES, options.examples)
    seconds: dict[str, list[float]] = {"naive": [], "hydrant": []}
    for _ in range(options.rounds):
        begun = time.perf_counter()
        naive = naive_search(model, torch.from_numpy(ids), torch.from_numpy(labels), options.keep)
        middle = time.perf_counter()
        plan = search(model, ids, labels, options.keep)
        seconds["naive"].append(middle - begun)
        seconds["hydrant"].append(time.perf_counter() - middle)
    medians = {name: float(np.median(taken)) for name, taken in seconds.items()}
    difference = float(np.abs(np.array(plan.provenance["scores"][0]) - naive).max())
    same = plan.members[0] == tuple(best(scores, options.keep) for scores in naive)
    shape = {name: getattr(options, name) for name in ("examples", "tokens", "layers", "keep")}
    report = {**harness.about(shape), "seconds": medians, "ratio": medians["naive"] / medians["hydrant"]}
    report |= {"score_difference": difference, "same_heads": same}
    print(report)
    harness.save(options.output, report)
    return 0 if same else 1


def search(model: Any, ids: np.ndarray, labels: np.ndarray, keep: int) -> hydrant.HeadPlan:
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    method = Circuit(objective="nll", diversity="noise", max_accuracy_loss=100)
    return hydrant.plan_heads(model, (tensors, labels), method, members=1, keep=keep)


def best(scores: np.ndarray, keep: int) -> tuple[int, ...]:
    return tuple(sorted(np.argsort(scores)[-keep:].tolist()))


def naive_search(model: Any, ids: torch.Tensor, labels: torch.Tensor, keep: int) -> np.ndarray:
    """Loss without each head, [L, H]; pruned heads of lower layers are masked."""
    heads, scores, masked = model.config.num_attention_heads, [], {}
    for layer in range(model.config.num_hidden_layers):
        losses = [masked_loss(model, ids, labels, {**masked, layer: [head]}) for head in range(heads)]
        scores.append(np.array(losses))
        best_heads = best(scores[-1], keep)
        masked[layer] = [head for head in range(heads) if head not in best_heads]
    return np.stack(scores)


def masked_loss(model: Any, ids: torch.Tensor, labels: torch.Tensor, masked: dict[int, Sequence[int]]) -> float:
    """Loss of a full forward pass; hooks zero the masked heads before the output projection."""
    heads = model.config.num_attention_heads

    def silence(which: Sequence[int]) -> Any:
        def hook(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
            states = arguments[0].unflatten(-1, (heads, -1)).clone()
            states[..., list(which), :] = 0
            return (states.flatten(-2),)

        return hook

    outputs = [layer.attention.output.dense for layer in model.bert.encoder.layer]
    handles = [outputs[layer].register_forward_pre_hook(silence(which)) for layer, which in masked.items()]
    try:
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(input_ids=ids).logits, labels))
    finally:
        for handle in handles:
            handle.remove()


if __name__ == "__main__":
    sys.exit(main())
