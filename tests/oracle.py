"""The independent oracle: the untouched Hugging Face model, once per member, with pruned heads silenced.

A forward pre-hook zeroes the pruned heads' slices of the output projection's input; probabilities
are averaged, and uncertainties computed, in NumPy float64. Other hooks read the vectors of which a
distance is made. Module names are spelled out here and shared with nothing in the package.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from transformers.models.dinov2 import modeling_dinov2

OLDER = hasattr(modeling_dinov2, "Dinov2SelfAttention")  # transformers named DINOv2's projections otherwise
DINOV2 = "encoder.layer.{}.attention.output.dense" if OLDER else "encoder.layer.{}.attention.o_proj"
OUTPUT_PROJECTIONS = {
    "bert": "bert.encoder.layer.{}.attention.output.dense",
    "xlm-roberta": "roberta.encoder.layer.{}.attention.output.dense",
    "camembert": "roberta.encoder.layer.{}.attention.output.dense",
    "electra": "electra.encoder.layer.{}.attention.output.dense",
    "roberta": "roberta.encoder.layer.{}.attention.output.dense",
    "distilbert": "distilbert.transformer.layer.{}.attention.out_lin",
    "vit": "vit.layers.{}.attention.o_proj",
    "deit": "deit.layers.{}.attention.o_proj",
    "dinov2": f"dinov2.{DINOV2}",
    "dinov2_with_registers": f"dinov2_with_registers.{DINOV2}",
    "modernbert": "model.layers.{}.attn.Wo",
    "clip": "vision_model.encoder.layers.{}.self_attn.out_proj",
    "siglip": "vision_model.encoder.layers.{}.self_attn.out_proj",
}

LAST_READERS = {
    "BertForSequenceClassification": "bert.pooler",
    "DistilBertForSequenceClassification": "pre_classifier",
    "ModernBertForSequenceClassification": "head",
    "ModernBertForTokenClassification": "head",
    "CLIPModel": "visual_projection",
}
"""Module that reads a member's last vector, for classes with a named module before the ``classifier``."""


@contextmanager
def silenced(model: Any, keep: Sequence[Sequence[int]], heads: int) -> Iterator[None]:
    """Turn the model into one member within the block: only the heads ``keep[layer]`` have an output."""
    with ExitStack() as hooks:
        for layer, kept in enumerate(keep):
            module = model.get_submodule(OUTPUT_PROJECTIONS[model.config.model_type].format(layer))
            hooks.callback(silence(module, kept, heads).remove)
        yield


def silence(module: torch.nn.Module, kept: Sequence[int], heads: int) -> Any:
    """Make an output projection read 0 from all heads but some, until the handle is removed."""

    def hook(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        states = arguments[0].clone()
        width = states.shape[-1] // heads
        for head in set(range(heads)) - set(kept):
            states[..., head * width : (head + 1) * width] = 0
        return (states,)

    return module.register_forward_pre_hook(hook)


def member_logits(model: Any, keep: Sequence[Sequence[int]], heads: int, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Logits [B, C] float64 of one member: ``keep[layer]`` lists the heads that stay."""
    output = "logits"
    if hasattr(model, "dual_encoder"):  # CLIP: the whole model, which reads image and prompts, is the original
        model, inputs, output = model.dual_encoder, {**inputs, **model.prompt_tokens}, "logits_per_image"
    with silenced(model, keep, heads), torch.no_grad():
        return getattr(model(**inputs), output).double().numpy()


def logits_of(models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Member logits [M, B, C] of one checkpoint, or of M."""
    each = enumerate(plan.members)
    return np.stack([member_logits(models[m % len(models)], keep, plan.heads, inputs) for m, keep in each])


@contextmanager
def watched(model: Any, layers: int) -> Iterator[dict[str, np.ndarray]]:
    """Record within the block the tokens behind each layer, by number, and a member's ``last`` vector.

    ``last`` is the input of the classifier, or of the pooler before it.
    """
    seen: dict[str, np.ndarray] = {}

    def keep(name: str, states: Any) -> None:
        seen[name] = (states[0] if isinstance(states, tuple) else states).detach().double().numpy()

    model = getattr(model, "dual_encoder", model)
    stem = OUTPUT_PROJECTIONS[model.config.model_type].partition(".{}")[0]
    reader = model.get_submodule(LAST_READERS.get(type(model).__name__, "classifier"))
    with ExitStack() as stack:
        for layer in range(layers):
            module = model.get_submodule(f"{stem}.{layer}")
            stack.enter_context(module.register_forward_hook(lambda _, given, made, name=str(layer): keep(name, made)))
        stack.enter_context(reader.register_forward_pre_hook(lambda _, given: keep("last", given)))
        yield seen


def vectors(model: Any, plan: Any, inputs: dict[str, torch.Tensor], taps: Sequence[str]) -> np.ndarray:
    """Vectors at a distance's taps, [K, B, d] float64; [K, B, T, d] for token classification.

    Layer vectors are the first member's: below a fork all members have the same.
    """
    states: dict[str, np.ndarray] = {}
    every = type(model).__name__.endswith("ForTokenClassification")
    for member, keep in enumerate(plan.members):
        with watched(model, plan.layers) as seen:
            member_logits(model, keep, plan.heads, inputs)
        last, width = seen.pop("last"), seen["0"].shape[-1]
        last = last[:, 0] if last.ndim == 3 and not every else last
        states |= {f"last.{member}": last[..., :width], f"last.{member}.mean": last[..., width:]}  # DINOv2 reads both
        if member == 0:
            states |= of_layers(seen, inputs.get("attention_mask"))
    return np.stack([states[tap] for tap in taps])


def of_layers(seen: dict[str, np.ndarray], mask: torch.Tensor | None) -> dict[str, np.ndarray]:
    """Every token, the first, and the mean of the real ones, of each layer."""
    states = {}
    for layer, tokens in seen.items():
        real = np.ones(tokens.shape[:2]) if mask is None else mask.numpy()
        states[f"layers.{layer}.token"] = tokens
        states[f"layers.{layer}.first"] = tokens[:, 0]
        states[f"layers.{layer}.mean"] = (tokens * real[..., None]).sum(axis=1) / real.sum(axis=1, keepdims=True)
    return states


def ensemble(
    models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor], temperature: float = 1.0
) -> dict[str, Any]:
    """Every output of the fused ensemble, in float64; ``models`` holds one checkpoint, or M."""
    logits = logits_of(models, plan, inputs)
    return {"member_logits": logits, "energy": energy(logits), **uncertainty(softmax(logits / temperature))}


def energy(logits: np.ndarray) -> np.ndarray:
    """Minus the members' mean of log Σ exp over the classes, without temperature: [M, B, C] → [B]."""
    most = logits.max(axis=-1)
    return -(most + np.log(np.exp(logits - most[..., None]).sum(axis=-1))).mean(axis=0)


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def uncertainty(members: np.ndarray) -> dict[str, np.ndarray]:
    """Fields of a prediction from member probabilities [M, B, C], in float64."""
    mean = members.mean(axis=0)
    expected = entropy(members).mean(axis=0)
    return {
        "probabilities": mean,
        "predictive_entropy": entropy(mean),
        "expected_entropy": expected,
        "mutual_information": entropy(mean) - expected,
        "disagreement": (members.argmax(axis=-1) != mean.argmax(axis=-1)).mean(axis=0),
    }


def entropy(probabilities: np.ndarray) -> np.ndarray:
    logs = np.log(probabilities, where=probabilities > 0, out=np.zeros_like(probabilities))
    return -(probabilities * logs).sum(axis=-1)


def scores(models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor], activation: str) -> dict[str, np.ndarray]:
    """Every output of a fused regression or relevance ensemble, in float64; ``models`` as in :func:`ensemble`."""
    logits = logits_of(models, plan, inputs)[..., 0]
    members = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else logits  # [M, B]
    return {"score": members.mean(axis=0), "score_variance": members.var(axis=0), "member_scores": members.T}


def labels(
    models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor], temperatures: Sequence[float] = (1.0,)
) -> dict[str, np.ndarray]:
    """Every output of the fused ensemble of a multi-label model, in float64; ``models`` as in :func:`ensemble`."""
    return of_labels(logits_of(models, plan, inputs), temperatures)


def of_labels(logits: np.ndarray, temperatures: Sequence[float] = (1.0,)) -> dict[str, np.ndarray]:
    """The same of members' logits [M, B, C]."""
    members = 1 / (1 + np.exp(-logits / np.asarray(temperatures)))
    mean = members.mean(axis=0)
    total, expected = binary_entropy(mean), binary_entropy(members).mean(axis=0)
    return {
        "probabilities": mean,
        "label_entropy": total,
        "label_mutual_information": total - expected,
        "predictive_entropy": total.sum(axis=1),
        "expected_entropy": expected.sum(axis=1),
        "mutual_information": (total - expected).sum(axis=1),
        "energy": -np.log1p(np.exp(logits)).sum(axis=2).mean(axis=0),
        "member_probabilities": members.transpose(1, 0, 2),
    }


def binary_entropy(probabilities: np.ndarray) -> np.ndarray:
    return entropy(np.stack([probabilities, 1 - probabilities], axis=-1))


def circuit_objective(name: str, losses: Any, known: Any, unknown: Any) -> float:
    """Mean loss, pairwise separation of entropies, or both, of one masked model."""
    nll, separation = np.mean(losses), np.log1p(np.exp(np.subtract.outer(known, unknown))).mean()
    return float({"nll": nll, "separation": separation, "both": nll + separation}[name])


def circuit(passes: Any, objective: str, heads: int, counts: Sequence[int], masking: str = "pruned") -> Any:
    """Heads and scores by full forward passes, which return losses, ID entropies and OOD entropies."""
    full = tuple(range(heads))
    chosen: list[tuple[int, ...]] = []
    running: list[tuple[int, ...]] = []
    table: list[list[float] | None] = []
    for layer, count in enumerate(counts):
        after = [full] * (len(counts) - layer - 1)
        without = [tuple(other for other in full if other != head) for head in full]
        scores = [circuit_objective(objective, *passes([*running, rest, *after])) for rest in without if count < heads]
        table.append(scores or None)
        best = np.argsort(-np.array(scores), kind="stable")[:count].tolist() if scores else full
        chosen.append(tuple(sorted(best)))
        kept = chosen[-1] if masking == "pruned" or not scores else set(full) - {*chosen[-1]}
        running.append(tuple(sorted(kept)))
    return tuple(chosen), table
