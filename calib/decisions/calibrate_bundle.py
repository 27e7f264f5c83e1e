"""Calibration of a bundle: runs the PyTorch reference on labelled data, and writes the result into every graph."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...bundle.calibration import Calibration
from ...bundle.data_overlap import FITTED, LEARNT, overlaps
from ...bundle.density_file import Density
from ...bundle.staging import stage_in
from ...bundle.store import CALIBRATION, DENSITY, WEIGHTS, Bundle, resolve
from ...bundle.strict_json import to_json_bytes
from ...data.data_options import DataOptions
from ...data.examples import Examples, check_apart, check_folder, read_examples
from ...data.fingerprints import fingerprints
from ...errors import InputError, check_seed, require
from ...metrics.uncertainty import summarise
from ...progress import Progress, no_progress
from ...runtime.collect import WordOutputs
from ..features import (
    Distances,
    Reduced,
    Reference,
    against_training,
    candidates,
    check_options,
    settled,
    squared_of,
    unseen_classes,
)
from ..taps import DistanceForm
from .fit import FITS, Request, Sample, predicted_spans
from .targets import Conformal, Coverage, FalseAlarm, Risk, Targets


@dataclass(frozen=True)
class CalibrationReport:
    """Result of ``calibrate``.

    Attributes:
        calibration: content of ``calibration.json``.
        graphs: names of the updated graphs.
        outdated: names of engines built from earlier versions of these graphs.
        notes: warnings about the data, such as that the bundle was tuned on them.
        density: the bundle's distance, new or existing; ``None`` without one.
    """

    calibration: Calibration
    graphs: list[str]
    outdated: list[str]
    notes: list[str] = field(default_factory=list)
    density: Density | None = None

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object: ``calibration.json``, and the updated graphs and outdated engines."""
        files = {"graphs": self.graphs, "outdated_engines": self.outdated}
        distance = None if self.density is None else self.density.to_json()
        return {**self.calibration.to_json(), **files, "notes": self.notes, "distance": distance}


def calibrate(
    bundle: Bundle | str | Path,
    data: Any,
    ood: Any = None,
    *,
    fit: Any = None,
    taps: str | Sequence[int] = "auto",
    rank: int | None = None,
    distance_form: DistanceForm = "length",
    abstain: Coverage | Risk = Coverage(),
    flags: FalseAlarm = FalseAlarm(),
    sets: Conformal | None = None,
    confidence: float | None = None,
    label_false_alarm: float | None = None,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    force: bool = False,
    progress: Progress = no_progress,
) -> CalibrationReport:
    """Fit temperature (or intervals), thresholds and the distance, and write them into the bundle and its graphs.

    ``abstain`` uses the confidence, unless another score ranks wrong answers clearly better. ``flags`` uses the score
    that detects OOD inputs best. Scores come from the float32 PyTorch reference; graphs of lower precision agree with
    it within their gates. All files change together or not at all. Engines contain the earlier graph: rebuild them.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        data: labelled held-out data: .csv, .jsonl, .parquet, .npz, an image folder, hf:NAME or a URL. Also .tsv; a
            Hugging Face data set is ``hf:NAME:CONFIG:SPLIT``. In Python also what ``data.examples.read_examples``
            takes.
        ood: OOD data (labels are ignored), used to choose the OOD score and the taps.
        fit: labelled training data for the distance; without it the bundle keeps its distance.
        taps: features of the distance: auto, last, all, balanced, means, or layers 1,3. ``last`` is each member's last
            vector; ``all`` adds every layer of the shared trunk, equally weighted; ``balanced`` weighs the members'
            vectors as much as the whole trunk; ``means``, for texts, adds the mean of every second layer. ``auto``
            takes the best of these on OOD data; without OOD data it takes ``means`` for texts, ``last`` for images and
            tags. Taps in the trunk also flag noise that the model tolerates, such as typing errors: take ``last`` if
            noisy inputs should be answered.
        rank: dimensions that each vector is reduced to (default: chosen from width and classes). The default is the
            model's width; if the trunk of a text model is read and 50 classes or more have training examples, it is one
            fewer than these classes, at most 64. Fewer dimensions are cheaper and flag less noise: those that separate
            the classes best, and random ones for the rest, if classes are few and in the members' last vectors.
        distance_form: standardization of the distance: length or constant. ``length``, for texts, fits location and
            scale of each tap as lines in 1/n for n tokens, since short texts vary more; it also gives each text a
            length deviation. ``constant``, and always images, tags and fewer than 100 texts, has one pair for all.
        abstain: when to abstain: ``Coverage(0.95)`` or ``Risk(0.02)``. Of a model that tags tokens all thresholds are
            for spans.
        flags: rule of OOD flags: ``FalseAlarm(0.05)``.
        sets: prediction sets: ``Conformal(0.1)``, or none.
        confidence: share of labels inside a regression's intervals (default: 0.9).
        label_false_alarm: for multi-label: largest false-alarm rate of a label (default: each label's best F1).
        reading: columns, number (all) and batch size of the examples; the number is of ``data`` alone.
        seed: of the draw.
        force: allow data that the bundle was tuned on or its distance is fitted on.
        progress: display.

    Raises:
        InputError: data or options are unusable, the bundle was tuned on the data, or examples are too few.
        BackendError: outputs of the model are not finite.
        MissingExtraError: torch or onnx is not installed.
        BundleError: the bundle is missing, altered or malformed, a graph cannot be calibrated, or an engine cannot be
            read.
    """
    for module in ("torch", "onnx"):
        require(module, "fuse", "calibrate a bundle")
    from ...engines.metadata import engine_names, graph_digest, read_metadata
    from ...export.exporter import check_graphs

    targets = Targets(abstain, flags, sets, confidence, label_false_alarm)
    check_seed(seed)
    check_apart(data, ood)
    bundle = resolve(bundle)
    architecture = bundle.any_architecture()
    task = architecture.task
    check_options(fit, taps, rank, distance_form, architecture.width)
    FITS[task].check(task, targets)
    bundle.check_addable(CALIBRATION)
    graphs = check_graphs(bundle)  # before the long work
    engines = {name: read_metadata(bundle, name) for name in engine_names(bundle)}
    for source in (data, ood, fit):
        check_folder(source, architecture.modality)
    examples = read_examples(data, bundle.labels, columns=reading, limit=reading.limit(), seed=seed, task=task)
    assert examples.labels is not None  # read_examples requires them
    FITS[task].check_labels(examples.labels, architecture.score_activation, examples.source)
    ood = None if ood is None else read_examples(ood, None, columns=reading)
    training = None if fit is None else read_examples(fit, bundle.labels, columns=reading, task=task)
    steps, sources = ["calibrated"] + [FITTED] * (training is not None), {"data": examples, "ood": ood}
    notes = unseen_classes(bundle, training)
    notes += overlaps(bundle, "calibrating", sources, steps, () if force else LEARNT)
    notes += against_training(bundle, examples, training, force)
    reference = Reference(bundle, reading.batch_size, progress)
    distances = candidates(bundle, reference, training, taps, rank, choice=ood is not None)
    samples = partial(_word_samples, bundle.labels) if architecture.every_token else partial(_samples, distance_form)
    sample, ood_sample, density = samples(reference, examples, ood, distances)
    about = {"data": examples.name, "examples": len(examples), "ood": None if ood is None else ood.name}
    about |= {"ood_examples": None if ood is None else len(ood), "seed": seed}
    about |= fingerprints(architecture.modality, data=examples, ood=ood)
    request = Request(targets, bundle.labels, about, architecture.score_activation)
    fitted = FITS[task].fit(sample, ood_sample, request)
    notes += FITS[task].notes(sample, request, fitted)
    changed = _changed(bundle, graphs, fitted, density, new=training is not None)
    outdated = [name for name, facts in engines.items() if graph_digest(changed, facts.onnx) != facts.onnx_sha256]
    return CalibrationReport(fitted, graphs, outdated, notes, density)


def _samples(
    form: DistanceForm, reference: Reference, examples: Examples, ood: Examples | None, distances: Distances
) -> tuple[Sample, Sample | None, Density | None]:
    """Outputs of the reference with their distances, and the chosen distance."""
    logits, squared = reference.run(examples, distances)
    ood_logits, ood_squared = (None, None) if ood is None else reference.run(ood, distances)
    density, id_distance, ood_distance = settled(distances, squared, ood_squared, form)
    ood_sample = None if ood_logits is None else Sample(ood_logits, distance=ood_distance)
    return Sample(logits, examples.labels, id_distance), ood_sample, density


def _word_samples(
    names: Sequence[str], reference: Reference, examples: Examples, ood: Examples | None, distances: Distances
) -> tuple[Sample, Sample | None, Density | None]:
    """Outputs for tagged words, and for all words of OOD texts, as in :func:`_samples`."""
    assert examples.labels is not None  # read_examples requires them
    words, labels = reference.words(examples, distances).tagged(examples.labels)
    if not len(labels):
        raise InputError(f"no token of {examples.source} within the model's maximum length has a tag; give more data")
    ood_words = None if ood is None else reference.words(ood, distances)
    ood_squared = of_spans = None
    if ood_words is not None:
        ood_squared = squared_of(distances, ood_words.outputs)
        if len(distances) > 1:  # the spans choose one
            of_spans = _largest(words, names), _largest(ood_words, names)
    squared = squared_of(distances, words.outputs)
    density, id_distance, ood_distance = settled(distances, squared, ood_squared, "constant", of_spans)
    ood_sample = None if ood_words is None else Sample(ood_words.outputs["logits"], None, ood_distance, ood_words.texts)
    return Sample(words.outputs["logits"], labels, id_distance, words.texts, len(examples)), ood_sample, density


def _largest(words: WordOutputs, names: Sequence[str]) -> Reduced:
    """Function from distances of words to the largest distance of each predicted span."""
    scores = summarise(words.outputs["logits"], 1.0)
    return lambda distance: predicted_spans({**scores, "distance": distance}, words.texts, names)[1]["distance"]


def _changed(
    bundle: Bundle, graphs: Sequence[str], calibration: Calibration, density: Density | None, *, new: bool
) -> Bundle:
    """The bundle after an atomic replacement of calibration, distance and graphs."""
    from ...export.exporter import GRAPHS, write_recalibrated

    with stage_in(bundle.path) as folder:
        files: dict[str, bytes | Path] = {CALIBRATION: to_json_bytes(calibration.to_json())}
        digest = bundle.digests().get(DENSITY)
        if new and density is not None:
            content = density.to_bytes(bundle.digests()[WEIGHTS])
            files[DENSITY], digest = content, hashlib.sha256(content).hexdigest()
        architecture = bundle.any_architecture()
        for name in graphs:
            files[name] = folder / name
            write_recalibrated(bundle.file(name), folder / name, calibration, architecture, density, digest)
        return bundle.add(files, unchanged=[CALIBRATION, DENSITY, WEIGHTS, *GRAPHS])
