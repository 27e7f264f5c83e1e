"""The independent oracle: the untouched Hugging Face model, once per member, with pruned heads silenced.

A forward pre-hook zeroes the pruned heads' slices of the output projection's input; probabilities
are averaged, and uncertainties computed, in NumPy float64. Module names are spelled out here and
shared with nothing in the package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
def silenced(model: Any, keep: Sequence[Sequence[int]], heads: int) -> Iterator[None]:
    """Within the block the model is one member: only the heads ``keep[layer]`` have an output."""
    handles = []
    for layer, kept in enumerate(keep):
        module = model.get_submodule(OUTPUT_PROJECTIONS[model.config.model_type].format(layer))

        def silence(_: Any, arguments: tuple[torch.Tensor, ...], kept: Sequence[int] = kept) -> tuple[torch.Tensor]:
            states = arguments[0].clone()
            width = states.shape[-1] // heads
            for head in set(range(heads)) - set(kept):
                states[..., head * width : (head + 1) * width] = 0
            return (states,)

        handles.append(module.register_forward_pre_hook(silence))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def member_logits(model: Any, keep: Sequence[Sequence[int]], heads: int, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Logits [B, C] float64 of one member: ``keep[layer]`` lists the heads that stay."""
    output = "logits"
    if hasattr(model, "dual_encoder"):  # CLIP: the whole model, which reads image and prompts, is the original
        model, inputs, output = model.dual_encoder, {**inputs, **model.prompt_tokens}, "logits_per_image"
    with silenced(model, keep, heads), torch.no_grad():
        return getattr(model(**inputs), output).double().numpy()


def ensemble(
    models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor], temperature: float = 1.0
) -> dict[str, Any]:
    """Every output of the fused ensemble, in float64; ``models`` holds one checkpoint, or M."""
    logits = np.stack(
        [member_logits(models[m % len(models)], keep, plan.heads, inputs) for m, keep in enumerate(plan.members)]
    )
    return {"member_logits": logits, **uncertainty(softmax(logits / temperature))}


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
    """Every output of the fused ensemble of a model of one output, in float64; ``models`` as of :func:`ensemble`."""
    logits = np.stack(
        [member_logits(models[m % len(models)], keep, plan.heads, inputs) for m, keep in enumerate(plan.members)]
    )[..., 0]
    members = 1 / (1 + np.exp(-logits)) if activation == "sigmoid" else logits  # [M, B]
    return {"score": members.mean(axis=0), "score_variance": members.var(axis=0), "member_scores": members.T}


def labels(
    models: Sequence[Any], plan: Any, inputs: dict[str, torch.Tensor], temperatures: Sequence[float] = (1.0,)
) -> dict[str, np.ndarray]:
    """Every output of the fused ensemble of a multi-label model, in float64; ``models`` as of :func:`ensemble`."""
    logits = np.stack(
        [member_logits(models[m % len(models)], keep, plan.heads, inputs) for m, keep in enumerate(plan.members)]
    )  # [M, B, C]
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
