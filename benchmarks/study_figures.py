"""Metrics of rows from cached outputs: quality, detection, flags and intervals; also latency and cost.

The temperature equals that of ``hydrant calibrate``, and the metrics those of ``hydrant evaluate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from hydrant.calib.decisions.temperature import fit_temperature
from hydrant.calib.decisions.thresholds import false_alarm_threshold
from hydrant.data.examples import Examples
from hydrant.evaluation import estimate_cost
from hydrant.evaluation.profile_targets import SequentialBackends
from hydrant.export import GraphForm
from hydrant.export.random_model import PLAIN
from hydrant.fusion import load_ensemble
from hydrant.metrics.bootstrap import interval, resampled, whole
from hydrant.metrics.class_metrics import ClassMetrics, ScoreDetection, SelectiveMetrics
from hydrant.metrics.timing import Ratio, Rules, interleave
from hydrant.metrics.uncertainty import energy, summarise
from hydrant.runtime.backends.backend_registry import open_backend
from hydrant.runtime.backends.protocol import Backend
from study import Data, Outputs

FALSE_ALARM = 0.05  # Allowed share of flagged in-distribution inputs

Scores = dict[str, np.ndarray]


def scores_of(outputs: Outputs, split: str, temperature: float) -> tuple[np.ndarray, Scores]:
    """Averaged probabilities [N, C], and uncertainty scores [N] (higher is less certain)."""
    logits = outputs.logits[split]
    summary = summarise(logits, temperature)
    scores = {"max_probability": -summary["confidence"], "predictive_entropy": summary["predictive_entropy"]}
    if logits.shape[1] > 1:
        scores["mutual_information"] = summary["mutual_information"]
    scores["energy"] = energy(logits)
    return summary["probabilities"], scores | {f"distance_{name}": at[split] for name, at in outputs.distances.items()}


def statistic_of(outputs: Outputs, data: Data, temperature: float) -> Callable[..., dict[str, np.ndarray]]:
    """Function from resamples of the test splits to metrics, at a temperature."""
    probabilities, id_scores = scores_of(outputs, "test", temperature)
    _, ood_scores = scores_of(outputs, "ood_test", temperature)
    means = ClassMetrics(probabilities, labels_of(data.test))
    selective = SelectiveMetrics(means.confidence, means.correct)
    detection = ScoreDetection(id_scores, ood_scores, ~means.correct)
    return lambda counts, ood: {**means(counts), **selective(counts), **detection(counts, ood)}


def measure(outputs: Outputs, data: Data, temperature: float) -> dict[str, float]:
    """Metrics of a row on the test splits, at a temperature."""
    return whole(statistic_of(outputs, data, temperature), [len(data.test), len(data.ood_test)])


def draws(outputs: Outputs, data: Data, temperature: float, resamples: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Metrics on bootstrap resamples, name → [R]; equal seeds draw equal resamples for every row."""
    return resampled(statistic_of(outputs, data, temperature), [len(data.test), len(data.ood_test)], resamples, seed)


def temperature_of(outputs: Outputs, data: Data) -> float:
    """Temperature fitted on the validation split, as in ``hydrant calibrate``."""
    return fit_temperature(outputs.logits["validation"], labels_of(data.validation))


def flagged(outputs: Outputs, temperature: float) -> dict[str, dict[str, float]]:
    """Score → shares of test and OOD inputs above the threshold for :data:`FALSE_ALARM`."""
    validation, test, ood = (scores_of(outputs, split, temperature)[1] for split in ("validation", "test", "ood_test"))
    shares = {}
    for name, values in validation.items():
        limit = false_alarm_threshold(values.astype(np.float32), FALSE_ALARM, math.inf)
        shares[name] = {"test": float((test[name] > limit).mean()), "ood": float((ood[name] > limit).mean())}
    return shares


def labels_of(examples: Examples) -> np.ndarray:
    assert examples.labels is not None
    return np.asarray(examples.labels)


def difference(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], name: str) -> dict[str, float]:
    """95 % interval of the difference of a figure, on the same draws."""
    low, high = interval(ours[name] - theirs[name])
    return {"low": low, "high": high}


def latencies(
    rows: Mapping[str, Path],
    examples: Examples,
    batches: Sequence[int],
    rules: Rules,
    reference: str | None = None,
    passes: Mapping[str, int] | None = None,
) -> dict[str, dict[str, Any]]:
    """Time ÷ the plain single model's, for interleaved ONNX Runtime FP32 graphs: row → batch → ratio.

    Additional rows: ``"plain single"`` is the graph without exact rewrites; ``"…, one by one"`` runs it once for each
    checkpoint of the ``reference`` row; rows of ``passes`` run it repeatedly (MC dropout without drawing masks).
    """
    ratios: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        opened = dict(_opened(rows, reference, passes or {}, stack))
        names = list(opened)
        for size in batches:
            batch = middle_batch(rows["single"], examples, size)
            seconds = interleave([partial(backend.run, batch) for backend in opened.values()], rules)
            baseline = seconds[:, names.index("plain single")]
            for name, taken in zip(names, seconds.T, strict=True):
                milliseconds = float(np.median(taken)) * 1e3
                ratios.setdefault(name, {})[str(size)] = {
                    **vars(Ratio.of(taken, baseline)),
                    "milliseconds": milliseconds,
                }
    return ratios


def _opened(
    rows: Mapping[str, Path], reference: str | None, passes: Mapping[str, int], stack: ExitStack
) -> Iterator[tuple[str, Backend]]:
    def opened(path: Path, without: Sequence[str] = ()) -> Backend:
        if not (path / "model.fp32.onnx").is_file():
            hydrant.export_onnx(path, form=GraphForm(without=without))
        return stack.enter_context(open_backend(hydrant.Bundle.open(path), "onnxruntime")[0])

    for name, path in rows.items():
        yield name, opened(path)
    plain = plain_copy(rows["single"])
    single = opened(plain, without=PLAIN)
    yield "plain single", single
    for name, count in passes.items():
        yield name, SequentialBackends([single] * count)
    if reference is not None:
        copies = [opened(plain, without=PLAIN) for _ in hydrant.Bundle.open(rows[reference]).plan().members]
        yield f"{reference}, one by one", SequentialBackends(copies)


def plain_copy(bundle: Path) -> Path:
    """Second bundle of the same model, for a graph without exact rewrites."""
    copy = bundle.with_name(f"{bundle.name}-plain")
    if not copy.is_dir():
        hydrant.save_bundle(load_ensemble(bundle), copy, tensors_only=True)
    return copy


def middle_batch(bundle: Path, examples: Examples, size: int) -> dict[str, np.ndarray]:
    """Tensors of the inputs of median length among the first 500."""
    opened = hydrant.Bundle.open(bundle)
    processor = opened.processor_for("read the study's data")
    encoded = sorted(processor.encode(examples.inputs[:500]), key=lambda item: item.tokens)
    middle = max(0, len(encoded) - size) // 2
    return processor.collate(encoded[middle : middle + size])


def cost(bundle: Path, tokens: int | None) -> dict[str, float]:
    """Operations and parameters of the FP32 graph ÷ the plain single model's (``hydrant.estimate_cost``)."""
    estimate = estimate_cost(bundle, sequence=tokens)
    return {
        "operations": estimate.fused.flops / estimate.single.flops,
        "parameters": estimate.fused.parameters / estimate.single.parameters,
    }


def mean_tokens(bundle: Path, examples: Examples) -> int | None:
    """Mean length of texts in tokens, rounded up; ``None`` for images."""
    opened = hydrant.Bundle.open(bundle)
    if opened.architecture().modality == "image":
        return None
    lengths = [item.tokens for item in opened.processor_for("read the study's data").encode(examples.inputs)]
    return math.ceil(float(np.mean(lengths)))
