"""What a making made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..version import __version__

REPORT = "reports/make.json"


@dataclass(frozen=True)
class MakeReport:
    """What ``make`` did and found.

    Attributes:
        bundle: its folder.
        stages: stage → what it recorded: ``plan``, ``fuse``, ``tune``, ``export``, ``calibrate``, ``verify`` and
            ``evaluate`` (of the last four, the reports of these verbs as JSON objects).
        examples: how many examples did what (``workflow.data_splits.Parts``); ``None`` for what was not given.
        seconds: that this call took; of an interrupted making, the last part.
    """

    bundle: Path
    stages: Mapping[str, Any]
    examples: Mapping[str, int | None]
    seconds: float

    @property
    def verified(self) -> bool:
        """Whether every backend passed every gate."""
        return bool(self.stages["verify"]["passed"])

    def figures(self) -> list[dict[str, float | None]]:
        """What tells quality and what detects the unknown, of the bundle and then of the single model.

        Of a classifier accuracy, NLL and ECE; of the other tasks the names of :data:`QUALITY`.
        """
        return figures_of(self.stages["evaluate"])

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        return {
            "hydrant": __version__,
            "bundle": str(self.bundle),
            "verified": self.verified,
            "seconds": self.seconds,
            "examples": dict(self.examples),
            "stages": dict(self.stages),
        }

    def stored(self) -> dict[str, Any]:
        """The report as the bundle keeps it, the same from run to run: without seconds, and without folders."""
        stages = {stage: _timeless(facts) for stage, facts in self.stages.items()}
        return {**_timeless(self.to_json()), "bundle": self.bundle.resolve().name, "stages": stages}


def _timeless(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: fact for name, fact in facts.items() if name != "seconds"}


QUALITY: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "nll", "ece"),
    "score": ("rmse", "correlation", "mrr", "ndcg", "nll", "interval_coverage", "interval_width"),
    "tokens": ("span_f1", "accuracy", "nll", "ece"),
    "multi_label": ("exact_match", "micro_f1", "macro_f1", "mean_average_precision", "nll", "label_ece"),
}
"""Task → figures of ``hydrant evaluate`` that ``figures`` gives."""


def figures_of(evaluated: Mapping[str, Any]) -> list[dict[str, float | None]]:
    """Of each model of an evaluation what :meth:`MakeReport.figures` tells."""
    return [_figures(model["figures"], evaluated["task"]) for model in evaluated["models"]]


def _figures(figures: Mapping[str, Any], task: str) -> dict[str, float | None]:
    found = {name: figures[name]["value"] for name in QUALITY[task] if name in figures}
    for score in ("predictive_entropy", "mutual_information", "energy", "score_variance", "distance"):
        for figure in ("auroc", "fpr95"):
            if (known := figures.get(f"ood.{score}.{figure}")) is not None:
                found[f"{score}_{figure}"] = known["value"]
    return found
