"""The studies in benchmarks/: their parts, and one whole miniature run."""

from __future__ import annotations

import argparse
import io
import itertools
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

import harness
import study_figures
import study_picture
import study_points
import study_run
import study_shift
import study_table
import study_vision
import training
import transformers
from hydrant.data.corruptions import CORRUPTIONS, corrupt, typos
from hydrant.data.examples import Examples
from hydrant.metrics.timing import Rules
from study import Bundles, Fork
from study_rows import Rows, Settings, results
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


def _row(name: str, seeds: int = 3, operations: float = 1.0, **changes: float) -> dict[str, Any]:
    figures = {"accuracy": 0.95, "nll": 0.2, "ece": 0.01}
    for score in study_table.SCORES:
        figures |= {f"ood.{score}.auroc": 0.98, f"ood.{score}.aupr": 0.8, f"ood.{score}.fpr95": 0.09}
    figures |= {figure.replace("__", "."): value for figure, value in changes.items()}
    made = [
        {"seed": seed, "before": figures, "after": {**figures, "accuracy": figures["accuracy"] + 0.001 * (seed - 1)},
         "flagged": {f"distance_{taps}": {"test": 0.05, "ood": 0.9} for taps in ("balanced", "last")}}
        for seed in range(seeds)
    ]  # fmt: skip
    return {
        "name": name,
        "operations": operations,
        "operations_at_mean": operations,
        "mean_tokens": None,
        "parameters": 1.5,
        "seeds": made,
        "against": {},
    }


def test_tables_tell_means_and_ranges() -> None:
    rows = [_row("single", 1), _row("fork at 4, keep 2, tuned")]
    assert "| single | 1.00 | – | 1.50 | 0.949 |" in study_table.main_table(rows)
    spread = study_table.spread_table(rows)
    assert "| single |" not in spread, "one seed has no range"
    assert "| fork at 4, keep 2, tuned | 0.950 (0.949–0.951) |" in spread
    compared = ("accuracy", "nll", "ood.predictive_entropy.auroc", "ood.predictive_entropy.fpr95")
    rows[1]["against"] = {"single": {name: {"low": -0.02, "high": 0.01} for name in compared}}
    assert "| fork at 4, keep 2, tuned | +0.000 (-0.020 to +0.010) |" in study_table.difference_table(rows, "single")
    assert "| 5.0 % / 90.0 % |" in study_table.flag_table(rows)


def test_the_best_trade_leaves_out_what_is_dearer_and_no_better() -> None:
    points = [(2.0, 0.95), (1.0, 0.9), (1.5, 0.89), (1.0, 0.91), (3.0, 0.95)]
    assert study_picture.pareto(points) == [(1.0, 0.91), (2.0, 0.95)]


def test_tables_replace_the_old_ones_in_a_document(tmp_path: Path) -> None:
    document = tmp_path / "docs/study.md"
    harness.put_into(document, "old")
    document.write_text(f"# Title\n\n{document.read_text()}\nThe end.\n")
    harness.put_into(document, "new")
    text = document.read_text()
    assert text.startswith("# Title\n")
    assert text.endswith("The end.\n")
    assert "new" in text
    assert "old" not in text


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
    """What the vision study reads: checkpoints of two layers, and a few random images."""
    place = tmp_path_factory.mktemp("study")
    checkpoint(place / "models/vit-tiny-imagenet", ["a", "b", "c"], 64)
    checkpoint(place / "models/vit-tiny-cifar10", ["a", "b"], 32)
    rng = np.random.default_rng(0)
    for name in study_vision.SPLITS:
        (place / "data/cifar").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(place / f"data/cifar/{name}.zip", "w") as archive:
            for index in range(120):
                stream = io.BytesIO()
                Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)).save(stream, "JPEG")
                archive.writestr(f"{'ab'[index % 2]}/{index}.jpg", stream.getvalue())
    return place


LEFT_OUT = [f"{name}, tuned" for name in ("Hydra Taylor", "Hydra Circ", "CircAvg")]


class Tiny(study_vision.Vision):
    settings = TINY


def subject(options: argparse.Namespace) -> Tiny:
    return Tiny(options.shared, options.work, 1, SIZES)


@pytest.fixture(scope="module")
def ran(shared: Path) -> argparse.Namespace:
    """The vision study, but for rows that are tuned as others are."""
    options = argparse.Namespace(
        shared=shared, work=shared / "work", jobs=1, resamples=10, seconds=0.01, leave_out=LEFT_OUT, no_latency=False,
        document=shared / "docs/vision.md", output=shared / "study.json",
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.run.pictures", lambda *_: {})
        study_run.run(subject(options), options)
    return options


def test_a_whole_study_leaves_figures_tables_and_a_picture(ran: argparse.Namespace) -> None:
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


def test_a_study_goes_on_where_it_stopped(ran: argparse.Namespace) -> None:
    notes = {path: path.stat().st_mtime_ns for path in ran.work.rglob("recipe.json")}
    assert len(notes) > 20
    shutil.rmtree(ran.work / "lora-1")
    rows = subject(ran).rows()
    rows.make([name for name in rows.names() if name not in LEFT_OUT], 1)
    changed = {path.parent.name for path, stamp in notes.items() if path.stat().st_mtime_ns != stamp}
    assert changed == {"lora-1"}


def test_forks_of_one_name_are_refused(ran: argparse.Namespace) -> None:
    forks = {1.0: Fork(1, 1), 1.1: Fork(1, 1, "taylor")}
    with pytest.raises(ValueError, match="two of the forks have one name: fork at 1, keep 1, fork at 1, keep 1"):
        Rows(subject(ran).bundles, replace(TINY, forks=forks), Path("single"))
    five = Rows(
        subject(ran).bundles, replace(TINY, forks={1.0: Fork(1, 1), 1.1: Fork(1, 1, members=5)}), Path("single")
    )
    assert list(five.forks) == ["fork at 1, keep 1", "fork at 1, keep 1, 5 members"]


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


def test_the_average_of_circuits_is_that_of_plan_heads(ran: argparse.Namespace) -> None:
    study_of = subject(ran)
    circuit = hydrant.Circuit(ood=study_of.data.ood_validation, average=True, max_accuracy_loss=100)
    expected = hydrant.plan_heads(study_of.single, study_of.data.validation, circuit, keep=1)
    assert hydrant.Bundle.open(ran.work / "bundles/circavg-0/circavg-0").plan().members == expected.members


def test_passes_of_dropout_are_a_row(ran: argparse.Namespace, shared: Path, tmp_path: Path) -> None:
    data = subject(ran).data
    checkpoint(tmp_path / "model", ["a", "b"], 32, dropout=0.3)
    bundles = Bundles(tmp_path, data, subject(ran).bundles.processor)
    rows = Rows(bundles, replace(TINY, passes=4), tmp_path / "model")
    assert rows.names()[2] == "MC dropout"
    first, second = (rows.outputs("MC dropout", seed).logits for seed in (0, 1))
    assert first["test"].shape == (len(data.test), 4, 2)
    assert np.ptp(first["test"], axis=1).min() > 0, "every pass draws its own masks"
    assert not np.array_equal(first["test"], second["test"])
    (row,) = results(rows, ["MC dropout"], [], 0)
    assert row["operations"] == 4
    timed = {"single": rows.bundle("single", 0)}
    found = study_figures.latencies(timed, data.test, (1,), Rules(0.01, iterations=5, warm_up=0), None, {"passes": 4})
    assert found["passes"]["1"]["median"] > 2 * found["plain single"]["1"]["median"]


def test_no_image_stands_in_two_splits(ran: argparse.Namespace) -> None:
    data = subject(ran).data
    for left, right in ((data.validation, data.test), (data.ood_validation, data.ood_test)):
        images = {image.tobytes() for image in left.inputs} | {image.tobytes() for image in right.inputs}
        assert len(images) == len(left) + len(right)


def asked(tmp_path: Path, **more: Any) -> argparse.Namespace:
    return argparse.Namespace(
        jobs=1, output=tmp_path / "found.json", document=tmp_path / "page.md", epochs=None, **more
    )


def test_trials_are_judged_by_validation_alone_and_leave_out_what_costs_too_much(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = study_points.Trials((Fork(1, 1), Fork(0, 1)), (1,), (1e-3,), 8, seeds=(0,))
    tiny = Tiny(shared, tmp_path, 1, SIZES)
    points = study_points.Points("try", tiny, 8)
    late, early = (points.operations(study_points.Point(Fork(layer, 1))) for layer in (1, 0))
    assert late < early
    monkeypatch.setattr(study_points, "LIMIT", (late + early) / 2)
    monkeypatch.setitem(study_points.TRIALS, "vision", trials)
    study_points.run("trials", tiny, asked(tmp_path))
    found = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [row["fork"] and row["fork"]["layer"] for row in found] == [None, 1]
    assert all(0 <= seed["accuracy"] <= 1 for row in found for seed in row["seeds"])
    assert late <= found[1]["operations"] == found[1]["seeds"][0]["operations"]
    (kept,) = (tmp_path / "outputs").glob("try-*-1-1-random-3-0-tuned-0-1-0.001")
    outputs = np.load(kept / "outputs.npz")
    assert {name.split(".")[0] for name in outputs} == {"validation", "ood_validation"}
    fitted, judged = study_points.halves(len(outputs["validation.logits"]))
    assert not set(fitted) & set(judged)
    assert "fork at 1, keep 1, random, M = 3" in study_points.render_trials(found)
    assert not (tmp_path / "page.md").exists()


def test_a_grid_leaves_figures_tables_and_a_picture(
    ran: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_points, "SEEDS", (0, 1))
    grid = study_points.Grid((1,), (2, 1), (1, 1), hydrant.Jointly(epochs=1), 8, members=(1, 3))
    monkeypatch.setitem(study_points.GRIDS, "vision", grid)
    options = asked(tmp_path)
    study_points.run("grid", subject(ran), options)
    report = json.loads(options.output.read_text())
    assert [(point["fork"], point["keep"], point["tuned"]) for point in report["points"]] == [
        (1, 2, False), (1, 2, True), (1, 1, False), (1, 1, True),
    ]  # fmt: skip
    assert all(len(point["seeds"]) == 2 for point in report["points"])
    assert [point["members"] for point in report["members"][::2]] == [1, 3]
    assert [point["method"] for point in report["methods"][::2]] == ["random", "taylor", "circuit"]
    tuned = [
        json.loads(note.read_text()) for note in (ran.work / "grid/bundles").glob("grid-*-random-*-tuned-*/recipe.json")
    ]
    assert {1, 3} == {note["recipe"]["source"]["plan"]["members"] for note in tuned}
    assert {note["report"]["frozen"] for note in tuned} == {1}, "whatever the members, the same layers are tuned"
    assert report["points"][3]["operations"] > report["points"][2]["operations"], "tuned, heads are no longer shared"
    assert report["single_operations"] < 1
    text = options.document.read_text()
    assert "| 1 | 2 | tuned |" in text
    assert "](findings-vision.png)" in text
    assert "Fork at layer 1, keep 1, by number of members:" in text
    assert (tmp_path / "findings-vision.png").read_bytes().startswith(b"\x89PNG")


def test_shifted_inputs_are_measured_at_every_severity(ran: argparse.Namespace, tmp_path: Path) -> None:
    options = asked(tmp_path)
    study_shift.run(subject(ran), options)
    models = json.loads(options.output.read_text())["models"]
    assert list(models) == ["single", "single, tuned", "fork at 1, keep 1, tuned"]
    seeds = models["single"]
    assert len(seeds) == 2
    assert seeds[0][0] == seeds[1][0], "the clean inputs of one model"
    assert seeds[0][3] != seeds[1][3], "noise of another seed"
    for rows in itertools.chain(*models.values()):
        assert [row["name"] for row in rows] == ["clean", *(f"severity {severity}" for severity in range(1, 6))]
        for row in rows:
            for shares in row["scores"].values():
                assert 0 <= shares["right_flagged"] <= 1
    text = options.document.read_text()
    assert "| severity 5 |" in text
    assert "| max probability | entropy | mutual information |" in text
    mean = study_shift.mean_of([rows[5] for rows in seeds])
    assert f"| severity 5 | {mean['accuracy']:.3f} |" in text
    assert mean["accuracy"] == pytest.approx(np.mean([rows[5]["accuracy"] for rows in seeds]))
    assert mean["scores"].keys() == seeds[0][5]["scores"].keys()


def test_the_control_is_tuned_at_every_rate_from_a_checkpoint_of_its_own_training(
    ran: argparse.Namespace, tmp_path: Path
) -> None:
    options = asked(tmp_path, rates=(1e-3, 1e-9))
    options.epochs = 1
    study = subject(ran)
    study.settings = replace(TINY, seeds=(1,))
    study_points.run("control", study, options)
    report = json.loads(options.output.read_text())
    rows = {(row["model"], row["rate"]): row["seeds"] for row in report["rows"]}
    assert list(rows) == [
        ("single", None), ("late fork", None),
        *((model, rate) for model in ("single", "late fork") for rate in (1e-3, 1e-9)),
    ]  # fmt: skip
    assert [len(seeds) for seeds in rows.values()] == [1] * 6
    assert {seed["tuned"] for seed in rows["single", None]} == {0}
    for model in ("single", "late fork"):
        slow, fast = rows[model, 1e-9][0], rows[model, 1e-3][0]
        assert slow["validation NLL"] == pytest.approx(rows[model, None][0]["validation NLL"], abs=1e-4)
        assert fast["tuned"] == 0 or fast["validation NLL"] < slow["validation NLL"]
    notes = [json.loads(note.read_text())["recipe"] for note in ran.work.glob("bundles/control-*-0.001/recipe.json")]
    assert {note["tune"]["learning_rate"] for note in notes} == {1e-3}
    assert len(notes) == 2
    trained = json.loads((ran.work / "trained-1-0/recipe.json").read_text())["recipe"]
    assert (trained["epochs"], report["checkpoint epochs"]) == (1, 1)
    assert "| late fork, 0.001 | " in options.document.read_text()


@pytest.mark.parametrize(("study", "epochs"), [("clinc150", "3"), ("vision", "0")])
def test_epochs_that_say_nothing_are_refused(
    study: str, epochs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["study_points.py", "control", study, "shared", "--epochs", epochs])
    with pytest.raises(SystemExit) as left:
        study_points.main()
    assert left.value.code == 2
    assert "--epochs" in capsys.readouterr().err


def test_shifted_inputs_are_of_all_classes() -> None:
    examples = Examples([str(number) for number in range(300)], np.repeat(np.arange(3), 100), "one class after another")
    some = study_shift.drawn(examples, 60)
    assert len(set(some.inputs)) == 60
    assert some.labels is not None
    assert all(12 <= count <= 28 for count in np.bincount(some.labels))
    assert some.inputs == sorted(some.inputs, key=int)
    assert study_shift.drawn(examples, 1000).inputs == examples.inputs


def test_texts_and_images_are_corrupted_as_evaluate_does() -> None:
    texts = study_shift.corrupted(Examples(["what is my balance today", "transfer money"], np.arange(2), "texts"))
    assert texts["severity 3"].inputs == typos(texts["clean"].inputs, 3)
    images = list(np.random.default_rng(0).integers(0, 256, (len(CORRUPTIONS) + 1, 16, 16, 3), np.uint8))
    found = study_shift.corrupted(Examples(images, np.zeros(len(images), np.int64), "images"))["severity 2"].inputs
    for place, kind in enumerate([*CORRUPTIONS, next(iter(CORRUPTIONS))]):
        np.testing.assert_array_equal(found[place], corrupt(images, kind, 2)[place])


def test_the_timed_batch_is_of_median_length(bert_checkpoint: Path, tmp_path: Path) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    bundle = hydrant.save_bundle(hydrant.fuse(bert_checkpoint), tmp_path / "out", tokenizer)
    texts = ["hello", "hello world today", "hello world money the weather is what"]
    examples = hydrant.data.examples.Examples(texts, None, "texts")
    batch = study_figures.middle_batch(bundle.path, examples, 1)
    assert batch["input_ids"].shape == (1, 5)


def test_the_study_counts_costs_as_the_estimate_does(tmp_path: Path) -> None:
    hydrant.save_bundle(hydrant.fuse(make_model("bert"), random_plan("bert", 3)), tmp_path / "bundle")
    cost = hydrant.estimate_cost(tmp_path / "bundle")
    found = study_figures.cost(tmp_path / "bundle", None)
    assert found == {"operations": cost.ratio, "parameters": cost.fused.parameters / cost.single.parameters}


def test_members_are_drawn_in_both_ways(ran: argparse.Namespace, tmp_path: Path) -> None:
    study_points.run("draws", subject(ran), asked(tmp_path, seeds=2))
    report = json.loads((tmp_path / "found.json").read_text())
    assert report["fork"] == {"layer": 1, "keep": 1, "method": "random", "members": 3}
    notes = [json.loads(note.read_text())["recipe"] for note in ran.work.glob("bundles/draws-*/recipe.json")]
    planned = [(note["plan"]["seed"], note["plan"].get("systematic", False)) for note in notes if "plan" in note]
    assert sorted(planned) == [(0, False), (0, True), (1, False), (1, True)]
    tuned = [note["tune"] for note in notes if "tune" in note]
    assert {(how["epochs"], how["batch_size"]) for how in tuned} == {(TINY.tune.epochs, TINY.batch_size)}
    text = (tmp_path / "page.md").read_text()
    for name, seeds in report["rows"].items():
        operations, accuracy = (np.mean([seed[figure] for seed in seeds]) for figure in ("operations", "accuracy"))
        assert f"| {name} | {operations:.2f} | 2 | {accuracy:.3f} (" in text


def test_untuned_members_are_measured_as_they_are(
    ran: argparse.Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = {"single model": study_points.Point(None), "random": study_points.Point(Fork(0, 1))}
    monkeypatch.setattr(study_points, "UNTUNED", ways)
    study_points.run("untuned", subject(ran), asked(tmp_path, seeds=2))
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [(row["name"], row["seed"]) for row in rows] == [("single model", 0), ("random", 0), ("random", 1)]
    (single,) = [row for row in json.loads(ran.output.read_text())["rows"] if row["name"] == "single"]
    for name in study_points.UNTUNED_FIGURES:
        assert rows[0][name] == pytest.approx(single["seeds"][0]["before"][name])


RESULTS = Path(study_run.__file__).parent / "results"


@pytest.mark.parametrize(("file", "page", "render"), [
    *((f"grid-{name}", "findings", study_points.render_grid) for name in study_run.KINDS),
    *((f"shift-{name}", "findings", lambda found: study_shift.render(found["models"])) for name in study_run.KINDS),
    *((f"draws-{name}", f"studies/{name}", lambda found: study_points.render_draws(found["rows"]))
      for name in study_run.KINDS),
    *((f"control-vision{end}", "studies/vision", lambda found: study_points.render_control(found["rows"]))
      for end in ("", "-trained")),
])  # fmt: skip
def test_documents_have_the_tables_of_the_results(file: str, page: str, render: Any) -> None:
    found = json.loads((RESULTS / f"{file}.json").read_text())
    assert render(found) in (harness.ROOT / f"docs/{page}.md").read_text()


@pytest.mark.parametrize("name", study_run.KINDS)
def test_studies_have_the_tables_of_the_results(name: str) -> None:
    report = json.loads((RESULTS / f"study-{name}.json").read_text())
    text = study_table.render(report, ["single, tuned", "Deep Ensemble"])
    assert text in (harness.ROOT / f"docs/studies/{name}.md").read_text()
