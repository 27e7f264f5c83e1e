"""Pictures of an evaluation, as PNG bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import short
from ..metrics import class_metrics as metrics
from ..metrics.class_metrics import BINS, risk_coverage
from .drawing import new_figure, png
from .metric_names import BASELINE_FIGURES, BASELINES, SCORES
from .observation import Evidence, Observation
from .report import EvaluationReport

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")

LINES = ("-", "--", ":", "-.")

RIGHT, WRONG, OUTSIDE = "#009e73", "#e69f00", "#d55e00"

TITLES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "energy": "energy (nats)",
    "distance": "distance (standard deviations)",
}


def pictures(report: EvaluationReport, evidence: Evidence) -> dict[str, bytes]:
    """Draw every picture, by name."""
    names = [_escaped(model.name) for model in report.models]
    labels = evidence.test_set.labels
    assert labels is not None  # evaluation reads labelled data
    drawn = {
        "risk-coverage": _risk_coverage(names, evidence.seen, labels),  # first on the page
        "reliability": _reliability(names, evidence.seen, labels),
        "scores": _scores(evidence.seen[0], evidence.seen_ood[0], labels),
    }
    if evidence.ood is not None:
        drawn["detection"] = _detection(names, evidence.seen, evidence.seen_ood)
    if any(model.baselines for model in report.models):
        drawn["baselines"] = _baselines(names, report)
    if report.corrupted:
        drawn["noise"] = _noise(names, report)
    return drawn


def _reliability(names: Sequence[str], seen: Sequence[Observation], labels: np.ndarray) -> bytes:
    """Plot accuracy against confidence in equal-width bins, above the number of examples in each bin."""
    figure, (axes, counts) = new_figure(5.4, 5.6, rows=2, height_ratios=[3, 1], sharex=True)
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle="--", label="calibrated")
    for index, (name, observed) in enumerate(zip(names, seen, strict=True)):
        confidence, correct = observed.prediction.confidence, observed.prediction.label == labels
        which = metrics.confidence_bins(confidence.astype(np.float64), BINS)
        size = np.bincount(which, minlength=BINS)
        used = size > 0
        mean = 100 * np.bincount(which, confidence, BINS)[used] / size[used]
        right = 100 * np.bincount(which, correct, BINS)[used] / size[used]
        colour = COLOURS[index % len(COLOURS)]
        error = 100 * metrics.calibration_error(confidence, correct)
        axes.plot(mean, right, **_style(index), linewidth=1.2, alpha=0.4)
        axes.scatter(mean, right, s=8 + 100 * np.sqrt(size[used] / size.max()), color=colour, alpha=0.75,
                     linewidths=0, label=f"{name}, ECE {error:.2f} %")  # fmt: skip
        edges = 100 * np.arange(BINS + 1) / BINS
        counts.stairs(np.maximum(size, 0.5), edges, color=colour, linewidth=1.3)
    axes.set(ylabel="accuracy (%)", ylim=(0, 102))
    label = "confidence: largest mean probability (%)"
    counts.set(xlim=(0, 100), yscale="log", ylabel="examples", xlabel=label)
    axes.legend(edgecolor="none", framealpha=0.85, fontsize=8, loc="upper left", markerscale=0.7)
    return png(figure)


def _risk_coverage(names: Sequence[str], seen: Sequence[Observation], labels: np.ndarray) -> bytes:
    figure, axes = new_figure(5.4, 3.4)
    for index, (name, observed) in enumerate(zip(names, seen, strict=True)):
        wrong = observed.prediction.label != labels
        coverage, risk = risk_coverage(-observed.prediction.confidence, wrong)
        axes.plot(100 * coverage, 100 * risk, **_style(index), linewidth=1.6,
                  label=f"{name}, AURC {1e3 * risk.mean():.1f} × 10⁻³")  # fmt: skip
    axes.set(xlim=(0, 100), xlabel="coverage: inputs answered, most confident first (%)")
    axes.set(ylim=(0, None), ylabel="risk: answers that are wrong (%)")
    axes.legend(frameon=False, fontsize=8, loc="best")
    return png(figure)


def _scores(seen: Observation, ood: Observation | None, labels: np.ndarray) -> bytes:
    """Plot histograms of each score for right answers, wrong answers and OOD inputs."""
    scores, ood_scores = seen.scores(), {} if ood is None else ood.scores()
    wrong = seen.prediction.label != labels
    groups = [("right", RIGHT), ("wrong", WRONG)] + ([("out of distribution", OUTSIDE)] if ood_scores else [])
    figure, grid = new_figure(10.8, 0.7 + 1.3 * len(groups), len(groups), len(scores), sharex="col", sharey=True)
    for column, (name, score) in zip(grid.T, scores.items(), strict=True):
        sign = -1 if name == "max_probability" else 1
        spread = [sign * part for part in (score[~wrong], score[wrong], *([ood_scores[name]] if ood_scores else []))]
        every = np.concatenate(spread)
        edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-6), 41)
        for axes, values, (_, colour) in zip(column, spread, groups, strict=True):
            shares = 100 * np.histogram(values, edges)[0] / max(1, len(values))
            axes.stairs(shares, edges, fill=True, color=colour)
        column[-1].set_xlabel(TITLES[name], fontsize=9)
    for axes, (group, _) in zip(grid[:, 0], groups, strict=True):
        axes.set_yscale("function", functions=(np.sqrt, np.square))
        axes.set_ylim(0, 100)
        axes.set_yticks([1, 5, 20, 50, 100], ["1", "5", "20", "50", "100 %"])
        axes.set_ylabel(group, fontsize=9)
    return png(figure)


def _detection(names: Sequence[str], seen: Sequence[Observation], ood: Sequence[Observation | None]) -> bytes:
    """Plot ROC curves of OOD detection by two scores."""
    figure, panels = new_figure(10.8, 4.6, columns=2)
    for axes, score in zip(panels, ("max_probability", "predictive_entropy"), strict=True):
        for index, (name, own, other) in enumerate(zip(names, seen, ood, strict=True)):
            assert other is not None  # drawn for OOD data only
            id_scores, ood_scores = own.scores()[score], other.scores()[score]
            limits = np.append(-np.inf, np.unique(np.concatenate([id_scores, ood_scores])))
            flagged = 1 - np.searchsorted(np.sort(id_scores), limits, side="right") / len(id_scores)
            caught = 1 - np.searchsorted(np.sort(ood_scores), limits, side="right") / len(ood_scores)
            area = metrics.auroc(id_scores, ood_scores)
            axes.plot(100 * flagged, 100 * caught, **_style(index), linewidth=1.6,
                      label=f"{name}, AUROC {area:.3f}")  # fmt: skip
        axes.axhline(95, color="#999999", linewidth=1, linestyle="--")
        axes.set(xlim=(0, 100), xlabel="in-distribution inputs flagged (%)")
        axes.set(ylim=(0, 101), ylabel="OOD inputs caught (%)")
        axes.set_title(f"by {TITLES[score].removesuffix(' (nats)')}", fontsize=10, loc="left")
        axes.legend(frameon=False, fontsize=8, loc="lower right")
    return png(figure)


def _baselines(names: Sequence[str], report: EvaluationReport) -> bytes:
    """Plot AUROC and FPR95 with intervals: rows for the models' scores, then for those of their single models."""
    own = [model.figures for model in report.models]
    single = [{} if model.baselines is None else model.baselines.figures for model in report.models]
    every = [(words, own, f"ood.{score}") for score, words in SCORES.items()]
    every += [(words, single, score) for score, words in BASELINES.items()]
    rows = [row for row in every if any(f"{row[2]}.auroc" in figures for figures in row[1])]
    figure, panels = new_figure(10.8, 1.2 + 0.3 * len(rows), columns=2, sharey=True)
    for axes, (name, column) in zip(panels, BASELINE_FIGURES.items(), strict=True):
        for index, model in enumerate(names):
            values = [by_model[index].get(f"{key}.{name}") for _, by_model, key in rows]
            drawn = [(place, each) for place, each in enumerate(values) if each is not None]
            height = [place + 0.5 * ((index + 0.5) / len(names) - 0.5) for place, _ in drawn]
            points = column.scale * np.array([each.value for _, each in drawn])
            ends = column.scale * np.array([(each.low, each.high) for _, each in drawn])
            colour = COLOURS[index % len(COLOURS)]
            axes.hlines(height, ends[:, 0], ends[:, 1], color=colour, linewidth=1.4, alpha=0.6)
            axes.plot(points, height, "o", color=colour, markersize=4, label=model)
        axes.axhline(
            sum(by_model is own for _, by_model, _ in rows) - 0.5, color="#999999", linewidth=1, linestyle="--"
        )
        axes.set_xlabel(f"{column.title}{f' ({column.unit.strip()})' if column.unit else ''}")
    panels[0].set_yticks(range(len(rows)), [words for words, *_ in rows], fontsize=8)
    panels[0].invert_yaxis()
    panels[0].legend(frameon=False, fontsize=8, loc="best")
    return png(figure)


def _noise(names: Sequence[str], report: EvaluationReport) -> bytes:
    """Plot NLL and accuracy against severity, averaged over kinds of corruption."""
    figure, panels = new_figure(5.4, 4.8, rows=2, sharex=True)
    for index, (name, model) in enumerate(zip(names, report.models, strict=True)):
        severities = sorted({row.severity for row in model.noise})
        for axes, figure_name, scale in ((panels[0], "nll", 1), (panels[1], "accuracy", 100)):
            line = [
                np.mean([row.figures[figure_name] for row in model.noise if row.severity == severity])
                for severity in severities
            ]
            values = scale * np.array([model.clean[figure_name], *line])
            axes.plot([0, *severities], values, marker="o", markersize=4, **_style(index), label=name)  # fmt: skip
    for axes, label in zip(panels, ("NLL (nats)", "accuracy (%)"), strict=True):
        axes.set_ylabel(label)
        axes.set_xticks(range(6))
    panels[1].set_xlabel("severity (0: clean)")
    panels[0].legend(frameon=False, fontsize=8)
    return png(figure)


def _style(index: int) -> dict[str, str]:
    """Return colour and line style of a model."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def _escaped(text: str) -> str:
    """Shorten a name and escape the characters that matplotlib interprets."""
    line = short(text, 28)
    return (" " if line.startswith("_") else "") + line.replace("$", r"\$")
