"""The results of a study as Markdown: the table of the rows, what it must show, and where it stands in a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"

SCORES = {
    "max_probability": "max probability",
    "predictive_entropy": "predictive entropy",
    "mutual_information": "mutual information",
    "energy": "energy",
}

Row = Mapping[str, Any]


def main_table(rows: Sequence[Row]) -> str:
    """One line for each row: quality, detection by predictive entropy and max probability, cost."""
    head = ["", "accuracy", "NLL", "ECE", "AUROC", "AUPR", "FPR95", "AUROC, max p", "FPR95, max p"]
    head += ["latency ÷ single", "parameters ÷ single"]
    return table(head, [_main_line(row) for row in rows])


def _main_line(row: Row) -> list[str]:
    figures = row["figures"]
    entropy = [figures[f"ood.predictive_entropy.{name}"] for name in ("auroc", "aupr", "fpr95")]
    top = [figures[f"ood.max_probability.{name}"] for name in ("auroc", "fpr95")]
    found = [figures["accuracy"], figures["nll"], figures["ece"], *entropy, *top]
    latency = row.get("latency")
    times = "" if latency is None else " / ".join(f"{at['median']:.2f}" for at in latency.values())
    return [row["name"], *(f"{figure['value']:.3f}" for figure in found), times, f"{row['parameters_ratio']:.2f}"]


def interval_table(rows: Sequence[Row]) -> str:
    """Detection by predictive entropy with its interval, and its distance from the reference with that of the pairs."""
    head = ["", "AUROC", "AUROC − reference", "FPR95", "FPR95 − reference", "accuracy − reference"]
    lines = []
    for row in rows:
        figures = row["figures"]
        area, rate = figures["ood.predictive_entropy.auroc"], figures["ood.predictive_entropy.fpr95"]
        distances = [figure.get("minus_reference") for figure in (area, rate, figures["accuracy"])]
        cells = [_signed(distance) if distance else "" for distance in distances]
        lines.append([row["name"], _ranged(area), cells[0], _ranged(rate), cells[1], cells[2]])
    return table(head, lines)


def score_table(rows: Sequence[Row]) -> str:
    """AUROC / FPR95 of every score."""
    lines = []
    for row in rows:
        figures, cells = row["figures"], []
        for score in SCORES:
            area, rate = (figures.get(f"ood.{score}.{name}", {}).get("value") for name in ("auroc", "fpr95"))
            single = score == "mutual_information" and row["members"] == 1
            cells.append("–" if area is None or single else f"{area:.3f} / {rate:.3f}")
        lines.append([row["name"], f"{row['temperature']:.3f}", *cells])
    return table(["", "T", *SCORES.values()], lines)


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def _ranged(figure: Mapping[str, float]) -> str:
    return f"{figure['value']:.3f} ({figure['low']:.3f}–{figure['high']:.3f})"


def _signed(figure: Mapping[str, float]) -> str:
    return f"{figure['value']:+.3f} ({figure['low']:+.3f} to {figure['high']:+.3f})"


def in_state(rows: Sequence[Row], state: str, plain: str = "") -> list[dict[str, Any]]:
    """Rows with the ``figures`` of a state, ``"after"`` calibration or ``"before"``.

    The row ``plain`` is as before in any case; its distances from the reference, which are of that state, are left out.
    """
    return [_uncalibrated(row) if row["name"] == plain else {**row, "figures": row[state]} for row in rows]


def _uncalibrated(row: Row) -> dict[str, Any]:
    figures = {
        name: {part: value for part, value in figure.items() if part != "minus_reference"}
        for name, figure in row["before"].items()
    }
    return {**row, "figures": figures, "temperature": 1.0}


def claims(rows: Mapping[str, Row], state: str = "after") -> list[dict[str, Any]]:
    """What the study should show, in words, with what was found and whether it holds.

    Args:
        rows: name → row.
        state: ``"after"`` or ``"before"`` calibration.
    """

    def value(name: str, figure: str) -> float:
        return rows[name][state][figure]["value"]

    def line(text: str, left: float, sign: str, right: float) -> dict[str, Any]:
        holds = {"≥": left >= right, "≤": left <= right, "<": left < right, ">": left > right}[sign]
        return {"claim": text, "found": f"{left:.4f} {sign} {right:.4f}", "holds": holds}

    def best(name: str) -> float:
        names = ("mutual_information", "predictive_entropy")
        return max(value(name, f"ood.{score}.auroc") for score in names)

    found, reference = [], "Deep Ensemble"
    for name in [name for name in ("Hydra Circ", "Hydra Circ, tuned") if name in rows]:
        for score in ("predictive_entropy", "max_probability"):
            area, rate = f"ood.{score}.auroc", f"ood.{score}.fpr95"
            by = f"{name} against {reference}, {SCORES[score]}"
            found.append(line(f"{by}: AUROC", value(name, area), "≥", value(reference, area)))
            found.append(line(f"{by}: FPR95", value(name, rate), "≤", value(reference, rate)))
        found.append(
            line(f"{name}: accuracy within 1.3 points of {reference}", value(name, "accuracy"), "≥",
                 value(reference, "accuracy") - 0.013)
        )  # fmt: skip
        if state == "after":
            found.append(line(f"{name}: ECE at most 0.02", value(name, "ece"), "≤", 0.02))
        single = value("single", "ood.max_probability.auroc")
        found.append(line(f"{name}: entropy or MI against the single model's max p: AUROC", best(name), ">", single))
    for tail in ("", ", tuned"):
        for lesser, greater in (("CircAvg", "Hydra Circ"), ("Taylor single", "Hydra Taylor")):
            if lesser + tail in rows and greater + tail in rows:
                auroc = "ood.predictive_entropy.auroc"
                text = f"{lesser}{tail} < {greater}{tail}, predictive entropy: AUROC"
                found.append(line(text, value(lesser + tail, auroc), "<", value(greater + tail, auroc)))
    return found


def claim_table(found: Sequence[Mapping[str, Any]]) -> str:
    return table(
        ["what it should show", "found", "holds"],
        [[line["claim"], line["found"], "yes" if line["holds"] else "**no**"] for line in found],
    )


def render(rows: Sequence[Row]) -> str:
    """All tables of a study; the first row, ``"single"``, is shown as it is and with its temperature."""
    temperature = {**rows[0], "name": "single + temperature"}
    calibrated = in_state([rows[0], temperature, *rows[1:]], "after", plain="single")
    before = in_state(rows, "before")
    named = {row["name"]: row for row in rows}
    parts = [
        ("Calibrated (but for the row *single*)", main_table(calibrated)),
        ("Not calibrated", main_table([{**row, "latency": None} for row in before])),
        ("Calibrated, with 95 % bootstrap intervals, by predictive entropy", interval_table(calibrated)),
        ("AUROC / FPR95 by each score, calibrated", score_table(calibrated)),
        ("AUROC / FPR95 by each score, not calibrated", score_table([{**row, "temperature": 1.0} for row in before])),
        ("What it should show, calibrated", claim_table(claims(named, "after"))),
        ("What it should show, not calibrated", claim_table(claims(named, "before"))),
    ]
    return "\n\n".join(f"**{title}**\n\n{text}" for title, text in parts)


def put_into(document: Path, text: str) -> None:
    """Replace what stands between the marks of a document, or append it with its marks."""
    block = f"{BEGIN}\n\n{text}\n\n{END}"
    old = document.read_text() if document.is_file() else ""
    if BEGIN in old and END in old:
        new = old[: old.index(BEGIN)] + block + old[old.index(END) + len(END) :]
    else:
        new = f"{old.rstrip()}\n\n{block}\n".lstrip()
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(new)
