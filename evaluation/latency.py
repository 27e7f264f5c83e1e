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
from .dropout import KIND
from .report import ModelReport

RULES = Rules(seconds=0.0, iterations=20)


def time_models(
    models: Sequence[Model], reports: Sequence[ModelReport], inputs: Sequence[Any], progress: Progress
) -> tuple[list[ModelReport], str | None]:
    """Add latencies of one batch on the backend that ships, interleaved, to the reports; return a note."""
    remarks: list[str] = []
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hydrant.")))
        ours = models[0].runs
        try:
            ours = _in_bundle(models[0], "onnxruntime", opened) if ours.name == "torch" else ours
        except HydrantError as error:
            remarks.append(f"timed in PyTorch: {error}")
        timed = {0: ours}
        for place, model in enumerate(models[1:], start=1):
            try:
                timed[place] = _opened(model, ours, folder, opened)
            except HydrantError as error:
                remarks.append(f"{model.name} was not timed: {error}")
        runs = []
        for place, backend in timed.items():
            processor = models[place].processor
            runs.append(partial(backend.run, processor.collate(processor.encode(inputs))))
        medians = np.median(interleave(runs, RULES, progress=progress, title="timing"), axis=0)
    results = [*reports]
    for (place, backend), seconds in zip(timed.items(), medians, strict=True):
        facts = 1e3 * float(seconds), f"{backend.name} {backend.precision}"
        results[place] = replace(reports[place], latency_ms=facts[0], latency_on=facts[1])
    return results, "; ".join(remarks) or None


def _in_bundle(model: Model, name: str, opened: ExitStack) -> Backend:
    """Open a bundle on a backend."""
    assert model.bundle is not None
    return opened.enter_context(open_backend(model.bundle, name)[0])


def _opened(model: Model, beside: Backend, folder: Path, opened: ExitStack) -> Backend:
    """Open a competitor on a bundle's backend; a checkpoint is exported in its precision, for INT8 in float32."""
    from ..export import export
    from ..export.graph_form import GraphForm
    from ..export.random_model import PLAIN

    if model.runs.name == beside.name:
        return model.runs
    if model.bundle is not None:
        return _in_bundle(model, beside.name, opened)
    if model.as_bundle is None:
        raise HydrantError(f"{'MC dropout' if model.kind == KIND else 'a Deep Ensemble'} has no graph")
    if beside.name in LIBRARIES:
        raise HydrantError("it has no engine; fuse it into a bundle of one member, build an engine, compare with it")
    precision = cast(Precision, "fp32" if beside.precision == "int8" else beside.precision)
    path = Path(tempfile.mkdtemp(dir=folder)) / "bundle"
    plain = model.kind == "checkpoint" and model.architecture.is_declared
    model.as_bundle(path)
    export(path, "fp32" if beside.name == "openvino" else precision, GraphForm(without=PLAIN if plain else ()))
    return opened.enter_context(open_backend(Bundle.open(path), beside.name, precision=precision)[0])
