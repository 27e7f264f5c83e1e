"""Search for the parts of a graph that stay float32 in a lower precision: as few as the gates allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..data.label_encoding import at_tokens
from ..errors import GateError
from ..metrics.gates import TOLERANCES, Gate
from ..progress import Progress
from ..tasks import task_of_graph
from .graph_probes import Batch, constant
from .onnx_file import open_graph

FLOAT_SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # shares of the parts in float32, tried in turn
RANKING = 8  # batches
CHECK = "check a graph against float32"
SWITCHES = "lowered_parts"  # bool input [parts] of a graph that contains both precisions


def judge_against(
    model: onnx.ModelProto, batches: Sequence[Batch], precision: str
) -> Callable[[onnx.ModelProto], list[Gate]]:
    """The gates of a graph of lower precision against the float32 ``model``."""
    session = open_graph(model, CHECK)
    expected = outputs_of(session, batches)
    task = task_of_graph(expected, _tags_tokens(session))
    limits = TOLERANCES[precision]
    return lambda lowered: task.compare(expected, outputs_of(open_graph(lowered, CHECK), batches), limits)[1]


def fewest_float_parts(precision: str, parts: Sequence[str], lowered: Callable[..., onnx.ModelProto],
                       judge: Callable[[onnx.ModelProto], list[Gate]], batches: Sequence[Batch],
                       progress: Progress) -> tuple[onnx.ModelProto, list[str], list[Gate]]:  # fmt: skip
    """The graph with as few parts in float32 as the gates allow, these parts, and the gates.

    ``lowered`` makes the graph with given parts in float32, or with a switch for each part if their places are given;
    that one ranks them, on ``batches``.

    Raises:
        GateError: half of the parts in float32 are too few.
    """
    order: list[str] = []
    counts = sorted({math.ceil(share * len(parts)) for share in FLOAT_SHARES})
    for count in progress(counts, len(counts), f"checking {precision.upper()}"):
        if count and not order:  # measured only if needed
            both = lowered((), {part: place for place, part in enumerate(parts)})
            order = most_sensitive(both, parts, batches, progress)
        model = lowered(order[:count], {})
        gates = judge(model)
        if all(gate.passed for gate in gates):
            return model, order[:count], gates
    failed = "; ".join(gate.told for gate in gates if not gate.passed)
    problem = f"{precision.upper()} fails even with half of the model's parts in float32: {failed}"
    raise GateError(f"{problem}; pass inputs like yours as data (--data), or export FP32")


def most_sensitive(
    both: onnx.ModelProto, parts: Sequence[str], batches: Sequence[Batch], progress: Progress
) -> list[str]:
    """Parts by the mean square of Δ probability (or Δ score) with that part alone lowered, largest first."""
    both.graph.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(parts)]))
    session, answer = open_graph(both, CHECK), both.graph.output[0].name
    alone: np.ndarray = np.eye(len(parts), dtype=bool)
    every: np.ndarray = np.ones(len(parts), bool)

    def answers(place: int, on: np.ndarray) -> np.ndarray:
        return outputs_of(session, [{**batches[place], SWITCHES: on}])[answer]

    def error(place: int, on: np.ndarray) -> float:
        return float(np.nan_to_num(((answers(place, on) - exact[place]) ** 2).mean(), nan=np.inf))

    exact = [answers(place, ~every) for place in range(len(batches))]
    worst = sorted(range(len(batches)), key=lambda place: -error(place, every))[:RANKING]
    errors = [sum(error(place, on) for place in worst) for on in progress(alone, len(parts), "ranking parts")]
    return [parts[place] for place in np.argsort(-np.array(errors), kind="stable")]


def choice(part: int, lower: str, full: str, name: str) -> list[onnx.NodeProto]:
    """Operators for the value ``lower`` if the switch of a part, by its place, is on, else ``full``."""
    place, switch = constant(f"{name}.place", part), f"{name}.switch"
    gather = helper.make_node("Gather", [SWITCHES, *place.output], [switch])
    return [place, gather, helper.make_node("Where", [switch, lower, full], [name])]


def outputs_of(session: Any, batches: Iterable[Batch]) -> dict[str, np.ndarray]:
    """Outputs of a graph on all batches; for tokens those of real ones."""
    names, runs = [output.name for output in session.get_outputs()], []
    for batch in batches:
        run = dict(zip(names, session.run(names, dict(batch)), strict=True))
        runs.append(at_tokens(run, batch["attention_mask"].astype(bool)) if _tags_tokens(session) else run)
    return {name: np.concatenate([run[name] for run in runs]) for name in names}


def _tags_tokens(session: Any) -> bool:
    """Return True if the first output, the probabilities, has an axis of tokens."""
    return len(session.get_outputs()[0].shape) == 3
