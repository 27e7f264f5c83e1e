"""Offering INT8 only where it holds: products return to float32 until the decision-level gates pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx

from ..data.label_encoding import at_tokens
from ..errors import GateError, InputError
from ..metrics.gates import TOLERANCES, Gate
from ..progress import Progress, no_progress
from ..tasks import task_of_graph
from .onnx_file import open_graph
from .quantize import Batch, Seen, calibrate, part_of, products, quantise

FLOAT_SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Shares of the layers' parts that are left in float32, tried in turn."""

LEAST_CHECKED = 32
"""Fewest inputs on which gates say anything."""

BATCH = 8
"""Inputs of a batch, with one another's padding."""


@dataclass(frozen=True)
class Quantised:
    """An INT8 graph that passed its gates."""

    model: onnx.ModelProto
    quantised: int  # parts of layers (``quantize.part_of``) in INT8
    left: list[str]  # names of those that stay float32
    gates: list[Gate]  # figures against float32 on inputs that calibration did not see
    source: str  # what calibration and gates ran on, in words

    def to_json(self) -> dict[str, Any]:
        """All but the graph, as a JSON object."""
        judged = [asdict(gate) for gate in self.gates]
        return {"quantised": self.quantised, "left": self.left, "gates": judged, "source": self.source}


def search(
    model: onnx.ModelProto, layers: int, batches: Sequence[Batch], source: str, progress: Progress = no_progress
) -> Quantised:
    """Quantise a graph, leaving as few parts of layers in float32 as the gates allow."""
    checking, calibrating = batches[::2], batches[1::2]
    checked = sum(len(next(iter(batch.values()))) for batch in checking)
    nodes = products(model, layers)
    if checked < LEAST_CHECKED or not nodes:
        wanted = (
            f"INT8 needs {2 * LEAST_CHECKED} inputs, to calibrate on and to check, and a layer that runs on every token"
        )
        raise InputError(f"{wanted}; found {source} and {layers} such layers; give more data, or export FP32")
    singles = [single for batch in progress(calibrating, len(calibrating), "calibrating") for single in _rows(batch)]
    seen = calibrate(model, nodes, singles)
    parts = list(dict.fromkeys(part_of(node.name) for node in nodes))
    expected = _outputs(model, checking)
    task = task_of_graph(expected, _tags_tokens(model))
    judged: list[Gate] = []
    ranked: list[str] = []
    for share in progress(FLOAT_SHARES, len(FLOAT_SHARES), "checking INT8"):
        if share and not ranked:  # measured only when it is needed
            ranked = _most_sensitive(model, nodes, seen, parts, calibrating, progress)
        left = ranked[: math.ceil(share * len(parts))]
        quantised = quantise(model, nodes, seen, left)
        _, judged = task.compare(expected, _outputs(quantised, checking), TOLERANCES["int8"])
        if all(gate.passed for gate in judged):
            return Quantised(quantised, len(parts) - len(left), sorted(left), judged, source)
    failed = "; ".join(gate.told for gate in judged if not gate.passed)
    told = f"INT8 does not hold for this model, even with half of its layers' parts in float32: {failed}"
    raise GateError(f"{told}; export FP32 or BF16")


def _rows(batch: Batch) -> list[Batch]:
    """The inputs of a batch one by one, texts without their padding."""
    singles: list[Batch] = []
    for row in range(len(next(iter(batch.values())))):
        single = {name: array[row : row + 1] for name, array in batch.items()}
        if "attention_mask" in single:
            real = single["attention_mask"][0].astype(bool)
            single = {name: array[:, real] for name, array in single.items()}
        singles.append(single)
    return singles


def _most_sensitive(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    seen: Seen,
    parts: Sequence[str],
    batches: Sequence[Batch],
    progress: Progress,
) -> list[str]:
    """Parts in the order of mean |Δ probability| (or |Δ score|) when each alone is in INT8, largest first."""
    few = batches[:8]
    answer = model.graph.output[0].name
    expected = _outputs(model, few)[answer]
    errors = {}
    for part in progress(parts, len(parts), "ranking parts by INT8 error"):
        alone = quantise(model, nodes, seen, [other for other in parts if other != part])
        errors[part] = float(np.abs(_outputs(alone, few)[answer] - expected).mean())
    return sorted(parts, key=lambda part: -errors[part])


def _tags_tokens(model: onnx.ModelProto) -> bool:
    """Whether its first output, the probabilities, has an axis of tokens."""
    return len(model.graph.output[0].type.tensor_type.shape.dim) == 3


def _outputs(model: onnx.ModelProto, batches: Sequence[Batch]) -> dict[str, np.ndarray]:
    session = open_graph(model, "check an INT8 graph")
    names = [output.name for output in session.get_outputs()]
    runs = [dict(zip(names, session.run(names, dict(batch)), strict=True)) for batch in batches]
    if _tags_tokens(model):
        masks = [batch["attention_mask"].astype(bool) for batch in batches]
        runs = [at_tokens(run, mask) for run, mask in zip(runs, masks, strict=True)]
    return {name: np.concatenate([run[name] for run in runs]) for name in names}
