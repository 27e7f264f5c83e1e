"""How long the models under evaluation take, all on one backend: times on different ones tell nothing of the models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..bundle.precision import Precision
from ..bundle.store import Bundle
from ..bundle.traced import Traced
from ..engines.metadata import LIBRARIES
from ..errors import HydrantError
from ..metrics.timing import Rules, interleave
from ..progress import Progress
from ..runtime.backends.protocol import Backend
from ..runtime.backends.registry import open_backend
from .models import Model
from .report import ModelReport

RULES = Rules(seconds=0.0, iterations=20)


@dataclass(frozen=True)
class Timing:
    """Times of one batch on one backend.

    Attributes:
        milliseconds: median of each model; empty where no backend runs all of them.
        ran_on: backend and precision of each.
        note: why there are none, or what was timed; ``None`` where the models were timed as they were evaluated.
    """

    milliseconds: list[float]
    ran_on: list[str]
    note: str | None = None

    def told(self, reports: Sequence[ModelReport]) -> list[ModelReport]:
        """The models' reports with their times, where there are any."""
        if not self.milliseconds:
            return list(reports)
        return [
            replace(report, latency_ms=taken, latency_on=place)
            for report, taken, place in zip(reports, self.milliseconds, self.ran_on, strict=True)
        ]


def time_models(models: Sequence[Model], inputs: Sequence[Any], progress: Progress) -> Timing:
    """Run every model on the same inputs as one batch, ready as tensors, in turn.

    Checkpoints are evaluated in PyTorch. Beside bundles on another backend they are timed there, as the plain graphs
    that any exporter would write.
    """
    names = list(dict.fromkeys(model.runs.name for model in models if model.as_bundle is None))
    if len(names) > 1:
        return Timing([], [], f"no latencies: the bundles run on {' and '.join(names)}; choose one with --backend")
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hydrant.")))
        try:
            backends = [
                model.runs if model.runs.name == names[0] else _exported(model, models[0].runs, folder, opened)
                for model in models
            ]
        except HydrantError as error:
            return Timing([], [], f"no latencies: a checkpoint cannot be timed on {names[0]}: {error}")
        batches = [model.processor.collate(model.processor.encode(inputs)) for model in models]
        runs = [partial(backend.run, batch) for backend, batch in zip(backends, batches, strict=True)]
        seconds = interleave(runs, RULES, progress=progress, title="timing")
    exported = [model.name for model, backend in zip(models, backends, strict=True) if backend is not model.runs]
    note = f"timed on {names[0]}; {', '.join(exported)} as plain exported graphs, evaluated in PyTorch"
    return Timing(
        [1e3 * float(np.median(column)) for column in seconds.T],
        [f"{backend.name} {backend.precision}" for backend in backends],
        note if exported else None,
    )


def _exported(model: Model, beside: Backend, folder: Path, opened: ExitStack) -> Backend:
    """A checkpoint on the backend and in the precision of a bundle; in float32 beside INT8, which needs calibration."""
    from ..export import export
    from ..export.graph_form import GraphForm
    from ..export.random_model import PLAIN

    if beside.name in LIBRARIES:
        raise HydrantError("it has no engine; fuse it into a bundle of one member, build one, and compare with that")
    assert model.as_bundle is not None  # only checkpoints come here
    precision = cast(Precision, "fp32" if beside.precision == "int8" else beside.precision)
    path = Path(tempfile.mkdtemp(dir=folder)) / "bundle"
    form = GraphForm(without=() if isinstance(model.architecture, Traced) else PLAIN)
    model.as_bundle(path)
    export(path, "fp32" if beside.name == "openvino" else precision, form)
    return opened.enter_context(open_backend(Bundle.open(path), beside.name, precision=precision)[0])
