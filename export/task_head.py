"""The head of a graph by its task, and the outputs that it has then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bundle.tasks import MEMBER_OUTPUTS, OUTPUTS, PER_CLASS
from ..bundle.traced import AnyArchitecture
from .graph import FLOAT, Graph
from .label_head import label_head
from .score_head import score_head
from .uncertainty_head import uncertainty_head

Outputs = dict[str, tuple[int, Sequence[int | str]]]
"""Name → type and shape."""


def task_head(
    graph: Graph,
    logits: str,
    streams: int,
    members: int,
    architecture: AnyArchitecture,
    temperature: float | Sequence[float],
    emit: bool,
) -> None:
    """Add the head of a model's task.

    Args:
        logits: value [S, B, C] float32; of tokens [S, B, T, C].
    """
    head = (graph, logits, streams, members)
    if architecture.task == "score":
        score_head(*head, architecture.score_activation, emit)
    elif architecture.task == "multi_label":
        label_head(*head, np.broadcast_to(temperature, architecture.classes).tolist(), emit)
    else:
        one = float(np.ravel(temperature)[0])
        uncertainty_head(*head, architecture.classes, one, emit, architecture.every_token)


def task_outputs(architecture: AnyArchitecture, members: int | None) -> Outputs:
    """Outputs of a graph; ``members`` is M where they are given each for itself."""
    task, classes = architecture.task, [] if architecture.task == "score" else [architecture.classes]
    tokens = ["sequence"] if architecture.every_token else []
    found: Outputs = dict.fromkeys(OUTPUTS[task], (FLOAT, ("batch", *tokens)))
    found |= {name: (FLOAT, ("batch", *tokens, *classes)) for name in PER_CLASS if name in found}
    if members is not None:
        found[MEMBER_OUTPUTS[task]] = (FLOAT, ("batch", members, *tokens, *classes))
    return found
