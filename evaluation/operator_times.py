"""Time of every operator inside a graph, from ONNX Runtime's own profiler."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.backends.ort import open_session

WARM_UP, RUNS = 3, 10
"""Runs before the record counts, and those that it counts."""

TOP = 10
"""Nodes shown by name."""


@dataclass(frozen=True)
class Part:
    """An operator type as ONNX Runtime runs it, or one node: calls, milliseconds per batch, and share of the time."""

    name: str
    operator: str
    count: float
    milliseconds: float
    share: float


@dataclass(frozen=True)
class Breakdown:
    """Time of the operators of one graph per batch, the slowest first; recording adds to each."""

    batch: int
    sequence: int
    milliseconds: float
    operators: list[Part]
    nodes: list[Part]


def break_down(
    graph: Path, pieces: int, inputs: Mapping[str, np.ndarray], sequence: int, threads: int | None
) -> Breakdown:
    """Run a graph in a session that records its operators."""
    size = len(next(iter(inputs.values())))
    first = {name: array[: -(-size // pieces)] for name, array in inputs.items()}
    with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
        session = open_session(graph, threads, Path(folder) / "trace")
        for _ in range(WARM_UP + RUNS):
            session.run(None, first)
        events = json.loads(Path(session.end_profiling()).read_bytes())
    operators, nodes = parts_of(events, WARM_UP, RUNS, pieces)
    return Breakdown(size, sequence, sum(part.milliseconds for part in operators), operators, nodes[:TOP])


def parts_of(
    events: Sequence[Mapping[str, Any]], warm_up: int, runs: int, pieces: int = 1
) -> tuple[list[Part], list[Part]]:
    """Operator types and nodes of a trace, the slowest first."""
    begin = sorted(event["ts"] for event in events if event["name"] == "model_run")[warm_up]
    nodes: dict[tuple[str, str], list[float]] = defaultdict(list)
    operators: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        if event["cat"] == "Node" and event["ts"] >= begin and "op_name" in event["args"]:
            operator = event["args"]["op_name"]
            nodes[event["name"].removesuffix("_kernel_time"), operator].append(event["dur"] / 1e3)
            operators[operator, operator].append(event["dur"] / 1e3)
    return _slowest(operators, runs / pieces), _slowest(nodes, runs / pieces)


def _slowest(times: Mapping[tuple[str, str], Sequence[float]], runs: float) -> list[Part]:
    total = sum(map(sum, times.values())) or 1.0
    parts = [
        Part(name, operator, len(durations) / runs, sum(durations) / runs, sum(durations) / total)
        for (name, operator), durations in times.items()
    ]
    return sorted(parts, key=lambda part: (-part.milliseconds, part.name))
