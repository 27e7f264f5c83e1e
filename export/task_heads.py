"""Output heads of the tasks in ONNX, always float32: member logits → outputs, entropies clipped to their range."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..bundle.traced import AnyArchitecture
from ..data.raw_inputs import FLOATS
from ..metrics.uncertainty import highest_entropy
from ..tasks import HIGHEST, LOGITS, PER_CLASS, TASKS, ScoreActivation
from .graph import FLOAT, INT64, Graph

Outputs = dict[str, tuple[int, Sequence[int | str]]]  # name → type and shape
# Initializer [1], or [C] for multi-label, that divides the logits; set by calibration.
TEMPERATURE = "const.temperature"


def task_head(graph: Graph, logits: str, streams: int, members: int, architecture: AnyArchitecture,
              temperature: float | Sequence[float], emit: bool) -> None:  # fmt: skip
    """Add the head of a model's task to logits [S, B, C] float32, or [S, B, T, C] for tokens; S is 1 or M."""
    classes = architecture.classes
    if architecture.task == "score":
        own, order = score_head(graph, logits, architecture.score_activation), [1, 0]
    elif architecture.task == "multi_label":
        own, order = label_head(graph, logits, np.broadcast_to(temperature, classes).tolist()), [1, 0, 2]
    else:
        one, order = float(np.ravel(temperature)[0]), [1, 0, 2, 3] if architecture.every_token else [1, 0, 2]
        own = uncertainty_head(graph, logits, classes, one, architecture.every_token)
    if emit:  # the members' values [S, B, …] as an output [B, M, …]; shared values are repeated
        whole, name = streams == members, TASKS[architecture.task].member_output
        rows = graph.node("Transpose", [own], name if whole else "members.rows", perm=order)
        if not whole:
            graph.node("Tile", [rows, graph.constant([1, members, *[1] * (len(order) - 2)])], name)


def task_inputs(architecture: AnyArchitecture) -> Outputs:
    """Inputs of a graph; texts and waveforms have a free length."""
    free = ["samples" if architecture.modality == "audio" else "sequence"]
    shape = ["batch", *(architecture.fixed_shape or free)]
    return {name: (FLOAT if name in FLOATS else INT64, shape) for name in architecture.input_names}


def task_outputs(architecture: AnyArchitecture, members: int | None) -> Outputs:
    """Outputs of a graph; ``members`` is M if the graph also returns each member's."""
    task, classes = architecture.task, [] if architecture.task == "score" else [architecture.classes]
    tokens = ["sequence"] if architecture.every_token else []
    outputs: Outputs = dict.fromkeys(TASKS[task].outputs, (FLOAT, ("batch", *tokens)))
    outputs |= {name: (FLOAT, ("batch", *tokens, *classes)) for name in PER_CLASS if name in outputs}
    outputs[LOGITS] = (FLOAT, ("batch", *tokens, *(classes or [1])))
    if members is not None:
        outputs[TASKS[task].member_output] = (FLOAT, ("batch", members, *tokens, *classes))
    return outputs


def uncertainty_head(graph: Graph, logits: str, classes: int, temperature: float, tokens: bool = False) -> str:
    """Classification of inputs, or of ``tokens`` (axis T behind B); returns the members' probabilities."""
    top = graph.node("ReduceMax", [logits, graph.constant([-1])], "energy.top", keepdims=1)  # [S, B, 1]
    shifted = graph.node("Sub", [logits, top], "energy.shifted")
    log = graph.node("ReduceLogSumExp", [shifted, graph.constant([-1])], "energy.log", keepdims=1)
    total = graph.node("Add", [log, top], "energy.members")
    graph.node("Neg", [_mean(graph, total, "energy.mean", 0, 3 if tokens else 2)], "energy")
    divisor = graph.weight(TEMPERATURE, np.array([temperature], np.float32))
    logits = graph.node("Div", [shifted, divisor], "logits.tempered")
    probabilities = graph.node("Softmax", [logits], "members", axis=-1)  # [S, B, C]
    mean = _mean(graph, probabilities, "probabilities")  # [B, C]
    each = _entropy(graph, probabilities, "members.entropy")  # [S, B]
    expected = _mean(graph, each, "members.entropy.mean")  # [B]
    ends = [graph.constant(end, np.float32) for end in (0.0, highest_entropy(classes))]
    expected = graph.node("Clip", [expected, *ends], "expected_entropy")
    total = _entropy(graph, mean, "probabilities.entropy", LOGITS)
    total = graph.node("Clip", [total, *ends], "probabilities.entropy.cut")
    predictive = graph.node("Max", [total, expected], "predictive_entropy")  # H(p̄) ≥ E[H] despite rounding
    graph.node("Sub", [predictive, expected], "mutual_information")
    label = graph.node("ArgMax", [mean], "label", axis=-1, keepdims=0)  # [B]
    votes = graph.node("ArgMax", [probabilities], "members.label", axis=-1, keepdims=0)  # [S, B]
    same = graph.node("Equal", [votes, label], "members.agree")
    other = graph.node("Cast", [graph.node("Not", [same], "members.differ")], "members.differ.float", to=FLOAT)
    _mean(graph, other, "disagreement")
    return probabilities


def label_head(graph: Graph, logits: str, temperatures: Sequence[float]) -> str:
    """Multi-label classification, scores as in ``fusion.output_heads``; returns the members' probabilities."""
    soft = graph.node("Softplus", [logits], "energy.labels")
    total = graph.node("ReduceSum", [soft, graph.constant([2])], "energy.members", keepdims=0)  # [S, B]
    graph.node("Neg", [_mean(graph, total, "energy.mean")], "energy")
    divisor = graph.weight(TEMPERATURE, np.array(temperatures, np.float32))
    logits = graph.node("Div", [logits, divisor], "logits.tempered")
    probabilities = graph.node("Sigmoid", [logits], "members")  # [S, B, C]
    complements = graph.node("Sigmoid", [graph.node("Neg", [logits], "logits.turned")], "members.without")
    mean = _mean(graph, probabilities, "probabilities")  # [B, C]
    without = _mean(graph, complements, "probabilities.without")
    each = _binary_entropy(graph, probabilities, complements, "members.entropy")  # [S, B, C]
    expected = _mean(graph, each, "members.entropy.mean")  # [B, C]
    ends = [graph.constant(end, np.float32) for end in (0.0, highest_entropy(2))]
    expected = graph.node("Clip", [expected, *ends], "label.expected")
    total = _binary_entropy(graph, mean, without, "probabilities.entropy")
    total = graph.node("Clip", [total, *ends], "probabilities.entropy.cut")
    predictive = graph.node("Max", [total, expected], "label_entropy")  # h(p̄) ≥ mean h(p_m) despite rounding
    information = graph.node("Sub", [predictive, expected], "label_mutual_information")
    labels, most = graph.constant([1]), graph.constant(highest_entropy(2, len(temperatures)), np.float32)
    sums = {"predictive_entropy": predictive, "expected_entropy": expected, "mutual_information": information}
    for name, value in sums.items():
        graph.node("Min", [graph.node("ReduceSum", [value, labels], f"{name}.sum", keepdims=0), most], name)  # [B]
    ends = [graph.constant(end, np.float32) for end in (np.finfo(np.float32).tiny, HIGHEST)]
    mean = graph.node("Clip", [mean, *ends], "logits.probabilities")
    without = graph.node("Sub", [graph.constant(1.0, np.float32), mean], "logits.without")
    logs = [graph.node("Log", [value], f"{value}.log") for value in (mean, without)]
    graph.node("Sub", logs, LOGITS)  # logit of the mean, [B, C]
    return probabilities


def score_head(graph: Graph, logits: str, activation: ScoreActivation) -> str:
    """Regression: mean and variance over the members of a(z_m), with the model's activation a; logits [S, B, 1]."""
    scores = graph.node("Squeeze", [logits, graph.constant([2])], "members.logits")  # [S, B]
    if activation == "sigmoid":
        scores = graph.node("Sigmoid", [scores], "members.scores")
    mean = _mean(graph, scores, "score")  # [B]
    graph.node("Unsqueeze", [mean, graph.constant([1])], LOGITS)  # [B, 1]
    apart = graph.node("Sub", [scores, mean], "members.apart")
    _mean(graph, graph.node("Mul", [apart, apart], "members.squared"), "score_variance")
    return scores


def _mean(graph: Graph, value: str, name: str, *axes: int) -> str:
    """Mean over the members, or over ``axes``."""
    return graph.node("ReduceMean", [value, graph.constant(axes or [0])], name, keepdims=0)


def _entropy(graph: Graph, probabilities: str, name: str, log: str | None = None) -> str:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0. ``log`` names the probabilities' logarithms."""
    terms = _terms(graph, probabilities, name, log)
    total = graph.node("ReduceSum", [terms, graph.constant([-1])], f"{name}.sum", keepdims=0)
    return graph.node("Sub", [graph.constant(0.0, np.float32), total], name)


def _binary_entropy(graph: Graph, probabilities: str, without: str, name: str) -> str:
    """−p log p − q log q, nats, of probabilities p and their complements q."""
    terms = [_terms(graph, probabilities, f"{name}.with"), _terms(graph, without, f"{name}.without")]
    return graph.node("Neg", [graph.node("Add", terms, f"{name}.sum")], name)


def _terms(graph: Graph, probabilities: str, name: str, log: str | None = None) -> str:
    """Terms p log p, with 0·log 0 = 0."""
    smallest = graph.constant(np.finfo(np.float32).tiny, np.float32)
    positive = graph.node("Max", [probabilities, smallest], f"{name}.positive")
    log = graph.node("Log", [positive], log or f"{name}.log")
    return graph.node("Mul", [probabilities, log], f"{name}.terms")
