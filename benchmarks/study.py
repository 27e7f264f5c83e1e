"""What the studies share: bundles made once, calibrated alike, measured on the same data, and one table of them.

Every competitor is a hydrant bundle: planned, fused, tuned, calibrated, evaluated and exported by the package's own
verbs. Whatever takes long is kept in a working folder with how it was made (``training.cached``), so that an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from hydrant.bundle import ARCHITECTURE
from hydrant.calib.data import Examples
from hydrant.evaluation.report import ModelReport
from hydrant.export.baselines import PLAIN
from hydrant.families import Architecture
from hydrant.families.processing import load_processor
from hydrant.runtime.backend import Backend, open_backend
from hydrant.runtime.subjects import Succession
from hydrant.runtime.timing import Ratio, Rules, interleave
from training import cached

REFERENCE = "Deep Ensemble"
"""The row that the others are compared with, on the same bootstrap draws."""

PACKAGES = ("torch", "transformers", "onnxruntime", "numpy", "peft")


@dataclass(frozen=True)
class Data:
    """The splits: ``validation`` and ``ood_validation`` choose and calibrate, the test splits only report."""

    train: Examples
    validation: Examples
    ood_validation: Examples
    test: Examples
    ood_test: Examples

    def sizes(self) -> dict[str, int]:
        return {name: len(examples) for name, examples in vars(self).items()}


class Bundles:
    """Makes the bundles of a study, each once, in ``work``."""

    def __init__(self, work: Path, data: Data, processor: Any) -> None:
        self.work, self.data, self.processor = work, data, processor

    def joined(self, name: str, checkpoints: Sequence[Path]) -> Path:
        """The checkpoint as it is, or an exact Deep Ensemble of several."""
        separate = ["all"] if len(checkpoints) > 1 else []

        def make(folder: Path) -> dict[str, Any]:
            models = checkpoints if separate else checkpoints[0]
            return self._save(hydrant.fuse(models, keep_separate=separate), folder)

        return self._kept(name, {"checkpoints": list(map(trained, checkpoints))}, make)

    def adapted(self, name: str, base: Path, adapters: Sequence[Path]) -> Path:
        """A LoRA-Ensemble: PEFT adapters of one base model."""

        def make(folder: Path) -> dict[str, Any]:
            return self._save(hydrant.fuse(base, adapters=list(adapters)), folder)

        return self._kept(name, {"adapters": list(map(trained, adapters))}, make)

    def pruned(self, name: str, checkpoint: Path, data: str, ood: str | None = None, **settings: Any) -> Path:
        """Post hoc: the members are prunings of one checkpoint, planned on the splits named."""

        def make(folder: Path) -> dict[str, Any]:
            splits = {"data": getattr(self.data, data), **({"ood": getattr(self.data, ood)} if ood else {})}
            plan = hydrant.plan_heads(checkpoint, processor=self.processor, **splits, **settings)
            return self._save(hydrant.fuse(checkpoint, plan), folder) | {"overlap": plan.overlap()["mean"]}

        recipe = {"checkpoint": trained(checkpoint), "data": data, "ood": ood, "plan": settings}
        return self._kept(name, recipe, make)

    def tuned(self, name: str, source: Path, **settings: Any) -> Path:
        """All members of a bundle fine-tuned jointly on the training split."""

        def make(folder: Path) -> dict[str, Any]:
            report = hydrant.tune(
                source, self.data.train, validation=self.data.validation, output=folder / name, **settings
            )
            return {"report": json.loads(json.dumps(report.to_json(), default=str))}

        return self._kept(name, {"source": made_by(source), "tune": settings}, make)

    def calibrated(self, source: Path) -> Path:
        """A copy with a temperature fitted on the validation splits."""

        def make(folder: Path) -> dict[str, Any]:
            copy = folder / source.name
            shutil.copytree(source, copy)
            report = hydrant.calibrate(copy, self.data.validation, self.data.ood_validation)
            return {"temperature": report.calibration.temperature}

        return self._kept(source.name, {"source": made_by(source), "calibrate": "temperature"}, make, "calibrated")

    def _save(self, ensemble: Any, folder: Path) -> dict[str, Any]:
        hydrant.save_bundle(ensemble, folder / folder.name.removesuffix(".partial"), self.processor)
        return {}

    def _kept(self, name: str, recipe: dict[str, Any], make: Any, kind: str = "bundles") -> Path:
        return cached(self.work / kind / name, {"name": name, **recipe}, make) / name


def trained(checkpoint: Path) -> dict[str, Any]:
    """How a checkpoint was trained, or its name where the study did not train it."""
    note = checkpoint / "recipe.json"
    return json.loads(note.read_text())["recipe"] if note.is_file() else {"checkpoint": checkpoint.name}


def made_by(bundle: Path) -> dict[str, Any]:
    """How a bundle was made."""
    return json.loads((bundle.parent / "recipe.json").read_text())["recipe"]


def slug(name: str) -> str:
    """A row's name as that of a folder."""
    return name.lower().replace(",", "").replace("+", "and").replace(" ", "-")


def evaluated(bundles: Mapping[str, Path], data: Data, resamples: int) -> dict[str, ModelReport]:
    """Figures of every row on the test splits, all resampled by the same draws.

    A row's ``differences`` are the reference's figures minus its own.
    """
    names = [REFERENCE, *(name for name in bundles if name != REFERENCE)]
    first, *others = (bundles[name] for name in names)
    report = hydrant.evaluate(first, data.test, data.ood_test, compare=others, bootstrap=resamples)
    return dict(zip(names, report.models, strict=True))


def latencies(bundles: Mapping[str, Path], data: Data, batches: Sequence[int], rules: Rules) -> dict[str, Any]:
    """Time ÷ that of the plain single model, ONNX Runtime FP32 graphs in turn in one process; row → batch → ratio.

    ``"single"`` is the graph that any exporter would write, without exact rewrites; the row ``"single, rewritten"``
    has them, and ``"Deep Ensemble, one by one"`` runs three single models.
    """
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        opened = dict(_opened(bundles, stack))
        names = list(opened)
        for size in batches:
            batch = _batch(bundles["single"], data.test, size)
            runs = [lambda backend=backend: backend.run(batch) for backend in opened.values()]
            seconds = interleave(runs, rules)
            baseline = seconds[:, names.index("single")]
            for name, taken in zip(names, seconds.T, strict=True):
                ratio = Ratio.of(taken, baseline)
                milliseconds = float(np.median(taken)) * 1e3
                found.setdefault(name, {})[str(size)] = {**vars(ratio), "milliseconds": milliseconds}
    return found


def _opened(bundles: Mapping[str, Path], stack: ExitStack) -> Iterator[tuple[str, Backend]]:
    for name, path in bundles.items():
        if not (path / "model.fp32.onnx").is_file():
            hydrant.export_onnx(path)
        backend, _ = open_backend(hydrant.Bundle.open(path), "onnxruntime")
        stack.callback(backend.close)
        yield ("single, rewritten" if name == "single" else name), backend
    plain = bundles["single"].with_name("single-plain")
    if not plain.is_dir():
        shutil.copytree(bundles["single"], plain)
        hydrant.export_onnx(plain, without=PLAIN)
    members = hydrant.Bundle.open(bundles[REFERENCE]).plan().members
    copies = [open_backend(hydrant.Bundle.open(plain), "onnxruntime")[0] for _ in members]
    for copy in copies:
        stack.callback(copy.close)
    yield "single", copies[0]
    yield f"{REFERENCE}, one by one", Succession(copies)


def _batch(bundle: Path, examples: Examples, size: int) -> dict[str, np.ndarray]:
    """Tensors of the test inputs of median length (of images: of any)."""
    opened = hydrant.Bundle.open(bundle)
    processor = load_processor(opened.processor(), Architecture.from_json(opened.read_json(ARCHITECTURE)))
    encoded = sorted(processor.encode(examples.inputs[:500]), key=lambda item: item.tokens)
    middle = (len(encoded) - size) // 2
    return processor.collate(encoded[middle : middle + size])


def parameters(bundle: Path) -> dict[str, float]:
    """Parameters of a bundle, and ÷ those of the single model."""
    cost = hydrant.estimate_cost(bundle)
    return {"parameters": cost.fused.parameters, "ratio": cost.fused.parameters / cost.single.parameters}


def results(plain: Mapping[str, Path], bundles: Bundles, resamples: int) -> list[dict[str, Any]]:
    """Every row's figures before and after calibration.

    Args:
        plain: row → bundle, not calibrated; holds ``"single"`` and the reference.
        bundles: with the data.
        resamples: of the bootstrap.
    """
    before = evaluated(plain, bundles.data, resamples)
    after = evaluated({name: bundles.calibrated(path) for name, path in plain.items()}, bundles.data, resamples)
    return [
        {
            "name": name,
            "members": after[name].members,
            "temperature": after[name].temperature,
            "overlap": after[name].diversity.get("overlap"),
            "disagreement": after[name].diversity.get("disagreement"),
            **parameters(path),
            "made": made_by(path),
            "before": _figures(before[name]),
            "after": _figures(after[name]),
        }
        for name, path in plain.items()
    ]


def _figures(report: ModelReport) -> dict[str, Any]:
    """Figures and differences (this row − the reference) as JSON."""
    figures = {name: figure.to_json() for name, figure in report.figures.items() if not name.startswith("errors.")}
    for name, figure in report.differences.items():
        if name in figures:
            turned = {"value": -figure.value, "low": -figure.high, "high": -figure.low}
            figures[name]["minus_reference"] = turned
    return figures


def about(command: str, data: Data) -> dict[str, Any]:
    """What ran: command, machine, versions, sizes."""
    return {
        "command": command,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {"hydrant": hydrant.__version__, **{name: version(name) for name in PACKAGES}},
        "sizes": data.sizes(),
    }
