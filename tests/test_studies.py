"""The studies in benchmarks/: their parts, and one whole miniature run."""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import study
import study_cifar
import study_figures
import study_table
import training
from support import make_model, random_plan

RECIPE = training.Recipe(seed=0, epochs=1, learning_rate=1e-3, batch_size=8)


def test_a_kept_folder_is_made_once_and_anew_for_another_recipe(tmp_path: Path) -> None:
    made: list[int] = []

    def make(folder: Path) -> dict[str, Any]:
        made.append(1)
        (folder / "weights").write_text(str(len(made)))
        return {"losses": [0.5]}

    for recipe in ({"seed": 0, "targets": ("a", "b")}, {"seed": 0, "targets": ("a", "b")}, {"seed": 1}):
        folder = training.cached(tmp_path / "member", recipe, make)
    assert len(made) == 2
    assert (folder / "weights").read_text() == "2"
    assert json.loads((folder / "recipe.json").read_text())["losses"] == [0.5]


def test_what_fails_leaves_no_folder_and_is_made_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, Any]:
        (folder / "half").write_text("")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.cached(tmp_path / "member", {"seed": 0}, fail)
    assert not (tmp_path / "member").exists()
    folder = training.cached(tmp_path / "member", {"seed": 0}, lambda folder: {})
    assert not (folder / "half").exists()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_learning_rate_rises_in_the_warm_up_and_falls_to_zero(schedule: str) -> None:
    recipe = replace(RECIPE, schedule=schedule, warmup=0.1)
    rates = np.array([recipe.rate(step, 100) for step in range(100)])
    assert 8 <= rates.argmax() <= 11
    assert (np.diff(rates[:9]) > 0).all()
    assert (np.diff(rates[11:]) < 0).all()
    assert rates[0] < 0.15
    assert rates[-1] < 0.02
    assert replace(RECIPE, schedule=schedule).rate(0, 100) == 1


def test_an_epoch_of_texts_has_every_example_once_and_little_padding() -> None:
    class Tokenizer:
        def pad(self, items: list[dict[str, Any]], return_tensors: str) -> dict[str, torch.Tensor]:
            longest = max(len(item["input_ids"]) for item in items)
            rows = [item["input_ids"] + [0] * (longest - len(item["input_ids"])) for item in items]
            return {"input_ids": torch.tensor(rows)}

    rng = np.random.default_rng(0)
    encoded = [{"input_ids": [index + 1] * rng.integers(1, 30)} for index in range(100)]
    epoch = training.text_batches(encoded, np.arange(100), Tokenizer(), 8)
    first, second = list(epoch(rng)), list(epoch(rng))
    assert sorted(torch.cat([batch["labels"] for batch in first]).tolist()) == list(range(100))
    assert [batch["labels"].tolist() for batch in first] != [batch["labels"].tolist() for batch in second]
    for batch in first:
        assert (batch["input_ids"][:, 0] == batch["labels"] + 1).all(), "labels stay with their texts"
    spread = [np.ptp([len(encoded[label]["input_ids"]) for label in batch["labels"]]) for batch in first]
    assert np.mean(spread) < 6


def test_augmented_images_are_shifted_and_mirrored_originals() -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), np.uint8)
    moved = training.augment(images, np.random.default_rng(1))
    assert moved.shape == images.shape
    middle = images[:, 8:24, 8:24]
    seen = set()
    for index, image in enumerate(moved):
        for mirrored in (False, True):
            turned = image[:, ::-1] if mirrored else image
            for top in range(9):
                for left in range(9):
                    if (turned[4 + top : 20 + top, 4 + left : 20 + left] == middle[index]).all():
                        seen.add((index, mirrored))
    assert {index for index, _ in seen} == set(range(40)), "every image is found again"
    assert {mirrored for _, mirrored in seen} == {False, True}


def _row(name: str, auroc: float, fpr95: float = 0.2, accuracy: float = 0.95, ece: float = 0.01) -> dict[str, Any]:
    figures = {"accuracy": accuracy, "nll": 0.2, "ece": ece}
    for score in study_table.SCORES:
        figures |= {f"ood.{score}.auroc": auroc, f"ood.{score}.aupr": 0.8, f"ood.{score}.fpr95": fpr95}
    measured = {figure: {"value": value, "low": value, "high": value} for figure, value in figures.items()}
    members = 1 if "single" in name or "Avg" in name else 3
    row = {"name": name, "members": members, "temperature": 0.9, "parameters_ratio": 1.5}
    return {**row, "before": measured, "after": measured}


def test_claims_hold_or_not_as_the_figures_say() -> None:
    rows = [_row("single", 0.94), _row("Taylor single", 0.93), _row("CircAvg", 0.96), _row("Hydra Taylor", 0.95)]
    rows += [_row("Hydra Circ", 0.955, accuracy=0.94, ece=0.03), _row("Deep Ensemble", 0.955, fpr95=0.1)]
    found = {line["claim"]: line["holds"] for line in study_table.claims({row["name"]: row for row in rows})}
    against = "Hydra Circ against Deep Ensemble, predictive entropy"
    assert found[f"{against}: AUROC"]
    assert not found[f"{against}: FPR95"]
    assert found["Hydra Circ: accuracy within 1.3 points of Deep Ensemble"]
    assert not found["Hydra Circ: ECE at most 0.02"]
    assert found["Hydra Circ: entropy or MI against the single model's max p: AUROC"]
    assert not found["CircAvg < Hydra Circ, predictive entropy: AUROC"]
    assert found["Taylor single < Hydra Taylor, predictive entropy: AUROC"]
    text = study_table.render(rows)
    assert "| single + temperature | 0.950 |" in text
    assert "| Hydra Circ: ECE at most 0.02 | 0.0300 ≤ 0.0200 | **no** |" in text


def test_the_plain_row_of_calibrated_tables_is_not_calibrated() -> None:
    rows = [_row("single", 0.94), _row("Hydra Circ", 0.955), _row("Deep Ensemble", 0.955)]
    distance = {"minus_reference": {"value": -0.5, "low": -0.5, "high": -0.5}}
    for row in rows[:2]:
        row["before"] = {name: {**figure, "value": 0.123, **distance} for name, figure in row["before"].items()}
        row["after"] = {name: {**figure, "value": 0.456, **distance} for name, figure in row["after"].items()}
    shown = study_table.in_state(rows, "after", plain="single")
    scores, intervals = study_table.score_table(shown), study_table.interval_table(shown)
    assert "| single | 1.000 | 0.123 / 0.123 |" in scores
    assert "| Hydra Circ | 0.900 | 0.456 / 0.456 |" in scores
    plain, circuits = (line for line in intervals.splitlines() if "single" in line or "Circ" in line)
    assert "-0.500" not in plain
    assert circuits.count("-0.500 (-0.500 to -0.500)") == 3


def test_tables_replace_the_old_ones_in_a_document(tmp_path: Path) -> None:
    document = tmp_path / "docs/study.md"
    study_table.put_into(document, "old")
    document.write_text(f"# Title\n\n{document.read_text()}\nThe end.\n")
    study_table.put_into(document, "new")
    text = document.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("The end.\n")
    assert "new" in text
    assert "old" not in text


TINY = study_cifar.Setting(
    patch=16, images=60, tuned=40, validation=40, ood_validation=24, test=30, layers=2, heads=2, width=16,
    full=RECIPE, adapter=RECIPE, tune={"epochs": 1, "learning_rate": 1e-4, "batch_size": 8},
)  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> argparse.Namespace:
    """The CIFAR study on a few random images, with a ViT of two layers."""
    place = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    for name in study_cifar.SPLITS:
        (place / "data/cifar").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place / f"data/cifar/{name}.zip", "w") as archive:
            for index in range(120):
                stream = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(stream, "JPEG")
                archive.writestr(f"{'ab'[index % 2]}/{index}.jpg", stream.getvalue())
    options = argparse.Namespace(
        shared=place, work=place / "work", jobs=1, resamples=20, seconds=0.01, no_tuning=False,
        document=place / "docs/cifar.md",
        output=place / "study.json",
    )  # fmt: skip
    study_cifar.run(TINY, "tiny", study.Choice(keep=1), options)
    return options


def test_a_whole_study_leaves_figures_and_tables(ran: argparse.Namespace) -> None:
    report = json.loads(ran.output.read_text())
    names = [row["name"] for row in report["rows"]]
    assert names[0] == "single"
    assert names[-2:] == ["LoRA-Ensemble", "Deep Ensemble"]
    assert {"CircAvg", "Hydra Taylor, tuned", "Hydra Circ", "Hydra Circ, tuned"} <= set(names)
    assert report["sizes"] == {"train": 40, "validation": 40, "ood_validation": 24, "test": 30, "ood_test": 30}
    rows = {row["name"]: row for row in report["rows"]}
    assert [rows[name]["members"] for name in ("CircAvg", "Hydra Circ", "LoRA-Ensemble")] == [1, 3, 3]
    assert rows["Deep Ensemble"]["parameters_ratio"] == pytest.approx(3, abs=0.1)
    assert rows["Hydra Circ"]["parameters_ratio"] < 2
    assert rows["single"]["after"]["accuracy"]["minus_reference"]["low"] <= 0.5
    assert report["latency"]["single"]["1"]["median"] == 1
    text = ran.document.read_text()
    for name in ("single + temperature", *names):
        assert f"| {name} | 0." in text


def test_a_study_goes_on_where_it_stopped(ran: argparse.Namespace) -> None:
    notes = {path: path.stat().st_mtime_ns for path in ran.work.rglob("recipe.json")}
    assert len(notes) > 20
    shutil.rmtree(ran.work / "tiny/lora-1")
    study_cifar.run(TINY, "tiny", study.Choice(keep=1), ran)
    changed = {path.parent.name for path, stamp in notes.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"lora-1"}


def test_figures_are_those_of_calibrate_and_evaluate(ran: argparse.Namespace, tmp_path: Path) -> None:
    copy = tmp_path / "hydra-circ"
    shutil.copytree(ran.work / "tiny/bundles/hydra-circ/hydra-circ", copy)
    arrays, _ = study_cifar.decoded(ran.shared / "data/cifar", ran.work)
    data = study_cifar.split(arrays, TINY)
    rows = {row["name"]: row for row in json.loads(ran.output.read_text())["rows"]}
    for state in ("before", "after"):
        if state == "after":
            report = hydrant.calibrate(copy, data.validation, data.ood_validation)
            assert report.calibration.temperature == rows["Hydra Circ"]["temperature"]
        (model,) = hydrant.evaluate(copy, data.test, data.ood_test, figures=hydrant.Figures(bootstrap=0)).models
        for name, figure in rows["Hydra Circ"][state].items():
            if "mutual_information" in name:
                continue  # about 1e-8 here: the ranks of rounding errors
            sharp = name in ("accuracy", "nll", "brier", "ece")  # the others are ranks among 30, some all but equal
            assert figure["value"] == pytest.approx(model.figures[name].value, abs=1e-5 if sharp else 0.02), name


def test_the_average_of_circuits_is_that_of_plan_heads(ran: argparse.Namespace) -> None:
    arrays, _ = study_cifar.decoded(ran.shared / "data/cifar", ran.work)
    data = study_cifar.split(arrays, TINY)
    expected = hydrant.plan_heads(
        ran.work / "tiny/member-0", data.validation, hydrant.Circuit(ood=data.ood_validation, average=True), keep=1
    )
    assert hydrant.Bundle.open(ran.work / "tiny/bundles/circavg/circavg").plan().members == expected.members


def test_no_image_stands_in_two_splits(ran: argparse.Namespace) -> None:
    arrays, classes = study_cifar.decoded(ran.shared / "data/cifar", ran.work)
    data = study_cifar.split(arrays, TINY)
    assert classes == ["a", "b"]
    for left, right in ((data.train, data.validation), (data.ood_validation, data.ood_test)):
        images = {image.tobytes() for image in left.inputs} | {image.tobytes() for image in right.inputs}
        assert len(images) == len(left) + len(right)


def test_pixels_are_those_of_the_image_processor(ran: argparse.Namespace) -> None:
    import transformers

    processor = transformers.ViTImageProcessorPil.from_pretrained(ran.work / "tiny/member-0")
    images = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    expected = processor(images=[Image.fromarray(image) for image in images], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(study_cifar.normalized(images), expected, atol=1e-6, rtol=0)


def test_the_timed_batch_is_of_median_length(bert_checkpoint: Path, tmp_path: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    bundle = hydrant.save_bundle(hydrant.fuse(bert_checkpoint), tmp_path / "out", tokenizer)
    texts = ["hello", "hello world today", "hello world money the weather is what"]
    examples = hydrant.data.examples.Examples(texts, None, "texts")
    batch = study_figures.middle_batch(bundle.path, examples, 1)
    assert batch["input_ids"].shape == (1, 5)


def test_the_study_counts_parameters_as_the_estimate_does(tmp_path: Path) -> None:
    hydrant.save_bundle(hydrant.fuse(make_model("bert"), random_plan("bert", 3)), tmp_path / "bundle")
    cost = hydrant.estimate_cost(tmp_path / "bundle")
    found = study_figures.parameters(tmp_path / "bundle")
    assert found["parameters"] == cost.fused.parameters
    assert found["parameters_ratio"] == cost.fused.parameters / cost.single.parameters
