"""The studies in benchmarks/: their parts, and one whole miniature run."""

import argparse
import io
import json
import shutil
import sys
import zipfile
from pathlib import Path

import hydrant
import numpy as np
import pytest
import torch
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import harness
import study_run
import study_subjects
import study_table
import training
import transformers
from study import Fork
from study_rows import Settings

RECIPE = training.Recipe(seed=0, epochs=1, learning_rate=1e-3, batch_size=8)


SIZES = {"train": 40, "members": 48, "validation": 40, "ood_validation": 24, "test": 30, "ood_test": 30}

TINY = Settings(
    forks={1.05: Fork(1, 1)}, keep=1, tune=hydrant.Jointly(epochs=1), batch_size=8,
    rank_one=hydrant.BatchEnsemble(epochs=1, fork_from=1), seeds=(0, 1),
)  # fmt: skip


def checkpoint(place: Path, classes: list[str], pixels: int, dropout: float = 0.0) -> None:
    """A ViT of two layers with its image processor."""
    config = transformers.ViTConfig(
        image_size=pixels, patch_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=dropout,
        id2label=dict(enumerate(classes)), label2id={name: at for at, name in enumerate(classes)},
    )  # fmt: skip
    torch.manual_seed(pixels)
    transformers.ViTForImageClassification(config).save_pretrained(place)
    size = {"height": pixels, "width": pixels}
    transformers.ViTImageProcessorPil(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3).save_pretrained(place)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Input of the vision study: checkpoints of two layers, and a few random images."""
    place = tmp_path_factory.mktemp("study")
    checkpoint(place / "models/vit-tiny-imagenet", ["a", "b", "c"], 64)
    checkpoint(place / "models/vit-tiny-cifar10", ["a", "b"], 32)
    rng = np.random.default_rng(0)
    for name in study_subjects.SPLITS:
        (place / "data/cifar").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place / f"data/cifar/{name}.zip", "w") as archive:
            for index in range(120):
                stream = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(stream, "JPEG")
                archive.writestr(f"{'ab'[index % 2]}/{index}.jpg", stream.getvalue())
    return place


LEFT_OUT = [f"{name}, tuned" for name in ("Hydra Taylor", "Hydra Circ", "CircAvg")]


class Tiny(study_subjects.Vision):
    settings = TINY


def subject(options: argparse.Namespace) -> Tiny:
    return Tiny(options.shared, options.work, 1, SIZES)


@pytest.fixture(scope="module")
def ran(shared: Path) -> argparse.Namespace:
    """The vision study, without rows that are tuned like others."""
    options = argparse.Namespace(
        shared=shared, work=shared / "work", jobs=1, resamples=10, seconds=0.01, leave_out=LEFT_OUT, no_latency=False,
        document=shared / "docs/vision.md", output=shared / "study.json",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.evaluator.pictures", lambda *_: {})
        study_run.run(subject(options), options)
    return options


@pytest.mark.slow
def test_a_whole_study_writes_metrics_tables_and_a_picture(ran: argparse.Namespace) -> None:
    report = json.loads(ran.output.read_text())
    rows = {row["name"]: row for row in report["rows"]}
    names = ["single", "single, tuned", "BatchEnsemble", "LoRA-Ensemble", "Deep Ensemble"]
    pruned = ("Hydra Taylor", "Hydra Circ", "CircAvg", "fork at 1, keep 1")
    assert subject(ran).rows().names() == [*names, *(name + end for name in pruned for end in ("", ", tuned"))]
    names += [*pruned, "fork at 1, keep 1, tuned"]
    assert list(rows) == names
    assert report["sizes"] == {name: SIZES[name] for name in report["sizes"]}
    assert [rows[name]["members"] for name in ("single", "CircAvg", "Hydra Circ", "LoRA-Ensemble")] == [1, 1, 3, 3]
    assert [len(rows[name]["seeds"]) for name in ("single", "single, tuned", "Hydra Circ")] == [1, 2, 2]
    assert rows["Deep Ensemble"]["parameters"] == pytest.approx(3, abs=0.1)
    assert rows["Hydra Circ"]["parameters"] < 2
    assert rows["single"]["against"]["Deep Ensemble"]["accuracy"]["low"] <= 0.5
    assert report["latency"]["plain single"]["1"]["median"] == 1
    assert {"knn.auroc", "vim.auroc", "mahalanobis.fpr95"} <= set(report["baselines"])
    text = ran.document.read_text()
    assert all(f"| {name} | " in text for name in names)
    assert (ran.document.parent / "vision.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_study_resumes(ran: argparse.Namespace) -> None:
    notes = {path: path.stat().st_mtime_ns for path in ran.work.rglob("recipe.json")}
    assert len(notes) > 20
    shutil.rmtree(ran.work / "lora-1")
    rows = subject(ran).rows()
    rows.make([name for name in rows.names() if name not in LEFT_OUT], 1)
    changed = {path.parent.name for path, stamp in notes.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"lora-1"}


def test_figures_are_those_of_calibrate_and_evaluate(ran: argparse.Namespace, tmp_path: Path, undrawn: None) -> None:
    copy = tmp_path / "fork"
    shutil.copytree(ran.work / "bundles/fork-at-1-keep-1-0/fork-at-1-keep-1-0", copy)
    data = subject(ran).data
    rows = {row["name"]: row for row in json.loads(ran.output.read_text())["rows"]}
    row = rows["fork at 1, keep 1"]["seeds"][0]
    report = hydrant.calibrate(copy, data.validation, fit=data.train, taps="last", flags=hydrant.FalseAlarm(0.05))
    assert report.calibration.temperature == row["temperature"]
    (model,) = hydrant.evaluate(copy, data.test, data.ood_test, figures=hydrant.Figures(bootstrap=0)).models
    named = {name.replace("distance_last", "distance"): value for name, value in row["after"].items()}
    for name, value in named.items():
        if any(other in name for other in ("mutual_information", "distance_all", "distance_balanced")):
            continue  # about 1e-8 here: the ranks of rounding errors; and taps that this bundle was not fitted with
        sharp = name in ("accuracy", "nll", "brier", "ece")  # the others are ranks among 30, some all but equal
        assert value == pytest.approx(model.figures[name].value, abs=1e-5 if sharp else 0.02, nan_ok=True), name


RESULTS = Path(study_run.__file__).parent / "results"


@pytest.mark.parametrize("name", study_run.KINDS)
def test_studies_have_the_tables_of_the_results(name: str) -> None:
    report = json.loads((RESULTS / f"study-{name}.json").read_text())
    text = study_table.render(report, ["single, tuned", "Deep Ensemble"])
    assert text in (harness.ROOT / f"benchmarks/results/{name}-tables.md").read_text()
