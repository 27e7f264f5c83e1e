"""The score head in ONNX, always float32: member logits → ``score`` and ``score_variance``.

With s_m = a(z_m), a the model's own activation: the mean of s_m over the members, and their variance around it.
"""

from __future__ import annotations

from ..bundle.tasks import MEMBER_OUTPUTS, ScoreActivation
from .graph import Graph

MEMBER_OUTPUT = MEMBER_OUTPUTS["score"]


def score_head(graph: Graph, logits: str, streams: int, members: int, activation: ScoreActivation, emit: bool) -> None:
    """Add the head.

    Args:
        logits: value [S, B, 1] float32.
        emit: also emit ``member_scores`` [B, M].
    """
    scores = graph.node("Squeeze", [logits, graph.constant([2])], "members.logits")  # [S, B]
    if activation == "sigmoid":
        scores = graph.node("Sigmoid", [scores], "members.scores")
    mean = graph.node("ReduceMean", [scores, graph.constant([0])], "score", keepdims=0)  # [B]
    apart = graph.node("Sub", [scores, mean], "members.apart")
    squared = graph.node("Mul", [apart, apart], "members.squared")
    graph.node("ReduceMean", [squared, graph.constant([0])], "score_variance", keepdims=0)
    if emit and streams < members:
        rows = graph.node("Transpose", [scores], "members.rows", perm=[1, 0])
        graph.node("Tile", [rows, graph.constant([1, members])], MEMBER_OUTPUT)
    elif emit:
        graph.node("Transpose", [scores], MEMBER_OUTPUT, perm=[1, 0])
