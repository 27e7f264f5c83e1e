"""``hydrant make``: every stage in one command, with separate data for each use, resumable."""

import csv
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from hydrant import Bundle, HeadPlan, Recipe, make
from hydrant.calib.decisions.targets import Coverage, FalseAlarm
from hydrant.cli.make import make_text
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hydrant.progress import no_progress
from hydrant.tuning.settings import Jointly
from hydrant.workflow import make_stages
from hydrant.workflow.data_splits import MIN_EXAMPLES, parted
from hydrant.workflow.make_inputs import MakeInputs
from hydrant.workflow.make_stages import Stages
from hydrant.workflow.stage_summaries import fused_line
from hydrant.workflow.workspace import Workspace, link_folder
from hypothesis import given
from hypothesis import strategies as st
from support import predicted, save_checkpoint

MODULE = sys.modules["hydrant.workflow.make_bundle"]  # the function has the same name
WORDS = ("hello", "world", "transfer", "money", "today", "what", "is", "the", "weather")
DECIDED = ("plan.json", "fused.safetensors", "calibration.json", "density.safetensors", "model.fp32.onnx")
"""Files that depend only on seed and data."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Training, validation and test data without common texts, and OOD data."""
    folder = tmp_path_factory.mktemp("data")
    texts = [" ".join(words) for words in itertools.permutations(WORDS, 3)]
    rng = np.random.default_rng(0)
    rng.shuffle(texts)
    paths = {}
    for name, rows in {"train": texts[:60], "validation": texts[60:140], "test": texts[140:170]}.items():
        paths[name] = folder / f"{name}.csv"
        with paths[name].open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, "abcde"[len(text) % 5]) for text in rows)])
    paths["ood"] = folder / "ood.csv"
    paths["ood"].write_text("text\n" + "\n".join(f"{a} {a} {b} {b}" for a, b in itertools.permutations(WORDS, 2)))
    return paths


def make_small(tables: dict[str, Path], checkpoint: Path, output: Path, **options: Any) -> Any:
    recipe = Recipe(members=2, budget=1.2, epochs=1, learning_rate=1e-3)
    return make(
        checkpoint, tables["train"], tables["validation"], tables["ood"], output=output, **{"recipe": recipe, **options}
    )


@pytest.fixture(scope="module", autouse=True)
def _undrawn() -> Iterator[None]:
    """Calls in this process draw no pictures, which are slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.evaluator.pictures", lambda *_: {})
        yield


@pytest.fixture(scope="module")
def finished(tables: dict[str, Path], bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Bundle of an uninterrupted call, and its report."""
    return make_small(tables, bert_checkpoint, tmp_path_factory.mktemp("made") / "out")


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def stopping_at(stage: str) -> Callable[[str], None]:
    def say(line: str) -> None:
        if line.startswith(stage):
            raise KeyboardInterrupt

    return say


STOPS = ("fuse", "within the tuning", "tune", "calibrate", "evaluate")
"""Stages after which a call is interrupted, and one within which it is."""


@pytest.fixture(scope="module")
def stopped(tables: dict[str, Path], bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of a workspace at each stop of a repeatedly interrupted call; each call resumes the one before."""
    folder = tmp_path_factory.mktemp("stopped")
    for stop in STOPS:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if stop != STOPS[0]:
                patch.setattr("hydrant.calib.heads.planning.plan_heads", None)  # finished already
            if stop == "within the tuning":
                patch.setattr("hydrant.tuning.stages.write_tuned", interrupted)
            make_small(tables, bert_checkpoint, folder / "making/out", say=stopping_at(stop))
        shutil.copytree(folder / "making", folder / stop)
    return folder


def test_swapped_data_are_noticed(
    finished: Any, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Validation labels are the model's own answers; training labels are not."""
    texts = [row["text"] for row in csv.DictReader(tables["validation"].open())]
    single = hydrant.fuse(bert_checkpoint, HeadPlan.all_heads("bert", 3, 4))
    processor = hydrant.models.checkpoint.load_processor(bert_checkpoint, "text")
    with hydrant.load(hydrant.save_bundle(single, tmp_path / "whole", processor), "torch") as predictor:
        own = [predictor.labels[place] for place in predictor.predict(texts).label]
    data = {**tables, "validation": (texts, own)}
    report = make_small(data, bert_checkpoint, tmp_path / "out", recipe=Recipe(members=1))
    assert "swapped" in caplog.text
    assert "swapped" in make_text(report).partition("wrote ")[2]
    assert finished.notes == []


def digests(bundle: Path) -> dict[str, str]:
    every = Bundle.open(bundle).digests()
    return {name: every[name] for name in DECIDED}


def test_the_bundle_is_complete(finished: Any) -> None:
    bundle = Bundle.open(finished.bundle)
    for name in (*DECIDED, "reports/make.json", "reports/verify.json", "reports/evaluation.json"):
        assert bundle.has(name), name
    assert bundle.plan().provenance["budget"]["ratio"] <= 1.2
    assert finished.examples == {
        "training": 60, "choosing": 27, "fitting": 27, "reporting": 26, "unknown_fitting": 36, "unknown_reporting": 36,
    }  # fmt: skip
    for stage in ("calibrate", "evaluate"):
        assert finished.stages[stage]["notes"] == [], "no earlier stage saw what is reported on"
    assert finished.verified
    report = json.loads((finished.bundle / "reports/make.json").read_text())
    assert report == json.loads(json.dumps(finished.stored()))
    assert str(finished.bundle.parent) not in json.dumps(report), "no absolute paths"
    assert (report["bundle"], report["stages"]["tune"]["bundle"], finished.to_json()["bundle"]) == (
        "out", "out", str(finished.bundle),
    )  # fmt: skip
    assert "seconds" not in json.dumps(report), "not reproducible"
    assert list(report["stages"]) == ["plan", "fuse", "tune", "export", "calibrate", "single", "verify", "evaluate"]
    assert [path.name for path in finished.bundle.parent.iterdir()] == ["out"]
    p = predicted(finished.bundle, ["hello world", "money money"], "onnxruntime")
    assert p.distance is not None
    assert p.out_of_distribution is not None
    assert p.abstain is not None


def test_it_is_what_the_verbs_make_one_after_the_other(
    finished: Any, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    read = lambda name, labels: hydrant.data.examples.read_examples(tables[name], labels)  # noqa: E731
    labels = list("abcde")
    parts = parted(read("train", labels), read("validation", labels), None, read("ood", None), None, 0)
    plan = hydrant.plan_heads(bert_checkpoint, parts.choosing, members=2, keep=hydrant.Budget(1.2, to_tune=True))
    out = tmp_path / "out"
    processor = hydrant.models.checkpoint.load_processor(bert_checkpoint, "text")
    hydrant.save_bundle(hydrant.fuse(bert_checkpoint, plan), out, processor=processor)
    hydrant.tune(out, parts.training, Jointly(epochs=1, learning_rate=1e-3), validation=parts.choosing)
    hydrant.export_onnx(out)
    hydrant.calibrate(out, parts.fitting, parts.unknown_fitting, fit=parts.training)
    assert digests(out) == digests(finished.bundle)
    measured = parts.reporting, parts.unknown_reporting
    report = hydrant.evaluate(out, *measured, compare=[bert_checkpoint], figures=hydrant.Figures(bootstrap=0))
    mine, (bundle, rival, bare) = report.to_json()["models"], finished.stages["evaluate"]["models"]
    for one, other in zip(mine, (bundle, bare), strict=True):
        assert one["figures"]["accuracy"]["value"] == other["figures"]["accuracy"]["value"]
        assert one["figures"]["nll"]["value"] == other["figures"]["nll"]["value"]
    assert mine[0]["decisions"] == bundle["decisions"]
    recipe = Recipe(members=1)
    single = make_small(tables, bert_checkpoint, tmp_path / "single", recipe=recipe).stages["evaluate"]["models"][0]
    assert (single["temperature"], single["decisions"]) == (rival["temperature"], rival["decisions"])
    for name, value in single["figures"].items():
        assert value == rival["figures"][name], name


def test_the_rival_is_gone_with_other_data_or_another_checkpoint(
    finished: Any, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    def compared(bundle: Path, checkpoint: Path) -> list[str]:
        report = hydrant.evaluate(bundle, tables["test"], compare=[checkpoint], figures=hydrant.Figures(bootstrap=0))
        return [model.kind for model in report.models]

    out = shutil.copytree(finished.bundle, tmp_path / "out")
    assert compared(out, bert_checkpoint) == ["bundle", "single", "checkpoint"]
    other = save_checkpoint(tmp_path / "other", seed=1)
    assert compared(out, other) == ["bundle", "checkpoint"]
    facts = Bundle.open(out).calibration()
    facts["thresholds"]["abstain"]["target"]["coverage"] = 0.8
    Bundle.open(out).add({"calibration.json": json.dumps(facts).encode()})
    assert compared(out, bert_checkpoint) == ["bundle", "checkpoint"], "other targets"
    out = shutil.copytree(finished.bundle, tmp_path / "again")
    hydrant.calibrate(out, tables["validation"])
    assert compared(out, bert_checkpoint) == ["bundle", "checkpoint"], "other data"


def test_the_single_model_is_tuned_alike(tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path) -> None:
    recipe = Recipe(members=2, budget=1.2, epochs=1, learning_rate=1e-3, control=True)
    report = make_small(tables, bert_checkpoint, tmp_path / "out", recipe=recipe)
    models = report.stages["evaluate"]["models"]
    assert [model["kind"] for model in models[:3]] == ["bundle", "single", "checkpoint"]
    assert [model["name"] for model in models[3:]] == ["control-above-fork", "control-whole"]
    for model in models[3:]:
        tuned = Bundle.open(tmp_path / "out.control" / model["name"])
        assert tuned.has("density.safetensors")
        record = tuned.manifest["fusion"].get("tuned")
        assert model["kind"] == ("single" if record is None else "control"), "tuning may not have helped"
        if record is not None:
            fork = Bundle.open(report.bundle).plan().fork
            assert record["settings"]["frozen"] == (0 if model["name"] == "control-whole" else fork)


@pytest.mark.parametrize("members", [None, 2])
def test_members_learn_from_teachers(
    members: int | None, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    """Rows of the report: the result, the single model, one model taught by the mean, and the teachers; resumable."""
    teachers = [save_checkpoint(tmp_path / f"teacher-{seed}", seed=seed) for seed in (1, 2)]
    more = tmp_path / "unlabelled.csv"
    more.write_text("text\n" + "\n".join(f"{a} {b}" for a, b in itertools.permutations(WORDS, 2)))
    recipe = Recipe(members=members, budget=members and 1.2, epochs=1, learning_rate=1e-3)
    made = partial(
        make_small, tables, bert_checkpoint, tmp_path / "out", recipe=recipe, teachers=teachers, unlabelled=more,
    )  # fmt: skip
    with pytest.raises(KeyboardInterrupt):
        made(say=stopping_at("tune"))
    files = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out.make/outputs/teachers").iterdir()}
    assert files, "teachers ran once"
    report = made()
    kinds = [model["kind"] for model in report.stages["evaluate"]["models"]]
    tuned = report.stages["tune"]["tuned"]
    taught = ["taught" if tuned else "single"]
    assert report.examples["unlabelled"] == len(more.read_text().splitlines()) - 1
    if members is None:
        assert kinds == [*taught, "single", "checkpoint", "teachers"]
    else:
        assert [kinds[0], *kinds[-1:]] == ["bundle", "teachers"]
        assert len(Bundle.open(report.bundle).plan().members) == 2
        assert (tmp_path / "out.control/taught-by-mean").is_dir()
    assert report.stages["teachers"]["temperature"] > 0
    shutil.copytree(teachers[0], bare := tmp_path / "teachers-bare", ignore=shutil.ignore_patterns("*token*", "source"))
    for wrong in ({"recipe": Recipe(fast=True)}, {"recipe": Recipe(members=3)}, {"teachers": ()},
                  {"teachers": [bare, bare], "force": True}):  # fmt: skip
        with pytest.raises(InputError, match="teachers"):
            made(**wrong)


@given(
    counts=st.tuples(*[st.integers(3 * MIN_EXAMPLES, 200)] * 2),
    tested=st.booleans(),
    unknown=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_example_has_one_part(counts: tuple[int, int], tested: bool, unknown: bool, seed: int) -> None:
    def examples(name: str, count: int) -> Examples:
        return Examples([f"{name} {i}" for i in range(count)], np.arange(count), name)

    validation, ood = (examples(*pair) for pair in zip(("v", "o"), counts, strict=True))
    test = examples("t", 9) if tested else None
    parts = parted(examples("train", 5), validation, test, ood if unknown else None, test, seed)
    used = [parts.choosing, parts.fitting, *([] if tested else [parts.reporting])]
    assert sorted(text for part in used for text in part.inputs) == sorted(validation.inputs)
    assert max(map(len, used)) - min(map(len, used)) <= 1
    assert all(f"v {label}" == text for part in used for text, label in zip(part.inputs, part.labels, strict=True))
    assert (parts.reporting is test) == tested
    if not unknown:
        assert parts.unknown_fitting is None
    elif tested:
        assert (parts.unknown_fitting, parts.unknown_reporting) == (ood, test)
    else:
        halves = [*parts.unknown_fitting.inputs, *parts.unknown_reporting.inputs]
        assert sorted(halves) == sorted(ood.inputs)


def test_data_to_judge_by_that_were_trained_on_are_refused(
    tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    train, validation = tables["train"], tables["validation"]
    with pytest.raises(InputError, match=r"100% of the 60 examples of the validation data \(.*train\.csv\) "):
        make(bert_checkpoint, train, train, output=tmp_path / "out")
    with pytest.raises(InputError, match=r"100% of .* the test data .* the validation data"):
        make(bert_checkpoint, train, validation, output=tmp_path / "out", test=validation)
    unknown = tables["ood"]
    with pytest.raises(InputError, match=r"100% of the 72 examples of the test_ood data .* the ood data"):
        make(bert_checkpoint, train, validation, unknown, output=tmp_path / "out", test_ood=unknown)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "words"),
    [({"flags": FalseAlarm(0.02)}, r"of 0\.98 needs at least 49"), ({"abstain": Coverage(0.97)}, "needs at least 33")],
)
def test_thresholds_that_no_data_can_show_are_refused_before_any_work(
    targets: dict[str, Any], words: str, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    recipe = Recipe(members=2, budget=1.2, **targets)
    with pytest.raises(InputError, match=words + r" examples, .*27 .*validation\.csv"):
        make(bert_checkpoint, tables["train"], tables["validation"], output=tmp_path / "out", recipe=recipe)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_gate_is_named_and_nothing_is_recommended(finished: Any) -> None:
    stages = json.loads(json.dumps(finished.to_json()["stages"]))
    gate = stages["verify"]["backends"][0]["gates"][0]
    gate.update(value=9.0, passed=False)
    stages["verify"]["passed"] = False
    text = make_text(replace(finished, stages=stages))
    assert "NOT READY" in text
    assert gate["name"] in text


def test_an_interrupted_call_resumes(
    finished: Any, stopped: Path, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    """Tuning resumes from its state; files of a stage stay as long as they are needed."""
    for stop in STOPS:
        assert [path.name for path in (stopped / stop).iterdir()] == ["out.make"]
        left = {path.name for path in (stopped / stop / "out.make").iterdir()}
        assert ("untuned" in left) == (stop not in ("calibrate", "evaluate"))
        assert any(".part" in name for name in left) == (stop == "within the tuning")
    shutil.copytree(stopped / STOPS[-1], tmp_path, dirs_exist_ok=True)
    with pytest.raises(InputError, match="other seed;"):
        make_small(tables, bert_checkpoint, tmp_path / "out", seed=1)
    said: list[str] = []
    report = make_small(tables, bert_checkpoint, tmp_path / "out", say=said.append)
    assert [line.split()[0] for line in said] == list(finished.stages), "no estimate of finished stages"
    assert digests(report.bundle) == digests(finished.bundle)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_call_resumes_with_another_batch_size(
    stopped: Path, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """An unfinished tuning starts anew, because its result depends on the batch size."""

    def tuned_with(batch_size: int) -> int:
        with pytest.raises(KeyboardInterrupt):
            make_small(
                tables, bert_checkpoint, tmp_path / "out", say=stopping_at("export"),
                reading=hydrant.Reading(batch_size=batch_size),
            )  # fmt: skip
        return int(json.loads((tmp_path / "out.make/make.json").read_text())["tune"]["batch_size"])

    shutil.copytree(stopped / "within the tuning", tmp_path, dirs_exist_ok=True)
    assert (tmp_path / "out.make/untuned.32.part").is_dir()
    monkeypatch.setattr("hydrant.calib.heads.planning.plan_heads", interrupted)  # finished already
    assert tuned_with(8) == 8
    assert not list((tmp_path / "out.make").glob("*.part")), "nor the state of the other one"
    assert "updates" not in caplog.text
    assert tuned_with(16) == 8
    assert "already tuned with batch size 8; to tune with 16, delete " in caplog.text


def half_linked(source: Path, target: Path) -> None:
    link_folder(source, target)
    (target / "hydrant.json").unlink()
    raise KeyboardInterrupt


def test_the_same_call_writes_a_missing_page_or_bundle(
    stopped: Path, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stopped / "evaluate", tmp_path, dirs_exist_ok=True)
    page = tmp_path / "report.html"
    for inside in (tmp_path / "out/report.html", tmp_path / "out.make/report.html"):
        with pytest.raises(InputError, match=r"html .*report\.html"):
            make_small(tables, bert_checkpoint, tmp_path / "out", html=inside, force=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(MODULE, "link_folder", half_linked)
        make_small(tables, bert_checkpoint, tmp_path / "out", html=page)
    assert not (tmp_path / "out").exists()
    report = make_small(tables, bert_checkpoint, tmp_path / "out", html=page)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "report.html"]
    assert report.stages["evaluate"]["html"] == str(page)
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    digests = {"model": "m"}
    begun = Workspace(tmp_path / "out.make", digests)
    begun.stage("fuse", lambda: {"parameters_ratio": "many"})
    with pytest.raises(ValueError, match="format code"):  # an error of this call
        begun.summary("fuse", fused_line)
    with pytest.raises(InputError, match=r"make\.json has a damaged record of the stage fuse \(ValueError.*delete"):
        Workspace(tmp_path / "out.make", digests).summary("fuse", fused_line)
    (tmp_path / "out.make/make.json").write_text('{"plan": 3}')
    with pytest.raises(InputError, match=r"make\.json.*; delete"):
        Workspace(tmp_path / "out.make", digests)


def test_members_that_lose_too_much_are_planned_and_tuned_again(
    stopped: Path, tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupting the second tuning does not repeat the first."""
    shutil.copytree(stopped / "fuse", tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(make_stages, "MARGIN", -200.0)  # impossible
    tuned, tune, plan_heads = [], hydrant.tune, hydrant.plan_heads

    def other(*values: Any, keep: hydrant.Budget, seed: int, **named: Any) -> HeadPlan:
        return plan_heads(*values, keep=keep, seed=seed if keep.to_tune else seed + 7, **named)

    def stopping(source: Path, *values: Any, **named: Any) -> Any:
        tuned.append(Path(source).name)
        if len(tuned) == 2:
            raise KeyboardInterrupt
        return tune(source, *values, **named)

    monkeypatch.setattr("hydrant.tuning.tune", stopping)
    monkeypatch.setattr("hydrant.calib.heads.planning.plan_heads", other)
    said: list[str] = []
    stop = stopping_at("tune")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            make_small(
                tables, bert_checkpoint, tmp_path / "out", say=lambda line: (said.append(line), stop(line)),
            )  # fmt: skip
    assert tuned == ["untuned", "instead", "instead"]
    facts = json.loads((tmp_path / "out.make/make.json").read_text())["tune"]
    words = f"accuracy {facts['accuracy_after']:.3f}, the single model {facts['single_accuracy']:.3f}"
    assert (facts["lost"], facts["same_heads"]) == (words, False)
    assert f"({facts['why']}), so 2 members fork at layer" in said[-1]
    assert f"; the bundle loses too much ({words})" in said[-1]


def test_circuits_are_searched_on_the_data_that_choose(
    tables: dict[str, Path], bert_checkpoint: Path, tmp_path: Path
) -> None:
    recipe = Recipe(members=2, budget=1.2, method="circuit,random")
    call = MakeInputs(bert_checkpoint, recipe.resolved(0), (), hydrant.Reading(), 0)
    parts = call.read(tables["train"], tables["validation"], tables["ood"], None, None, None)
    Stages(call, Workspace(tmp_path / "out.make", {}), "out", print, no_progress)._plan(
        tmp_path / "plan.json", parts, to_tune=True
    )
    facts = HeadPlan.load(tmp_path / "plan.json").provenance["circuit"]
    assert (facts["objective"], facts["ood_examples"]) == ("separation", 36), "the half that chooses"
    for unknown, task in ((None, "classification"), (parts.choosing, "score")):  # regression has no entropy
        assert recipe.methods(unknown, task) == [hydrant.Circuit(objective="nll"), "random"]
