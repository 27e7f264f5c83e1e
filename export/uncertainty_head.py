"""The uncertainty head in ONNX, always float32: member logits → the graph's outputs.

With p̄ = mean_m softmax(z_m / T), predictive entropy H(p̄),
expected entropy mean_m H(p_m), mutual information = their difference, disagreement = share of
members whose argmax differs from that of p̄, energy = −mean_m log Σ exp z_m, without T. Of tokens every output has an
axis of them behind the batch. The largest logit is taken out before the division by T, so that none overflows, and
entropies are cut to [0, log C], which rounding would leave.
"""

from __future__ import annotations

import numpy as np

from ..bundle.tasks import MEMBER_OUTPUTS
from ..metrics.uncertainty import highest_entropy
from .graph import FLOAT, Graph

MEMBER_OUTPUT = MEMBER_OUTPUTS["classification"]


TEMPERATURE = "const.temperature"
"""Initializer [1] float32 that divides the member logits."""


def uncertainty_head(
    graph: Graph,
    logits: str,
    streams: int,
    members: int,
    classes: int,
    temperature: float,
    emit: bool,
    tokens: bool = False,
) -> None:
    """Add the head.

    Args:
        logits: value [S, B, C] float32.
        emit: also emit ``member_probabilities`` [B, M, C].
        tokens: the logits are [S, B, T, C], and everything has an axis T behind B.
    """
    shifted = _energy(graph, logits, 3 if tokens else 2)
    divisor = graph.weight(TEMPERATURE, np.array([temperature], np.float32))  # a value of its own: calibration sets it
    logits = graph.node("Div", [shifted, divisor], "logits.tempered")
    probabilities = graph.node("Softmax", [logits], "members", axis=-1)  # [S, B, C]
    mean = graph.node("ReduceMean", [probabilities, graph.constant([0])], "probabilities", keepdims=0)  # [B, C]
    each = _entropy(graph, probabilities, "members.entropy")  # [S, B]
    expected = graph.node("ReduceMean", [each, graph.constant([0])], "members.entropy.mean", keepdims=0)  # [B]
    ends = [graph.constant(end, np.float32) for end in (0.0, highest_entropy(classes))]
    expected = graph.node("Clip", [expected, *ends], "expected_entropy")
    total = _entropy(graph, mean, "probabilities.entropy")
    total = graph.node("Clip", [total, *ends], "probabilities.entropy.cut")
    predictive = graph.node("Max", [total, expected], "predictive_entropy")  # H(p̄) ≥ E[H] despite rounding
    graph.node("Sub", [predictive, expected], "mutual_information")
    label = graph.node("ArgMax", [mean], "label", axis=-1, keepdims=0)  # [B]
    votes = graph.node("ArgMax", [probabilities], "members.label", axis=-1, keepdims=0)  # [S, B]
    same = graph.node("Equal", [votes, label], "members.agree")
    other = graph.node("Cast", [graph.node("Not", [same], "members.differ")], "members.differ.float", to=FLOAT)
    graph.node("ReduceMean", [other, graph.constant([0])], "disagreement", keepdims=0)
    order = [1, 0, 2, 3] if tokens else [1, 0, 2]
    if emit and streams < members:
        members_in_rows = graph.node("Transpose", [probabilities], "members.rows", perm=order)
        graph.node("Tile", [members_in_rows, graph.constant([1, members, *([1] * (len(order) - 2))])], MEMBER_OUTPUT)
    elif emit:
        graph.node("Transpose", [probabilities], MEMBER_OUTPUT, perm=order)


def _energy(graph: Graph, logits: str, last: int) -> str:
    """[S, B, …, C], whose axis C is the ``last``, → ``energy`` [B, …].

    The largest logit is taken out first, so that no exponential overflows; what is left, at most 0, is returned.
    """
    top = graph.node("ReduceMax", [logits, graph.constant([-1])], "energy.top", keepdims=1)  # [S, B, 1]
    shifted = graph.node("Sub", [logits, top], "energy.shifted")
    log = graph.node("ReduceLogSumExp", [shifted, graph.constant([-1])], "energy.log", keepdims=1)
    total = graph.node("Add", [log, top], "energy.members")
    mean = graph.node("ReduceMean", [total, graph.constant([0, last])], "energy.mean", keepdims=0)
    graph.node("Neg", [mean], "energy")
    return shifted


def _entropy(graph: Graph, probabilities: str, name: str) -> str:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    smallest = graph.constant(np.finfo(np.float32).tiny, np.float32)
    log = graph.node("Log", [graph.node("Max", [probabilities, smallest], f"{name}.positive")], f"{name}.log")
    terms = graph.node("Mul", [probabilities, log], f"{name}.terms")
    total = graph.node("ReduceSum", [terms, graph.constant([-1])], f"{name}.sum", keepdims=0)
    return graph.node("Sub", [graph.constant(0.0, np.float32), total], name)
