"""``hydrant.drift``: comparison of logged predictions with the calibration examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..bundle.calibration import RATES, Calibration, TrafficReference
from ..bundle.store import Bundle, resolve
from ..errors import InputError, listing
from ..progress import Progress, no_progress
from ..runtime.prediction_counts import WATCHED, observed_rows
from .drift_monitor import FIXED, LABELS, NAMES, Alarm, Watch
from .drift_statistics import rate_p_value
from .label_sample import LabelSample
from .prediction_log import Own, checked_rows, logged_rows


@dataclass(frozen=True)
class DriftReport:
    """Result of ``drift``.

    Attributes:
        inputs: number of predictions in the log.
        failed: number of failed inputs, which are not counted otherwise.
        calibrated: number of calibration examples.
        rates: rate of each decision at calibration and in the log, with its tests.
        histograms: for each score, and for ``"labels"``: stability index of the whole log and of the farthest window,
            and the bin or labels that grew most.
        windows: the last thousand windows, in order.
        alarms: the detected changes.
        alpha, psi, window: the options of the call.
        to_label: number of inputs written to the file to label; ``None`` without one.
    """

    inputs: int
    failed: int
    calibrated: int
    rates: Mapping[str, Mapping[str, Any]]
    histograms: Mapping[str, Mapping[str, Any]]
    windows: tuple[Mapping[str, Any], ...]
    alarms: tuple[Alarm, ...]
    alpha: float
    psi: float
    window: int
    to_label: int | None = None

    @property
    def passed(self) -> bool:
        """Return True without an alarm."""
        return not self.alarms

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        alarms = [alarm.to_json() for alarm in self.alarms]
        return {"passed": self.passed, **vars(self), "alarms": alarms, "windows": list(self.windows)}


def drift(
    bundle: Bundle | str | Path,
    log: str | Path | Iterable[Mapping[str, Any]],
    *,
    alpha: float = 0.01,
    psi: float = 0.1,
    window: int = 1000,
    to_label: str | Path | None = None,
    label_rows: int = 200,
    progress: Progress = no_progress,
) -> DriftReport:
    """Detect changes between logged predictions and a bundle's calibration examples.

    The rates of abstention and of out-of-distribution flags are tested after every input, and once over the whole log.
    Repeated tests do not add false alarms. The histograms of all scores and of the labels are compared window by
    window. ``monitoring.drift_statistics`` describes the statistics and their sources.

    Args:
        bundle: calibrated bundle folder. In Python also an open ``Bundle``.
        log: predictions in the order of the traffic: a .jsonl, .csv or .parquet file of `hydrant predict --output`. In
            Python also the rows themselves.
        alpha: largest probability of a false alarm while the traffic is unchanged.
        psi: smallest population stability index (PSI) that counts as drift. A score or the labels alarm if chance does
            not explain the change.
        window: number of inputs in each compared histogram.
        to_label: write inputs worth labelling to this .csv, .jsonl or .parquet file: half of them random, the others
            the most unlike the training data and the most uncertain. Fill in the column ``label``.
        label_rows: number of these inputs.
        progress: display.

    Raises:
        InputError: an option is out of range; the log is unreadable, from another model, or not a sample of the
            traffic; or the bundle has no reference.
        BundleError: the bundle is missing, altered or malformed.
    """
    bundle = resolve(bundle)
    reference = reference_of(bundle)
    watch = Watch(reference, alpha, psi, window)
    sample = None if to_label is None else LabelSample(bundle, to_label, label_rows)
    if isinstance(log, str | Path):
        rows, source = logged_rows(log), str(log)
    else:
        rows, source = ((row, f"row {at}") for at, row in enumerate(log, start=1)), "the log"
    rows = checked_rows(rows, Own.of(bundle))
    names: list[str] | None = None
    decided = [name for name in RATES if name in reference.rates]
    for chunk in progress(iter(lambda: list(islice(rows, window)), []), 0, "reading the log"):
        predictions, where = zip(*chunk, strict=True)
        if names is None:  # all texts so far have no span
            names = _names(predictions, reference, where)
        watch.add(observed_rows(predictions, decided if names is None else names, where))
        if sample is not None:
            sample.add(predictions)
    if not watch.total.inputs:
        raise InputError(f"{source} contains no predictions; expected rows written by `hydrant predict --output`")
    if watch.current.inputs >= window / 2 or not watch.windows:
        watch.close_window()
    rates = {name: _rate(watch, name) for name in watch.rates}
    return DriftReport(
        inputs=watch.total.inputs, failed=watch.failed, calibrated=reference.inputs, rates=rates,
        histograms={name: _histogram(watch, name) for name in watch.known if name in watch.total.bins},
        windows=tuple(map(asdict, watch.windows)), alarms=(*watch.alarms, *_alarms_of_all(watch, rates)), alpha=alpha,
        psi=psi, window=window, to_label=None if sample is None else sample.write(),
    )  # fmt: skip


def reference_of(bundle: Bundle) -> TrafficReference:
    """The drift reference that calibration stored in a bundle."""
    reference = Calibration.of(bundle).reference
    if reference is None:
        raise InputError(f"bundle {bundle.path} has no record of its calibration examples; calibrate it again")
    return reference


def _rate(watch: Watch, name: str) -> dict[str, Any]:
    expected, test = watch.reference.rates[name], watch.rates[name]
    return {
        "calibrated": {"share": expected.share, "count": expected.count, "n": expected.n},
        "found": {"share": test.count / test.n if test.n else None, "count": test.count, "n": test.n},
        "p_value": rate_p_value(test.count, test.n, expected.count, expected.n),
        "evidence": test.evidence,
    }


def _alarms_of_all(watch: Watch, rates: Mapping[str, Mapping[str, Any]]) -> Iterator[Alarm]:
    """Alarms of rates that changed only over the whole log."""
    raised = {alarm.name for alarm in watch.alarms if alarm.kind == "rate"}
    level = watch.alpha * FIXED / max(1, len(rates))
    for name, facts in rates.items():
        if name not in raised and facts["p_value"] <= level:
            before, after, n = facts["calibrated"]["share"], facts["found"]["share"], facts["found"]["n"]
            text = f"{NAMES[name]} {before:.1%} → {after:.1%} over all {n} inputs (p = {facts['p_value']:.2g})"
            yield Alarm("rate", name, text, 0, n, before, after)


def _histogram(watch: Watch, name: str) -> dict[str, Any]:
    psi, p_values = watch.distances(watch.total)
    if name not in psi:
        return {"psi": None, "p_value": None, "farthest": None, "gained": None}
    farthest = max((each for each in watch.windows if name in each.psi), key=lambda each: each.psi[name], default=None)
    before, after, bins = watch.gained(name, watch.total.bins[name])
    return {
        "psi": psi[name],
        "p_value": p_values[name],
        "farthest": farthest and {"psi": farthest.psi[name], "first": farthest.first, "inputs": farthest.inputs},
        "gained": {"labels" if name == LABELS else "bin": list(bins), "before": before, "after": after},
    }


def _names(rows: Iterable[Mapping[str, Any]], reference: TrafficReference, where: Iterable[str]) -> list[str] | None:
    """Decisions and scores in the log's first usable row, limited to the reference's; ``None`` without such a row."""
    for row, place in zip(rows, where, strict=True):
        each = (row["spans"] or [None])[0] if isinstance(row.get("spans"), list) else row
        if row.get("error") is not None or each is None:
            continue
        expected = [name for name in (*RATES, *WATCHED) if name in reference.rates or name in reference.histograms]
        names = [name for name in expected if each.get(name) is not None]
        if not names:
            raise InputError(f"{place} has none of {listing(expected)}; expected rows of `hydrant predict --output`")
        return names
    return None
