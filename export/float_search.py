"""Search for the parts of a graph that stay float32 in a lower precision: as few as the gates allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
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
SWITCHES = "lowered_parts"  # bool input [parts] of a graph that contains both precisions

Judge = Callable[[onnx.ModelProto], list[Gate]]


def judge_against(model: onnx.ModelProto, batches: Sequence[Batch], precision: str) -> Judge:
    """The gates of a graph of lower precision against the float32 ``model``."""
    expected = outputs_of(model, batches)
    task = task_of_graph(expected, tags_tokens(model))
    return lambda lowered: task.compare(expected, outputs_of(lowered, batches), TOLERANCES[precision])[1]


def fewest_float_parts(
    parts: Sequence[str],
    lowered: Callable[[Collection[str]], onnx.ModelProto],
    judge: Judge,
    ranked: Callable[[], list[str]],
    progress: Progress,
) -> tuple[onnx.ModelProto, list[str], list[Gate]]:
    """The graph with as few parts in float32 as the gates allow, these parts, and the gates.

    ``lowered`` makes a graph with the given parts in float32; ``ranked`` sorts all parts, most sensitive first.

    Raises:
        GateError: half of the parts in float32 are too few.
    """
    order: list[str] = []
    counts = sorted({math.ceil(share * len(parts)) for share in FLOAT_SHARES})
    for count in progress(counts, len(counts), "checking the gates"):
        order = ranked() if count and not order else order  # measured only if needed
        model = lowered(order[:count])
        gates = judge(model)
        if all(gate.passed for gate in gates):
            return model, order[:count], gates
    raise GateError("; ".join(gate.told for gate in gates if not gate.passed))


def most_sensitive(
    both: onnx.ModelProto, parts: Sequence[str], batches: Sequence[Batch], progress: Progress
) -> list[str]:
    """Parts by the mean square of Δ probability (or Δ score) with that part alone in lower precision, largest first.

    ``both`` has switches (:func:`switches`). Errors are measured on those ``RANKING`` batches that all parts disturb
    most; undefined answers count as infinite errors.
    """
    session, answer = open_graph(both, "rank parts"), both.graph.output[0].name

    def answers(batch: Batch, on: np.ndarray) -> np.ndarray:
        return _outputs(session, [{**batch, SWITCHES: on}])[answer]

    def error(place: int, on: np.ndarray) -> float:
        squares = (answers(batches[place], on) - exact[place]) ** 2
        return float(np.nan_to_num(squares.mean(), nan=np.inf))

    places, identity = range(len(batches)), np.eye(len(parts), dtype=bool)
    exact = [answers(batch, ~identity.any(axis=0)) for batch in batches]
    worst = sorted(places, key=lambda place: -error(place, identity.any(axis=0)))[:RANKING]
    measured = progress(identity, len(parts), "ranking parts by their error")
    errors = [sum(error(place, alone) for place in worst) for alone in measured]
    return [parts[place] for place in np.argsort(-np.array(errors), kind="stable")]


def switches(graph: onnx.GraphProto, parts: Sequence[str]) -> list[onnx.NodeProto]:
    """Add the input ``SWITCHES``; return operators that read the switch of each part."""
    graph.input.append(helper.make_tensor_value_info(SWITCHES, TensorProto.BOOL, [len(parts)]))
    nodes = []
    for place, part in enumerate(parts):
        nodes.append(constant(f"place.{part}", place))
        nodes.append(helper.make_node("Gather", [SWITCHES, f"place.{part}"], [f"switch.{part}"]))
    return nodes


def choice(part: str, lower: str, full: str, name: str) -> onnx.NodeProto:
    """The value ``lower`` if the part's switch is on, else ``full``."""
    return helper.make_node("Where", [f"switch.{part}", lower, full], [name])


def tags_tokens(model: onnx.ModelProto) -> bool:
    """Return True if the first output, the probabilities, has an axis of tokens."""
    return len(model.graph.output[0].type.tensor_type.shape.dim) == 3


def outputs_of(model: onnx.ModelProto, batches: Sequence[Batch]) -> dict[str, np.ndarray]:
    """Outputs of a graph on all batches; for tokens those of real ones."""
    return _outputs(open_graph(model, "check a graph against float32"), batches)


def _outputs(session: Any, batches: Iterable[Batch]) -> dict[str, np.ndarray]:
    outputs = session.get_outputs()
    names, runs = [output.name for output in outputs], []
    for batch in batches:
        run = dict(zip(names, session.run(names, dict(batch)), strict=True))
        tokens = len(outputs[0].shape) == 3
        runs.append(at_tokens(run, batch["attention_mask"].astype(bool)) if tokens else run)
    return {name: np.concatenate([run[name] for run in runs]) for name in names}
