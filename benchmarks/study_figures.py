"""Bundles → figures: member logits once for each split, then quality, detection and intervals before and after T.

Logits come from the PyTorch reference. The temperature is what ``hydrant calibrate`` fits and the figures are those
of ``hydrant evaluate``; from kept logits both are had without running a model again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hydrant
import numpy as np
from hydrant.data.examples import Examples
from hydrant.export.random_model import PLAIN
from hydrant.measure.subjects import Succession
from hydrant.metrics.bootstrap import interval, resampled
from hydrant.metrics.figures import Answers, figures
from hydrant.metrics.resampled import WeightedFigures
from hydrant.metrics.timing import Ratio, Rules, interleave
from hydrant.metrics.uncertainty import energy, summarise
from hydrant.runtime.backends.protocol import Backend
from hydrant.runtime.backends.registry import open_backend
from hydrant.runtime.collect import collect

Figures = dict[str, Any]
Value = TypeVar("Value")


def member_logits(bundle: Path, examples: Examples) -> np.ndarray:
    """[N, M, C] before any temperature, in the order of the examples."""
    opened = hydrant.Bundle.open(bundle)
    architecture, processor = opened.architecture(), opened.processor_for("read the study's data")
    with open_backend(opened, "torch")[0] as backend:
        found = collect(backend, processor, architecture, examples.inputs, lambda out: {"logits": out["member_logits"]})
    return found["logits"]


def scores_of(logits: np.ndarray, temperature: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Averaged probabilities [N, C], and the uncertainty scores [N], of which higher means less certain."""
    found = summarise(logits, temperature)
    named = {name: found[name] for name in ("predictive_entropy", "mutual_information")}
    return found["probabilities"], {"max_probability": -found["confidence"], **named, "energy": energy(logits)}


def measure(
    known: np.ndarray, labels: np.ndarray, ood: np.ndarray, temperature: float, resamples: int, seed: int = 0
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Figures (``metrics.figures``) and those of bootstrap resamples, name → [R]; the same seed draws the same ones.

    Args:
        known: member logits [N, M, C] of labelled examples.
        labels: [N].
        ood: member logits [K, M, C] of out-of-distribution examples.
        temperature: T.
        resamples: R.
        seed: of the draws.
    """
    probabilities, inside = scores_of(known, temperature)
    _, outside = scores_of(ood, temperature)
    answers = Answers.of(probabilities, labels, inside)

    draws = resampled(WeightedFigures(answers, outside), [len(known), len(ood)], resamples, seed)
    return _wanted(figures(answers, outside)), _wanted(draws)


def _wanted(found: Mapping[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in found.items() if not name.startswith("errors.")}


def with_intervals(
    measured: Mapping[str, tuple[dict[str, float], dict[str, np.ndarray]]], reference: str
) -> dict[str, Figures]:
    """Row → figure → value, 95 % interval, and the same of its difference from the reference row on the same draws."""
    reference_values, reference_draws = measured[reference]
    found = {}
    for name, (values, draws) in measured.items():
        found[name] = {figure: _ranged(value, draws[figure]) for figure, value in values.items()}
        if name != reference:
            for figure, value in values.items():
                distances = draws[figure] - reference_draws[figure]
                found[name][figure]["minus_reference"] = _ranged(value - reference_values[figure], distances)
    return found


def _ranged(value: float, draws: np.ndarray) -> Figures:
    low, high = interval(draws)
    return {"value": value, "low": low, "high": high}


def latencies(
    bundles: Mapping[str, Path], reference: str, examples: Examples, batches: Sequence[int], rules: Rules
) -> dict[str, Figures]:
    """Time ÷ that of the plain single model: ONNX Runtime FP32 graphs in turn in one process; row → batch → ratio.

    ``"single"`` is the graph that any exporter would write; ``"single, rewritten"`` has the exact rewrites that every
    other row has too, and the reference "one by one" runs its members as plain single models.
    """
    found: dict[str, Figures] = {}
    with ExitStack() as stack:
        opened = dict(_opened(bundles, reference, stack))
        names = list(opened)
        for size in batches:
            batch = middle_batch(bundles["single"], examples, size)
            seconds = interleave([partial(backend.run, batch) for backend in opened.values()], rules)
            baseline = seconds[:, names.index("single")]
            for name, taken in zip(names, seconds.T, strict=True):
                milliseconds = float(np.median(taken)) * 1e3
                found.setdefault(name, {})[str(size)] = {
                    **vars(Ratio.of(taken, baseline)),
                    "milliseconds": milliseconds,
                }
    return found


def _opened(bundles: Mapping[str, Path], reference: str, stack: ExitStack) -> Iterator[tuple[str, Backend]]:
    def opened(path: Path, without: Sequence[str] = ()) -> Backend:
        if not (path / "model.fp32.onnx").is_file():
            hydrant.export_onnx(path, form=hydrant.GraphForm(without=without))
        return stack.enter_context(open_backend(hydrant.Bundle.open(path), "onnxruntime")[0])

    for name, path in bundles.items():
        yield ("single, rewritten" if name == "single" else name), opened(path)
    plain = plain_copy(bundles["single"])
    copies = [opened(plain, without=PLAIN) for _ in hydrant.Bundle.open(bundles[reference]).plan().members]
    yield "single", copies[0]
    yield f"{reference}, one by one", Succession(copies)


def plain_copy(bundle: Path) -> Path:
    """A second bundle of the same model, for a graph without exact rewrites."""
    copy = bundle.with_name(f"{bundle.name}-plain")
    if not copy.is_dir():
        hydrant.save_bundle(hydrant.load_ensemble(bundle), copy, tensors_only=True)
    return copy


def middle_batch(bundle: Path, examples: Examples, size: int) -> dict[str, np.ndarray]:
    """Tensors of those of the first 500 inputs that are of median length."""
    opened = hydrant.Bundle.open(bundle)
    processor = opened.processor_for("read the study's data")
    encoded = sorted(processor.encode(examples.inputs[:500]), key=lambda item: item.tokens)
    middle = max(0, len(encoded) - size) // 2
    return processor.collate(encoded[middle : middle + size])


def parameters(bundle: Path) -> dict[str, float]:
    """Numbers that a bundle's FP32 graph stores (``hydrant.estimate_cost``), and ÷ those of the plain single model."""
    cost = hydrant.estimate_cost(bundle)
    return {
        "parameters": cost.fused.parameters,
        "parameters_ratio": cost.fused.parameters / cost.single.parameters,
    }
