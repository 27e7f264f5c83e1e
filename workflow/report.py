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
        examples: how many examples did what (``workflow.parts.Parts``); ``None`` for what was not given.
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
        """Accuracy, NLL, ECE and what detects the unknown, of the bundle and then of the single model."""
        return [_figures(model["figures"]) for model in self.stages["evaluate"]["models"]]

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


def _figures(figures: Mapping[str, Any]) -> dict[str, float | None]:
    names = ("accuracy", "nll", "ece")
    found = {name: figures[name]["value"] for name in names if name in figures}
    for score in ("predictive_entropy", "mutual_information", "energy", "distance"):
        for figure in ("auroc", "fpr95"):
            if (known := figures.get(f"ood.{score}.{figure}")) is not None:
                found[f"{score}_{figure}"] = known["value"]
    return found
