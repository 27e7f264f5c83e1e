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
        return {"task": "multi_label"} if getattr(config, "problem_type", None) == MULTI_LABEL else {}
    return {"task": "score", "score_activation": score_activation(config)}


def score_activation(config: Any) -> ScoreActivation:
    """What makes the one logit the score, as sentence-transformers stores it with a cross-encoder.

    The key is ``sentence_transformers.activation_fn``, and was ``sbert_ce_default_activation_function`` before its
    version 4; both hold the path of a class of PyTorch. A checkpoint without either gives its logit, as transformers
    does.

    Raises:
        UnsupportedModelError: another activation than Identity or Sigmoid.
    """
    stored = getattr(config, "sentence_transformers", None)
    key, path = "sentence_transformers.activation_fn", None
    if isinstance(stored, Mapping):
        path = stored.get("activation_fn")
    if path is None:
        key = "sbert_ce_default_activation_function"
        path = getattr(config, key, None)
    if path is None:
        return "identity"
    module, _, name = str(path).rpartition(".")
    if name not in ACTIVATIONS or module.partition(".")[0] not in ("", "torch"):
        raise refuse(config, key, path, "Identity or Sigmoid of torch.nn")
    return ACTIVATIONS[name]


def problem_of(config: Any) -> dict[str, str]:
    """What a checkpoint of one output says of itself, where it says that it is a regression.

    Pipelines of transformers show the logit of such a checkpoint, and of any other of one output its sigmoid.
    """
    regression = config.num_labels == 1 and getattr(config, "problem_type", None) == "regression"
    return {"problem_type": "regression"} if regression else {}
