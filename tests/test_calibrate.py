"""Calibrating bundles: files, graphs and backends agree afterwards, or nothing has changed."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import pytest
from fake_tensorrt import add_engine, text_profile
from hydrant import (
    Bundle,
    Conformal,
    Coverage,
    FalseAlarm,
    GraphForm,
    HydrantError,
    Reading,
    Risk,
    calibrate,
    export_onnx,
    fuse,
    load,
    save_bundle,
    verify,
)
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.staging import sha256_of
from hydrant.calib.features import Reference
from hydrant.calib.mahalanobis import standardised
from hydrant.data.examples import read_examples
from hydrant.metrics.class_metrics import auroc as area_under_roc
from hydrant.models.checkpoint import load_processor
from hydrant.progress import no_progress
from onnx import numpy_helper
from support import random_plan, run_cli

WORDS = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]


def write_texts(path: Path, count: int, seed: int, labels: str = "abcde") -> Path:
    rng = np.random.default_rng(seed)
    rows = [f"{' '.join(rng.choice(WORDS, rng.integers(1, 12)))},{rng.choice(list(labels))}" for _ in range(count)]
    path.write_text("text,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("calibration-data")
    return {
        "val": write_texts(folder / "val.csv", 120, 0),
        "ood": write_texts(folder / "ood.csv", 40, 1, labels="x"),
        "test": write_texts(folder / "test.csv", 100, 2),
    }


@pytest.fixture(scope="module")
def exported(bert_checkpoint: Path, data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with graphs in every precision; tests that change it copy it."""
    path = tmp_path_factory.mktemp("exported") / "bundle"
    save_bundle(fuse(bert_checkpoint, random_plan("bert", 3)), path, load_processor(bert_checkpoint, "text"))
    export_onnx(path, form=GraphForm(member_outputs=True))
    export_onnx(path, "fp16")
    export_onnx(path, "bf16", form=GraphForm(without=["fold-value-bias"]))
    return path


@pytest.fixture
def bundle(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "bundle"))


def state(bundle: Path) -> dict[str, str]:
    return {path.name: sha256_of(path) for path in bundle.rglob("*") if path.is_file()}


def temperature_in(path: Path) -> float:
    model = onnx.load(path)
    (tensor,) = [tensor for tensor in model.graph.initializer if tensor.name == "const.temperature"]
    return float(numpy_helper.to_array(tensor)[0])


def facts(path: Path) -> dict[str, str]:
    return {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}


def test_graph_metadata_match_calibration_json(bundle: Path, data: dict[str, Path]) -> None:
    report = calibrate(bundle, data["val"], data["ood"], abstain=Coverage(0.8), sets=Conformal(0.2))
    calibration = json.loads((bundle / "calibration.json").read_text())
    assert calibration == json.loads(json.dumps(report.calibration.to_json()))
    assert report.graphs == ["model.fp32.onnx", "model.fp16.onnx", "model.bf16.onnx"]
    assert calibration["temperature"] != 1.0
    for name in report.graphs:
        assert temperature_in(bundle / name) == np.float32(calibration["temperature"])
        metadata = facts(bundle / name)
        assert float(metadata["hydrant.temperature"]) == calibration["temperature"]
        assert json.loads(metadata["hydrant.thresholds"]) == calibration["thresholds"]
        assert json.loads(metadata["hydrant.conformal"]) == calibration["conformal"]
        onnx.checker.check_model(str(bundle / name), full_check=True)
    assert Calibration.of(Bundle.open(bundle)) == report.calibration
    assert calibration["fitted"]["data"] == "val.csv"
    assert calibration["fitted"]["ood_examples"] == 40
    assert verify(bundle, reading=Reading(examples=30)).passed
    assert calibrate(bundle, data["val"]).calibration.conformal is None


def test_temperature_against_the_oracle_and_a_grid(bundle: Path, data: dict[str, Path], bert_checkpoint: Path) -> None:
    """The original model, member by member with silenced heads; the best T of a grid on its logits."""
    import transformers

    model = transformers.BertForSequenceClassification.from_pretrained(bert_checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    examples = read_examples(data["val"], list("abcde"))
    inputs = dict(tokenizer(list(examples.inputs), padding=True, return_tensors="pt"))
    logits = oracle.ensemble([model], random_plan("bert", 3), inputs)["member_logits"]
    assert examples.labels is not None

    def loss(temperature: float) -> float:
        mean = oracle.softmax(logits / temperature).mean(axis=0)
        return float(-np.log(mean[np.arange(120), examples.labels]).mean())

    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 4001))
    losses = 120 * np.array([loss(temperature) for temperature in grid]) + 2 * np.log(grid) ** 2
    best = grid[np.argmin(losses)]
    report = calibrate(bundle, data["val"])
    assert report.calibration.temperature == pytest.approx(best, rel=5e-3), "with the prior; the gain is large"
    assert report.calibration.fitted["after"]["nll"] == pytest.approx(loss(report.calibration.temperature), abs=1e-5)
    assert report.calibration.fitted["before"]["nll"] == pytest.approx(loss(1.0), abs=1e-5)


@pytest.mark.parametrize("score", ["confidence", "mutual_information", "energy"])
def test_backends_decide_alike(score: str, bundle: Path, data: dict[str, Path]) -> None:
    report = calibrate(
        bundle, data["val"], data["ood"], abstain=Coverage(0.7, score), flags=FalseAlarm(0.3, score),
        sets=Conformal(0.3, "aps"),
    )  # fmt: skip
    texts = list(read_examples(data["val"], None).inputs)  # the thresholds' own examples
    with load(bundle, "torch") as reference, load(bundle, "onnxruntime", precision="fp32") as graph:
        expected, got = reference.predict(texts), graph.predict(texts)
    assert got.abstain is not None
    assert expected.abstain.dtype == np.bool_
    np.testing.assert_array_equal(got.abstain, expected.abstain)
    np.testing.assert_array_equal(got.out_of_distribution, expected.out_of_distribution)
    assert 0 < expected.out_of_distribution.mean() <= 0.3
    np.testing.assert_array_equal(got.prediction_set, expected.prediction_set)
    assert 1 - expected.abstain.mean() == pytest.approx(report.calibration.thresholds["abstain"].measured["coverage"])
    assert got.prediction_set.shape == (120, 5)


@pytest.mark.parametrize(("options", "words"), [
    ({"data": (["hello"], ["a"])}, r"coverage of 0\.95"),
    ({"flags": FalseAlarm(score="distance")}, "score distance"),
    ({"taps": "last"}, "taps is 'last'"),
    ({"abstain": Risk(0.001)}, "risk at 0.001"),
])  # fmt: skip
def test_refusals_change_nothing(options: dict[str, Any], words: str, bundle: Path, data: dict[str, Path]) -> None:
    before = state(bundle)
    with pytest.raises(HydrantError, match=words):
        calibrate(bundle, **{"data": data["val"], **options})
    assert state(bundle) == before


@pytest.mark.parametrize(("change", "words"), [
    ({"schema": 2}, "schema"),
    ({"thresholds": {"abstain": {"score": "luck", "value": 1}}}, "luck"),
    ({"thresholds": {"abstain": {"score": "confidence", "value": float("nan")}}}, "NaN"),
    ({"thresholds": {"ood": {"score": "confidence", "side": "above", "value": 1}}}, "above|side"),
    ({"temperature": 0}, "temperature"),
])  # fmt: skip
def test_malformed_calibrations_are_refused(change: dict[str, Any], words: str, bundle: Path) -> None:
    content = json.loads((bundle / "calibration.json").read_text()) | change
    Bundle.open(bundle).add({"calibration.json": json.dumps(content).encode()})
    for backend in ("torch", "onnxruntime"):
        with pytest.raises(HydrantError, match=words):
            load(bundle, backend)


@pytest.mark.parametrize(("options", "words"), [
    (["--coverage", "2"], "argument --coverage: '2' is not a number above 0 and below 1"),
    (["--ood", "DATA"], "val.csv is given both as data and as ood"),
])  # fmt: skip
def test_command_line_refusals(options: list[str], words: str, bundle: Path, data: dict[str, Path]) -> None:
    done = run_cli("calibrate", bundle, "--data", data["val"], *(data["val"] if o == "DATA" else o for o in options))
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.fixture
def forked(bert_checkpoint: Path, tmp_path: Path) -> Path:
    """A bundle whose members share their first layer, without graphs."""
    ensemble = fuse(bert_checkpoint, random_plan("bert", 3, fork=1))
    save_bundle(ensemble, tmp_path / "forked", load_processor(bert_checkpoint, "text"))
    return tmp_path / "forked"


def test_ood_data_select_the_taps_of_highest_auroc(
    forked: Path, data: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OOD data select among the sets of taps, each at its own rank."""
    monkeypatch.setattr("hydrant.calib.mahalanobis.MIN_CLASSES", 5)
    alone, width = {}, Bundle.open(forked).architecture().width
    for name in ("means", "balanced", "all", "last"):
        alone[name] = calibrate(forked, data["val"], fit=data["test"], taps=name).density
    assert [density.whitening.shape[2] for density in alone.values()] == [4, 4, 4, width]
    reference = Reference(Bundle.open(forked), 32, no_progress)
    areas = {}
    for name, density in alone.items():
        runs = [reference.run(read_examples(data[split], None), {name: density})[1] for split in ("val", "ood")]
        areas[name] = area_under_roc(*(standardised(density, each[name], each["lengths"]) for each in runs))
    assert alone["last"].to_json()["form"] == "length"
    with pytest.raises(HydrantError, match="distance_form"):
        calibrate(forked, data["val"], fit=data["test"], distance_form="lengths")  # type: ignore[arg-type]
    constant = calibrate(forked, data["val"], fit=data["test"], taps="last", distance_form="constant").density
    assert (constant.to_json()["form"], len(constant.arrays())) == ("constant", 5)
    report = calibrate(forked, data["val"], data["ood"], fit=data["test"])
    chosen = report.density.fitted["chosen"]
    assert report.density.fitted["auroc"] == areas
    assert areas[chosen] == max(areas.values())
    assert report.density.taps == alone[chosen].taps
    assert all(np.array_equal(array, alone[chosen].arrays()[name]) for name, array in report.density.arrays().items())


def test_a_graph_exported_meanwhile_is_not_left_behind(
    bundle: Path, data: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibration and export each reject a change that another process makes meanwhile."""
    from hydrant.calib.decisions import fit
    from hydrant.export import exporter

    Bundle.open(bundle).add({}, remove=["model.bf16.onnx"])
    classes, write_model = fit.FITS["classification"], exporter.write_model

    def fit_late(*arguments: Any, **named: Any) -> Calibration:
        export_onnx(bundle, "bf16")
        return classes.fit(*arguments, **named)

    monkeypatch.setitem(fit.FITS, "classification", replace(classes, fit=fit_late))
    with pytest.raises(HydrantError, match=r"model\.bf16\.onnx was changed by another process"):
        calibrate(bundle, data["val"])
    assert temperature_in(bundle / "model.fp32.onnx") == temperature_in(bundle / "model.bf16.onnx") == 1
    monkeypatch.setitem(fit.FITS, "classification", classes)

    def write_late(*arguments: Any) -> Any:
        calibrate(bundle, data["val"])
        return write_model(*arguments)

    monkeypatch.setattr(exporter, "write_model", write_late)
    with pytest.raises(
        HydrantError, match=r"calibration\.json was changed by another process meanwhile; run the comma"
    ):
        export_onnx(bundle)
    temperatures = {temperature_in(bundle / f"model.{precision}.onnx") for precision in ("fp32", "fp16", "bf16")}
    assert temperatures == {np.float32(Calibration.of(Bundle.open(bundle)).temperature)}


def test_engines_of_an_earlier_graph_are_named(bundle: Path, data: dict[str, Path]) -> None:
    """Also for a graph with external weights: its digest covers both files."""
    Bundle.open(bundle).add({"model.fp16.onnx.data": b"weights"})
    for outdated in (["tensorrt-fp16", "tensorrt-fp32"], []):
        for precision in ("fp32", "fp16"):
            add_engine(bundle, (text_profile((1, 2, 4), (3, 3, 3), ("input_ids",)),), precision=precision)
        assert calibrate(bundle, data["val"]).outdated == outdated
