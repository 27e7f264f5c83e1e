"""The uncertainty head in ONNX, always float32: member logits → the graph's outputs.

With p̄ = mean_m softmax(z_m / T), predictive entropy H(p̄),
expected entropy mean_m H(p_m), mutual information = their difference, disagreement = share of
members whose argmax differs from that of p̄.
"""

from __future__ import annotations

import numpy as np

from .graph import FLOAT, Graph

OUTPUTS = ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement")
MEMBER_OUTPUT = "member_probabilities"


def uncertainty_head(graph: Graph, logits: str, temperature: float, member_outputs: bool) -> None:
    """Add the head.

    Args:
        logits: value [M, B, C] float32.
        temperature: T > 0.
        member_outputs: also emit ``member_probabilities`` [B, M, C].
    """
    if temperature != 1.0:
        logits = graph.node("Div", [logits, graph.constant(temperature, np.float32)], "logits.tempered")
    members = graph.node("Softmax", [logits], "members", axis=-1)  # [M, B, C]
    mean = graph.node("ReduceMean", [members, graph.constant([0])], "probabilities", keepdims=0)  # [B, C]
    each = _entropy(graph, members, "members.entropy")  # [M, B]
    expected = graph.node("ReduceMean", [each, graph.constant([0])], "expected_entropy", keepdims=0)  # [B]
    total = _entropy(graph, mean, "probabilities.entropy")
    predictive = graph.node("Max", [total, expected], "predictive_entropy")  # H(p̄) ≥ E[H] despite rounding
    graph.node("Sub", [predictive, expected], "mutual_information")
    label = graph.node("ArgMax", [mean], "label", axis=-1, keepdims=0)  # [B]
    votes = graph.node("ArgMax", [members], "members.label", axis=-1, keepdims=0)  # [M, B]
    same = graph.node("Equal", [votes, label], "members.agree")
    other = graph.node("Cast", [graph.node("Not", [same], "members.differ")], "members.differ.float", to=FLOAT)
    graph.node("ReduceMean", [other, graph.constant([0])], "disagreement", keepdims=0)
    if member_outputs:
        graph.node("Transpose", [members], MEMBER_OUTPUT, perm=[1, 0, 2])


def _entropy(graph: Graph, probabilities: str, name: str) -> str:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    smallest = graph.constant(np.finfo(np.float32).tiny, np.float32)
    log = graph.node("Log", [graph.node("Max", [probabilities, smallest], f"{name}.positive")], f"{name}.log")
    terms = graph.node("Mul", [probabilities, log], f"{name}.terms")
    total = graph.node("ReduceSum", [terms, graph.constant([-1])], f"{name}.sum", keepdims=0)
    return graph.node("Sub", [graph.constant(0.0, np.float32), total], name)
