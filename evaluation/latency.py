"""Latency of the models under evaluation, all on one backend."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..bundle.store import Bundle
from ..engines.metadata import LIBRARIES
from ..errors import HydrantError
from ..metrics.gates import Precision
from ..metrics.timing import Rules, interleave
from ..progress import Progress
from ..runtime.backends.backend_registry import open_backend
from ..runtime.backends.protocol import Backend
from .competitors import Model
from .report import ModelReport

RULES = Rules(seconds=0.0, iterations=20)


def time_models(
    models: Sequence[Model], reports: Sequence[ModelReport], inputs: Sequence[Any], progress: Progress
) -> tuple[list[ModelReport], str | None]:
    """Add latencies of one batch, interleaved on the bundles' backend; return the reports and a note."""
    names = list(dict.fromkeys(model.runs.name for model in models if model.as_bundle is None))
    if len(names) > 1:
        return [*reports], f"no latencies: the bundles run on {' and '.join(names)}; choose one with --backend"
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hydrant.")))
        try:
            backends = [
                model.runs if model.runs.name == names[0] else _exported(model, models[0].runs, folder, opened)
                for model in models
            ]
        except HydrantError as error:
            return [*reports], f"no latencies: a checkpoint cannot be timed on {names[0]}: {error}"
        batches = [model.processor.collate(model.processor.encode(inputs)) for model in models]
        runs = [partial(backend.run, batch) for backend, batch in zip(backends, batches, strict=True)]
        medians = np.median(interleave(runs, RULES, progress=progress, title="timing"), axis=0)
    exported = [model.name for model, backend in zip(models, backends, strict=True) if backend is not model.runs]
    note = f"timed on {names[0]}; {', '.join(exported)} as plain exported graphs, evaluated in PyTorch"
    timed = [
        replace(report, latency_ms=1e3 * float(seconds), latency_on=f"{backend.name} {backend.precision}")
        for report, seconds, backend in zip(reports, medians, backends, strict=True)
    ]
    return timed, note if exported else None


def _exported(model: Model, beside: Backend, folder: Path, opened: ExitStack) -> Backend:
    """Export a checkpoint for a bundle's backend and precision; for INT8, in float32."""
    from ..export import export
    from ..export.graph_form import GraphForm
    from ..export.random_model import PLAIN

    if beside.name in LIBRARIES:
        raise HydrantError(
            "it has no engine; fuse it into a bundle of one member, build an engine, and compare with it"
        )
    assert model.as_bundle is not None  # only checkpoints come here
    precision = cast(Precision, "fp32" if beside.precision == "int8" else beside.precision)
    path = Path(tempfile.mkdtemp(dir=folder)) / "bundle"
    form = GraphForm(without=PLAIN if model.architecture.is_declared else ())
    model.as_bundle(path)
    export(path, "fp32" if beside.name == "openvino" else precision, form)
    return opened.enter_context(open_backend(Bundle.open(path), beside.name, precision=precision)[0])
