"""What a checkpoint answers, from its configuration: one of several classes, any of several labels, or one score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..bundle.tasks import ScoreActivation
from .config import MULTI_LABEL, refuse

ACTIVATIONS: dict[str, ScoreActivation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""PyTorch's name of a score's activation → ours."""


def task_of(config: Any) -> dict[str, Any]:
    """The fields of an ``Architecture`` that tell the task; none for a classifier of one class.

    Raises:
        UnsupportedModelError: a model of one output whose activation is neither Identity nor Sigmoid.
    """
    if config.num_labels != 1:
        _check_several(config)
        return {"task": "multi_label"} if getattr(config, "problem_type", None) == MULTI_LABEL else {}
    return {"task": "score", "score_activation": score_activation(config)}


def _check_several(config: Any) -> None:
    """Refuse a CrossEncoder of several outputs whose activation is not that of its task."""
    _, path = _stored_activation(config)
    several = getattr(config, "problem_type", None) == MULTI_LABEL
    name = "Identity" if path is None else str(path).rpartition(".")[2]
    if name not in ("Identity", "Sigmoid" if several else "Softmax"):
        remedy = f"Identity; a sigmoid for each label needs problem_type = {MULTI_LABEL!r}"
        raise refuse(config, "activation_fn", path, remedy)


def score_activation(config: Any) -> ScoreActivation:
    """What makes the one logit the score, as sentence-transformers stores it with a cross-encoder.

    Since its version 5.4 it is stored beside the configuration (``families.cross_encoder``); in version 4 the key is
    ``sentence_transformers.activation_fn``, before that ``sbert_ce_default_activation_function``; all hold the path of
    a class of PyTorch. A checkpoint without either gives its logit, as transformers
    does.

    Raises:
        UnsupportedModelError: another activation than Identity or Sigmoid.
    """
    key, path = _stored_activation(config)
    if path is None:
        return "identity"
    module, _, name = str(path).rpartition(".")
    if name not in ACTIVATIONS or module.partition(".")[0] not in ("", "torch"):
        raise refuse(config, key, path, "Identity or Sigmoid of torch.nn")
    return ACTIVATIONS[name]


def _stored_activation(config: Any) -> tuple[str, Any]:
    """The key under which a configuration has an activation, and its path; ``None`` where it has none."""
    stored = getattr(config, "sentence_transformers", None)
    path = stored.get("activation_fn") if isinstance(stored, Mapping) else None
    if path is not None:
        return "sentence_transformers.activation_fn", path
    key = "sbert_ce_default_activation_function"
    return key, getattr(config, key, None)


def problem_of(config: Any) -> dict[str, str]:
    """What a checkpoint of one output says of itself, where it says that it is a regression.

    Pipelines of transformers show the logit of such a checkpoint, and of any other of one output its sigmoid.
    """
    regression = config.num_labels == 1 and getattr(config, "problem_type", None) == "regression"
    return {"problem_type": "regression"} if regression else {}
