"""What a checkpoint answers, from its configuration: one of several classes, any of several labels, or one score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tasks import ScoreActivation
from .config import MULTI_LABEL, refuse

ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""PyTorch's name of a score's activation → ours."""


SHOWN = {"score": tuple(ACTIVATIONS), "multi_label": ("Identity", "Sigmoid"), "classification": ("Identity", "Softmax")}
"""Task → the activations of sentence-transformers of which hydrant gives the values, or the logits that they are of."""


def task_of(config: Any) -> dict[str, Any]:
    """The fields of an ``Architecture`` that tell the task; none for a classifier of one class."""
    labels = getattr(config, "problem_type", None) == MULTI_LABEL
    task = "score" if config.num_labels == 1 else "multi_label" if labels else "classification"
    name = _activation(config, task)
    if task == "score":
        return {"task": task, "score_activation": ACTIVATIONS[name]}
    return {"task": task} if labels else {}


def _activation(config: Any, task: str) -> str:
    """PyTorch's name of the activation; a checkpoint without one gives its logits, as transformers does."""
    path = activation_path(config)
    package, _, name = str(path or "torch.nn.Identity").rpartition(".")
    if name not in SHOWN[task] or package.partition(".")[0] != "torch":
        supported = f"{' or '.join(SHOWN[task])} of torch.nn for num_labels = {config.num_labels}"
        if task == "classification" and name == "Sigmoid":
            supported += f", and Sigmoid with problem_type = {MULTI_LABEL!r}"
        raise refuse(config, "activation_fn", path, supported)
    return name


def activation_path(config: Any) -> str | None:
    """The path of the activation class of PyTorch that sentence-transformers stores in a configuration.

    The key is ``sentence_transformers.activation_fn``, and was ``sbert_ce_default_activation_function`` before its
    version 4; ``families.cross_encoder`` brings the one of version 5.4 and newer here.
    """
    stored = getattr(config, "sentence_transformers", None)
    path = stored.get("activation_fn") if isinstance(stored, Mapping) else None
    return path or getattr(config, "sbert_ce_default_activation_function", None)


def problem_of(config: Any) -> dict[str, str]:
    """What a checkpoint of one output says of itself, where it says that it is a regression.

    Pipelines of transformers show the logit of such a checkpoint, and of any other of one output its sigmoid.
    """
    regression = config.num_labels == 1 and getattr(config, "problem_type", None) == "regression"
    return {"problem_type": "regression"} if regression else {}
