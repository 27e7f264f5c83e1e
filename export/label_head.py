"""The label head in ONNX, always float32: member logits → a probability of each label, and its uncertainty.

With p_m = 1 / (1 + exp(−z_m / T)), p̄ = mean_m p_m and h(p) = −p log p − (1 − p) log(1 − p): label entropy h(p̄), label
mutual information h(p̄) − mean_m h(p_m), their sums over labels, and energy = −mean_m Σ log(1 + exp z_m), without T.
Entropies of a label are cut to [0, log 2], and those of an input to [0, C · log 2], which rounding would leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bundle.tasks import MEMBER_OUTPUTS
from ..metrics.uncertainty import highest_entropy
from .graph import Graph
from .uncertainty_head import TEMPERATURE

MEMBER_OUTPUT = MEMBER_OUTPUTS["multi_label"]


def label_head(
    graph: Graph, logits: str, streams: int, members: int, temperatures: Sequence[float], emit: bool
) -> None:
    """Add the head.

    Args:
        logits: value [S, B, C] float32.
        emit: also emit ``member_probabilities`` [B, M, C].
    """
    _energy(graph, logits)
    divisor = graph.weight(TEMPERATURE, np.array(temperatures, np.float32))  # a value of its own: calibration sets it
    logits = graph.node("Div", [logits, divisor], "logits.tempered")
    members_in = graph.node("Sigmoid", [logits], "members")  # [S, B, C]
    members_out = graph.node("Sigmoid", [graph.node("Neg", [logits], "logits.turned")], "members.without")
    mean = graph.node("ReduceMean", [members_in, graph.constant([0])], "probabilities", keepdims=0)  # [B, C]
    without = graph.node("ReduceMean", [members_out, graph.constant([0])], "probabilities.without", keepdims=0)
    each = _entropy(graph, members_in, members_out, "members.entropy")  # [S, B, C]
    expected = graph.node("ReduceMean", [each, graph.constant([0])], "members.entropy.mean", keepdims=0)  # [B, C]
    ends = [graph.constant(end, np.float32) for end in (0.0, highest_entropy(2))]
    expected = graph.node("Clip", [expected, *ends], "label.expected")
    total = _entropy(graph, mean, without, "probabilities.entropy")
    total = graph.node("Clip", [total, *ends], "probabilities.entropy.cut")
    predictive = graph.node("Max", [total, expected], "label_entropy")  # h(p̄) ≥ mean h(p_m) despite rounding
    information = graph.node("Sub", [predictive, expected], "label_mutual_information")
    labels = graph.constant([1])
    together = graph.constant(highest_entropy(2, len(temperatures)), np.float32)
    for value, name in (
        (predictive, "predictive_entropy"),
        (expected, "expected_entropy"),
        (information, "mutual_information"),
    ):
        total = graph.node("ReduceSum", [value, labels], f"{name}.sum", keepdims=0)  # [B]
        graph.node("Min", [total, together], name)
    if emit and streams < members:
        rows = graph.node("Transpose", [members_in], "members.rows", perm=[1, 0, 2])
        graph.node("Tile", [rows, graph.constant([1, members, 1])], MEMBER_OUTPUT)
    elif emit:
        graph.node("Transpose", [members_in], MEMBER_OUTPUT, perm=[1, 0, 2])


def _energy(graph: Graph, logits: str) -> None:
    """[S, B, C] → ``energy`` [B]."""
    soft = graph.node("Softplus", [logits], "energy.labels")
    total = graph.node("ReduceSum", [soft, graph.constant([2])], "energy.members", keepdims=0)  # [S, B]
    mean = graph.node("ReduceMean", [total, graph.constant([0])], "energy.mean", keepdims=0)
    graph.node("Neg", [mean], "energy")


def _entropy(graph: Graph, probabilities: str, without: str, name: str) -> str:
    """−p log p − q log q, nats, of probabilities p and their complements q; 0·log 0 = 0."""
    smallest = graph.constant(np.finfo(np.float32).tiny, np.float32)
    terms = []
    for part, value in (("with", probabilities), ("without", without)):
        positive = graph.node("Max", [value, smallest], f"{name}.{part}.positive")
        log = graph.node("Log", [positive], f"{name}.{part}.log")
        terms.append(graph.node("Mul", [value, log], f"{name}.{part}.terms"))
    return graph.node("Neg", [graph.node("Add", terms, f"{name}.sum")], name)
