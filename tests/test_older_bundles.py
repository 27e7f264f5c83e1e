"""Bundles that earlier versions wrote: they load, give the figures they gave, and export to the graphs they had.

``tests/bundles_0_1_0`` holds a calibrated text bundle and an image bundle, with what 0.1.0 predicted on ONNX Runtime;
``tests/bundles_0_2_0`` holds what 0.2.0 wrote: bundles of every task, and interrupted work.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from cpp import lines, run
from hydrant import Bundle, HeadPlan, Prediction, export_onnx, load, merge_parts, predict_files
from hydrant.bundle import staging
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.density_file import Density
from hydrant.bundle.manifest import MANIFEST, read_manifest
from hydrant.bundle.reports import Verification
from hydrant.bundle.signature import check_signature
from hydrant.bundle.store import ARCHITECTURE, CALIBRATION, DENSITY, PLAN, WEIGHTS
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.data.fingerprints import Fingerprint
from hydrant.engines.metadata import metadata_path, read_metadata
from hydrant.errors import BundleError
from hydrant.runtime.offline import offline_run as batch
from hydrant.runtime.offline.shard_parts import Part, manifest_of
from support import predicted
from test_precision import without_saturation

FOLDER = Path(__file__).parent / "bundles_0_1_0"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
GOLDEN = Path(__file__).parent / "bundles_0_2_0"
PREDICTED = json.loads((GOLDEN / "expected.json").read_text())
WHOLE = list(PREDICTED)
DECLARED = [name for name in WHOLE if not name.startswith("traced")]
INTERRUPTED = ("finished", "undone")


def inputs(kind: str) -> list[Any]:
    return EXPECTED["text"]["inputs"] if kind == "text" else list(np.load(FOLDER / "images.npy"))


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("kind", ["text", "image"])
def test_older_bundles_predict_what_they_predicted(kind: str, backend: str) -> None:
    expected = EXPECTED[kind]
    prediction = predicted(FOLDER / kind, inputs(kind), backend)
    for name in ("probabilities", "predictive_entropy", "expected_entropy", "mutual_information"):
        np.testing.assert_allclose(getattr(prediction, name), expected[name], atol=1e-6, err_msg=name)
    for name in ("label", "disagreement", "abstain", "prediction_set"):
        if name in expected:
            assert np.array_equal(
                getattr(prediction, name), np.asarray(expected[name], getattr(prediction, name).dtype)
            ), name


@pytest.mark.parametrize("kind", ["text", "image"])
def test_the_runner_in_cpp_predicts_what_they_predicted(kind: str, runner: Path, tmp_path: Path) -> None:
    expected, given = EXPECTED[kind], FOLDER / "images.npy"
    if kind == "text":
        processor, given = Bundle.open(FOLDER / kind).processor_for("test it"), tmp_path / "x.npz"
        np.savez(given, **processor.collate(processor.encode(inputs(kind))))
    rows = lines(run(runner, FOLDER / kind, given, "--probabilities"))
    labels = Bundle.open(FOLDER / kind).labels
    assert [row["label"] for row in rows] == [labels[label] for label in expected["label"]]
    for name in ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement"):
        np.testing.assert_allclose([row[name] for row in rows], expected[name], atol=1e-6, err_msg=name)
    probabilities = [list(row["probabilities"].values()) for row in rows]
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-6)
    assert [row.get("abstain") for row in rows] == expected.get("abstain", [None] * len(rows))


@pytest.mark.parametrize("kind", ["text", "image"])
def test_older_bundles_export_to_a_graph_that_gives_what_theirs_gave(kind: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FOLDER / kind, tmp_path / kind)
    before = onnx.load(str(folder / "model.fp32.onnx"))
    expected = predicted(folder, inputs(kind), "onnxruntime")
    assert expected.energy is None, "0.1.0 knew no energy"
    export_onnx(folder)
    after = onnx.load(str(Bundle.open(folder).file("model.fp32.onnx")))
    assert [item.key for item in before.metadata_props] == [item.key for item in after.metadata_props]
    prediction = predicted(folder, inputs(kind), "onnxruntime")
    assert prediction.energy is not None
    for name, array in expected.arrays.items():
        np.testing.assert_allclose(getattr(prediction, name), array, atol=1e-6, err_msg=name)


def raw_inputs(name: str) -> Any:
    """Inputs of a bundle of 0.2.0: texts, lists of words, or images."""
    values = PREDICTED[name]["inputs"]
    return list(np.asarray(values, np.uint8)) if name == "signed-image" else values


def copied(name: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def assert_fields(prediction: Prediction, expected: dict[str, Any], tolerance: float) -> None:
    """All fields, but for the members' own, which not every backend gives."""
    arrays = prediction.arrays
    assert set(expected) - set(arrays) <= {"member_probabilities", "member_scores"}
    assert set(arrays) <= set(expected)
    for name, array in arrays.items():
        wanted = np.asarray(expected[name])
        if array.dtype.kind == "f":
            np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(array, wanted, err_msg=name)


def assert_rows(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert list(map(list, found)) == list(map(list, expected)), "keys in their order"
    for row, wanted in zip(map(flat, found), map(flat, expected), strict=True):
        assert row == pytest.approx(wanted, abs=1e-4)


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """JSON data as one dict of its leaves."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    leaves = {key: leaf for at, each in entries for key, leaf in flat(each, f"{name}.{at}").items()}
    return leaves if isinstance(value, dict | list) else {name: value}


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
@pytest.mark.parametrize("name", WHOLE)
def test_bundles_of_0_2_0_predict_what_they_predicted(name: str, backend: str) -> None:
    with load(GOLDEN / name, backend) as predictor:
        prediction = predictor.predict(raw_inputs(name))
        rows = predictor.rows(prediction, probabilities=True)
    assert_fields(prediction, PREDICTED[name]["fp32"], 1e-4 if backend == "onnxruntime" else 1e-5)
    assert_rows(rows, PREDICTED[name]["rows"])


@without_saturation
def test_the_int8_graph_of_0_2_0_predicts_what_it_predicted() -> None:
    prediction = predicted(
        GOLDEN / "declared-classification", raw_inputs("declared-classification"), "onnxruntime", precision="int8"
    )
    assert_fields(prediction, PREDICTED["declared-classification"]["int8"], 2e-2)  # roundings differ between CPUs


@pytest.mark.parametrize("name", [name for name in DECLARED if "tokens" not in name])
def test_the_runner_in_cpp_gives_the_rows_of_0_2_0(name: str, runner: Path, tmp_path: Path) -> None:
    processor = Bundle.open(GOLDEN / name).processor_for("test it")
    np.savez(tmp_path / "x.npz", **processor.collate(processor.encode(raw_inputs(name))))
    rows = lines(run(runner, GOLDEN / name, tmp_path / "x.npz", "--probabilities"))
    assert [row.pop("input") for row in rows] == [f"{tmp_path / 'x.npz'}, row {place}" for place in range(len(rows))]
    assert_rows(rows, PREDICTED[name]["rows"])


@pytest.mark.parametrize("name", DECLARED)
def test_bundles_of_0_2_0_export_to_the_graphs_that_they_had(name: str, tmp_path: Path) -> None:
    before = onnx.load(GOLDEN / name / "model.fp32.onnx")
    after = onnx.load(export_onnx(copied(name, tmp_path)))
    assert [item.key for item in before.metadata_props] == [item.key for item in after.metadata_props]
    assert before.graph == without_logits(after.graph)


def without_logits(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The graph as 0.2.0 wrote it: without the output ``logits``, for classes an inner value of another name."""
    del graph.output[[output.name for output in graph.output].index("logits")]
    inner = "probabilities.entropy.log"
    if any("logits" in node.input for node in graph.node):
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [inner if name == "logits" else name for name in names]
            node.name = inner if node.name == "logits" else node.name
    own = [f"logits{end}" for end in ("", ".probabilities", ".without", ".probabilities.log", ".without.log")]
    own += [f"const.float32..{value!s}" for value in np.float32([1, 1 - 2**-24])]
    for entries in (graph.node, graph.initializer):
        for entry in [entry for entry in entries if entry.name in own]:
            entries.remove(entry)
    return graph


def test_the_signature_of_0_2_0_holds(tmp_path: Path) -> None:
    folder = copied("signed-image", tmp_path)
    check_signature(folder, GOLDEN / "maker.pub")
    (folder / "processor/preprocessor_config.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match="signed-image"):
        check_signature(folder, GOLDEN / "maker.pub")


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_write_of_0_2_0_is_finished_or_undone(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    (stage,) = folder.glob(".hydrant.*.stage")
    bundle = Bundle.open(folder)
    assert not stage.exists()
    for file in bundle.manifest["files"]:
        bundle.file(file)
    assert bundle.has("reports/note.txt") is (folder / "reports/note.txt").exists() is (name == "finished")
    assert Calibration.of(bundle).temperature == (2.0 if name == "finished" else 1.0)


def take_up(part: int, folder: Path) -> list[int]:
    """Run a part of the batch prediction of 0.2.0 again: the chunks that were predicted."""
    predicted = []
    with pytest.MonkeyPatch.context() as patch, load(GOLDEN / "declared-classification", "torch") as predictor:
        write = batch.write_atomically
        patch.setattr(batch, "__version__", "0.2.0")  # a run goes on with the version that began it
        patch.setattr(
            batch, "write_atomically", lambda path, lines: (predicted.append(int(path.stem[-6:])), write(path, lines))
        )
        predict_files(predictor, GOLDEN / "texts.jsonl", folder / f"{part}.jsonl", shard=f"{part}/3", chunk=4)
    return predicted


def test_parts_of_0_2_0_are_taken_up_and_merged(tmp_path: Path) -> None:
    parts = copied("parts", tmp_path)
    assert take_up(1, parts) == [], "the part is there"
    assert take_up(3, parts) == [1], "the first of two chunks is there"
    assert merge_parts([parts / f"{part}.jsonl" for part in (3, 1, 2)], tmp_path / "whole.jsonl")
    with load(GOLDEN / "declared-classification", "torch") as predictor:
        texts = [json.loads(line)["text"] for line in (GOLDEN / "texts.jsonl").read_text().splitlines()]
        rows = predictor.rows(predictor.predict(texts))
    merged = [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert_rows([{key: row[key] for key in rows[0]} for row in merged], rows)


@pytest.mark.parametrize("name", [*WHOLE, *INTERRUPTED])
def test_the_files_of_0_2_0_are_written_as_they_were_read(name: str, tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    if name in INTERRUPTED:
        (stage,) = folder.glob(".hydrant.*.stage")
        content = (stage / staging.JOURNAL).read_bytes()
        staging._write(stage, msgspec.json.decode(content, type=staging.Entry))
        assert (stage / staging.JOURNAL).read_bytes() == content
    bundle = Bundle.open(folder)
    assert to_json_bytes(read_manifest(folder)) == (folder / MANIFEST).read_bytes()
    assert json.loads(to_json_bytes(bundle.any_architecture().to_json())) == bundle.read_json(ARCHITECTURE)
    calibration = Calibration.of(bundle)
    if calibration.fitted:
        assert to_json_bytes(calibration.to_json()) == bundle.read(CALIBRATION)
    else:  # fusing writes a shorter form
        assert calibration.to_json() == {"conformal": None, **bundle.read_json(CALIBRATION)}
    HeadPlan.load(folder / PLAN).save(tmp_path / PLAN)
    assert (tmp_path / PLAN).read_bytes() == bundle.read(PLAN)
    if (density := Density.of(bundle)) is not None:
        assert density.to_bytes(bundle.digests()[WEIGHTS]) == bundle.read(DENSITY)
    for stored in fingerprints_of(bundle):
        fingerprint = Fingerprint.from_json(stored)
        assert fingerprint.to_json() == stored


def fingerprints_of(bundle: Bundle) -> list[dict[str, Any]]:
    """Fingerprints of the data that the plan and the calibration were made on."""
    facts = [bundle.plan().provenance, Calibration.of(bundle).fitted or {}]
    return [each for about in facts for each in about.get("fingerprints", {}).values()]


def test_the_distance_the_engine_and_the_verification_of_0_2_0_are_read() -> None:
    assert Density.of(Bundle.open(GOLDEN / "declared-classification")) is not None
    verified = Verification.of(Bundle.open(GOLDEN / "declared-classification"))
    assert (verified.passed, verified.failed) == (("onnxruntime fp32",), ())
    bundle = Bundle.open(GOLDEN / "declared-score")
    assert to_json_bytes(read_metadata(bundle, "small").to_json()) == bundle.read(metadata_path("small"))
    assert len(fingerprints_of(bundle)) == 3


def test_the_facts_of_parts_of_0_2_0_are_written_as_they_were_read(tmp_path: Path) -> None:
    parts = copied("parts", tmp_path)
    for path in (parts / "1.jsonl", parts / "2.jsonl"):
        content = manifest_of(path).read_bytes()
        Part.load(path).save()
        assert manifest_of(path).read_bytes() == content
