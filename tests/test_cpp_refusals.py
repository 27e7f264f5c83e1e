"""What the C++ runner must refuse, each in one line and with exit status 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cpp import refused, run
from hydrant import Bundle
from hydrant.runtime.backends.registry import ON_GPU
from onnx import helper
from PIL import Image
from support import many_scans

Bad = Callable[[Path], list[str]]
ENDS = {"confidence": 0.9, "quantile": 1.0, "floor": 1.0, "factor": 1.0, "bounds": None}


def put(bundle: Path, name: str, content: bytes) -> None:
    Bundle.open(bundle).add({name: content})


def edited(name: str, edit: Callable[[dict[str, Any]], Any]) -> Bad:
    """A bundle one of whose JSON files was changed, digests and all."""

    def change(bundle: Path) -> list[str]:
        data = json.loads((bundle / name).read_bytes())
        edit(data)
        content = json.dumps(data).encode()
        if name == "hydrant.json":
            (bundle / name).write_bytes(content)
        else:
            put(bundle, name, content)
        return []

    return change


def raw(name: str, content: bytes) -> Bad:
    def change(bundle: Path) -> list[str]:
        (bundle / name).write_bytes(content)
        return []

    return change


def listed(name: str, content: bytes) -> Bad:
    def change(bundle: Path) -> list[str]:
        put(bundle, name, content)
        return []

    return change


def linked(bundle: Path) -> list[str]:
    (bundle / "config.json").rename(bundle.parent / "config.json")
    (bundle / "config.json").symlink_to(bundle.parent / "config.json")
    return []


def flipped(bundle: Path) -> list[str]:
    data = bytearray((bundle / "model.fp32.onnx").read_bytes())
    data[len(data) // 2] ^= 1  # of the weights: metadata at the end are compared first
    (bundle / "model.fp32.onnx").write_bytes(data)
    return []


def swap(name: str) -> Bad:
    entry = {"bytes": 0, "sha256": "0" * 64}
    return edited("hydrant.json", lambda manifest: manifest["files"].update({name: entry}))


def manifest(**changes: Any) -> Bad:
    return edited("hydrant.json", lambda data: data.update(changes))


def calibration(**changes: Any) -> Bad:
    return edited("calibration.json", lambda data: data.update(changes))


def labels_of(**changes: Any) -> Bad:
    """Thresholds of labels in a bundle of five classes."""
    return calibration(labels={"temperatures": [1.0] * 5, "thresholds": [0.5] * 5, **changes})


def graph(file: str = "model.fp32.onnx", **metadata: str) -> Bad:
    """A graph that says something else of itself."""

    def change(bundle: Path) -> list[str]:
        model = onnx.load(bundle / "model.fp32.onnx")
        facts = {entry.key: entry.value for entry in model.metadata_props}
        helper.set_model_props(model, facts | {f"hydrant.{name}": value for name, value in metadata.items()})
        put(bundle, file, model.SerializeToString())
        return []

    return change


def not_finite(bundle: Path) -> list[str]:
    """A graph that gives NaN for the disagreement."""
    model = onnx.load(bundle / "model.fp32.onnx")
    (maker,) = (node for node in model.graph.node if "disagreement" in node.output)
    maker.output[list(maker.output).index("disagreement")] = "given"
    model.graph.node.append(helper.make_node("Sub", ["given", "given"], ["nothing"]))
    model.graph.node.append(helper.make_node("Div", ["nothing", "nothing"], ["disagreement"]))
    put(bundle, "model.fp32.onnx", model.SerializeToString())
    return []


def config(**changes: Any) -> Bad:
    return edited("config.json", lambda data: data.update(changes))


BAD_BUNDLES: dict[str, tuple[Bad, str]] = {
    "no folder": (lambda bundle: [shutil.rmtree(bundle)][:0], "is not a folder; expected a bundle"),
    "no manifest": (lambda bundle: [(bundle / "hydrant.json").unlink()][:0], "holds no hydrant.json"),
    "no JSON": (raw("hydrant.json", b"{"), "hydrant.json is not JSON"),
    "no UTF-8": (raw("hydrant.json", b"\xff\xfe"), "hydrant.json is not JSON"),
    "deep": (raw("hydrant.json", b"[" * 100_000), "is not JSON (nested too deeply)"),
    "huge number": (raw("hydrant.json", b"9" * 5000), "hydrant.json is not JSON"),
    "huge": (raw("hydrant.json", b" " * (17 * 2**20)), "is larger than 16777216 bytes"),
    "a list": (raw("hydrant.json", b"[]"), "is a JSON array; expected an object"),
    "schema": (manifest(schema=2, hydrant="1.4.0"), "hydrant 1.4.0 wrote it: build the C++ runner of hydrant 1.4.0"),
    "schema, no version": (manifest(schema=2, hydrant="1 0"), "a newer hydrant wrote it: build the newest"),
    "schema true": (manifest(schema=True), "has schema 'true'"),
    "family": (manifest(family=3), "has family = '3'"),
    "members": (manifest(members=0), "has members = '0'; expected a number"),
    "members true": (manifest(members=True), "has members = 'true'"),
    "members huge": (manifest(members=2**80), "has members = "),
    "labels": (manifest(labels=[]), "expected a list of names, one for each output"),
    "label kind": (manifest(labels=["one", 2]), "expected a list of names, one for each output"),
    "one label": (manifest(labels=["one"]), "has 1 labels for 5 classes"),
    "label twice": (manifest(labels=["a", "b", "a"]), "has labels a, b, a; expected each name once"),
    "label count": (manifest(labels=["a", "b"]), "has 2 labels for 5 classes"),
    "files": (manifest(files=[]), "has files = '[]'"),
    "fusion": (manifest(fusion={"checkpoints": 0}), "expected checkpoints, separate parts"),
    "adapted": (manifest(fusion={"adapted": {"layers.0.mlp.up": {"rank": 0}}}), "and forms of updates"),
    "long names": (manifest(labels=["x" * 9**6] * 2), f"has labels {'x' * 59}…, {'x' * 59}…; expected"),
    **{
        f"name {name!r}": (swap(name), "a bundle's files must stay inside its folder")
        for name in ("../x", "a/../../x", "/etc/passwd", "a\\b", "C:x", "", "./a", "a//b", "a/", "a/..", "a\0b")
    },
    "no size": (edited("hydrant.json", lambda data: data["files"]["plan.json"].pop("bytes")), "without its size"),
    "negative size": (
        edited("hydrant.json", lambda data: data["files"]["plan.json"].update(bytes=-1)), "without its size"
    ),
    "short digest": (
        edited("hydrant.json", lambda data: data["files"]["plan.json"].update(sha256="0" * 63)), "without its size"
    ),
    "truncated": (raw("config.json", b"{"), "config.json has 1 bytes, but the manifest says"),
    "missing": (lambda bundle: [(bundle / "plan.json").unlink()][:0], "plan.json is listed in hydrant.json but is not"),
    "link": (linked, "config.json is listed in hydrant.json but is not a file there"),
    "altered graph": (flipped, "model.fp32.onnx was altered: its SHA-256 is"),
    "no graph": (
        edited("hydrant.json", lambda data: data["files"].pop("model.fp32.onnx")), "has no model.fp32.onnx; make it"
    ),
    "no ONNX": (listed("model.fp32.onnx", b"graph"), "cannot load"),
    "graph members": (graph(members="2"), "has members '2', but hydrant.json says '3': they are of different bundles"),
    "graph labels": (graph(labels='["a", "LABEL_1", "LABEL_2", "LABEL_3", "LABEL_4"]'), "has labels 'a', but hydrant"),
    "graph label count": (graph(labels='["a"]'), "has labels '[\"a\"]', but hydrant.json says '[\"LABEL_0\""),
    "graph family": (graph(family="vit"), "has family 'vit', but hydrant.json says 'bert'"),
    "graph weights": (graph(weights_sha256="0"), "has weights sha256 '0', but hydrant.json says"),
    "graph temperature": (graph(temperature="1.0"), "has temperature '1.0', but calibration.json says '0.9'"),
    "graph thresholds": (graph(thresholds="{}"), "has thresholds '{}', but calibration.json says"),
    "graph label decisions": (
        graph(label_decisions='{"temperatures": 5, "thresholds": [1]}'), "has label decisions '{\"temp"
    ),
    "another graph": (graph("model.fp16.onnx", members="2"), "model.fp16.onnx has members '2', but hydrant.json says"),
    "not finite": (not_finite, "backend onnxruntime gave values of disagreement that are not finite; check the inputs"),
    "graph sets": (graph(conformal="nothing"), "has conformal '"),
    "plan": (listed("plan.json", b'{"schema": 1}'), "plan.json is no head plan"),
    "plan, no schema": (listed("plan.json", b"{}"), "plan.json has schema 'null'; this hydrant reads schema 1; make"),
    "plan, newer": (
        edited("plan.json", lambda data: data.update(schema=2)),
        "plan.json has schema '2'; this hydrant reads schema 1; a newer hydrant wrote it: build the newest C++ runner",
    ),
    "calibration, newer": (
        calibration(schema=2),
        "calibration.json has schema '2'; this hydrant reads schema 1; a newer hydrant wrote it: build the newest C++ "
        "runner, or calibrate again",
    ),
    "calibration, older": (calibration(schema=0), "has schema '0'; this hydrant reads schema 1; make it again"),
    "calibration, true": (calibration(schema=True), "calibration.json has schema 'true'"),
    "traced": (config(traced=1), "the bundle was traced, and this library runs families that hydrant declares"),
    "plan layers": (edited("plan.json", lambda data: data["members"][1].update(keep=[[0]])), "expected 3 lists"),
    "config keys": (edited("config.json", lambda data: data.pop("layers")), "does not describe an architecture"),
    "config kind": (config(layers="3"), "has layers = '3'; expected a whole number"),
    "config zero": (config(layers=0), "has layers = '0'"),
    "config tokens": (config(task="tokens", pooling="x"), "has pooling = 'x'; expected none, tanh, relu, gelu of task"),
    "config modality": (config(modality="sound"), "has modality = 'sound'"),
    "temperature": (calibration(temperature=0), "has temperature '0'; expected a positive finite number"),
    "temperature huge": (listed("calibration.json", b'{"temperature": 1' + b"0" * 400 + b"}"), "calibration.json"),
    "temperature NaN": (listed("calibration.json", b'{"temperature": NaN}'), "calibration.json is not JSON"),
    "calibration": (listed("calibration.json", b"[]"), "calibration.json is a JSON array"),
    "thresholds": (calibration(thresholds=[]), "thresholds = '[]', which is no JSON object"),
    "threshold name": (calibration(thresholds={"x": {}}), "not an object under 'abstain' or 'ood'"),
    "threshold score": (calibration(thresholds={"ood": {"score": "x", "value": 1}}), "a threshold on 'x'"),
    "threshold side": (
        calibration(thresholds={"ood": {"score": "confidence", "side": "above", "value": 1}}), "with side 'above'"
    ),
    "threshold value": (
        calibration(thresholds={"ood": {"score": "confidence", "value": "1"}}), "value = '1', which is no finite number"
    ),
    "threshold target": (
        calibration(thresholds={"ood": {"score": "confidence", "value": 1, "target": {"x": "y"}}}),
        "'x' = 'y', which is no finite number in range; calibrate again",
    ),
    "reference": (calibration(reference=5), "reference = '5', which is no JSON object; calibrate again"),
    "task": (config(task="tagging"), "this hydrant knows classification, score, tokens, multi_label"),
    "task and classes": (config(task="score"), "expected 1 for a score, and otherwise 2 or more"),
    "intervals": (calibration(intervals={**ENDS, "confidence": 2}), "intervals of confidence '2', which is no share"),
    "label thresholds": (labels_of(thresholds=[0.5]), "thresholds = '[0.5]', which are not 5 numbers, one for each"),
    "label value": (labels_of(thresholds=[2] * 5), "thresholds = '2', which is no finite number in range"),
    "labels of classes": (labels_of(), "gives classes, but its calibration.json has thresholds of labels"),
    "intervals of classes": (calibration(intervals=ENDS), "gives classes, but its calibration.json has intervals"),
    "conformal": (calibration(conformal={"method": "x", "alpha": 0.1, "quantile": 1}), "conformal method 'x'"),
    "processor altered": (raw("processor/tokenizer.json", b"[]"), "tokenizer.json has 2 bytes"),
    "processor slipped in": (raw("processor/x.json", b"[]"), "holds processor/x.json, which"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BUNDLES)
def test_a_bad_bundle_is_refused_in_one_line(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    change, words = BAD_BUNDLES[name]
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    change(bundle)
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), words)


@pytest.mark.parametrize("name", ["config.json", "model.fp32.onnx", "processor/new.json"])
def test_a_write_that_goes_on_is_no_damage(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    stage = bundle / ".hydrant.0123456789ab.stage"
    stage.mkdir()
    (bundle / name).write_bytes(b"{}")
    words = (
        "a write into the bundle is going on, or was interrupted; try again, and if that does not help run "
        f"`hydrant inspect {bundle}`, which finishes it"
    )
    done = run(runner, bundle, "--input", golden / "bert/inputs.npz")
    assert done.returncode == 2
    assert words not in done.stderr, "there is no journal"
    (stage / "journal.json").write_text("{}")
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), words)


def ones(*shape: int, kind: Any = np.int64) -> np.ndarray:
    return np.ones(shape, kind)


BAD_TEXT: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "names": ({"ids": ones(1, 2)}, "tensors are named ids; expected attention_mask, input_ids, token_type_ids"),
    "no mask": ({"input_ids": ones(1, 2)}, "tensors are named input_ids; expected"),
    "range": ({"input_ids": ones(1, 2) * 99, "attention_mask": ones(1, 2)}, "values from 99 to 99; expected 0 to 98"),
    "negative": ({"input_ids": -ones(1, 2), "attention_mask": ones(1, 2)}, "values from -1 to -1"),
    "long": ({"input_ids": ones(1, 41), "attention_mask": ones(1, 41)}, "has 41 tokens; this model reads at most 40"),
    "shapes": ({"input_ids": ones(1, 4), "attention_mask": ones(2, 4)}, "shape [2, 4]; expected [1, 4]"),
    "masked": ({"input_ids": ones(2, 4), "attention_mask": ones(2, 4) * 0}, "attention_mask masks all of row 0"),
    "floats": ({"input_ids": ones(2, 4, kind=np.float64), "attention_mask": ones(2, 4)}, "input_ids is float32 [2, 4]"),
    "rank": ({"input_ids": ones(4), "attention_mask": ones(4)}, "input_ids is int64 [4]; expected int64"),
    "no tokens": ({"input_ids": ones(2, 0), "attention_mask": ones(2, 0)}, "expected int64 [batch, sequence]"),
    "no rows": ({"input_ids": ones(0, 4), "attention_mask": ones(0, 4)}, "holds no rows; expected at least one"),
    "complex": ({"input_ids": ones(1, 2, kind=np.complex64)}, "its type is '<c8'"),
    "objects": ({"input_ids": np.array([["a", "b"]])}, "its type is '<U1'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_token_ids_are_refused_in_one_line(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    arrays, words = BAD_TEXT[name]
    np.savez(tmp_path / "x.npz", **arrays)
    refused(run(runner, golden / "bert/bundle", tmp_path / "x.npz"), words)


def test_bad_images_are_refused_in_one_line(runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle, picture = golden / "vit-images/bundle", (golden / "vit-images/images/large.jpg").read_bytes()
    contents = {"broken.png": b"\x89PNG not really", "empty.png": b"", "text.jpg": b"hello", "cut.jpg": picture[:3000]}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(run(runner, bundle, tmp_path / name), f"cannot read image {tmp_path / name}: ")
    refused(run(runner, bundle, tmp_path / "absent.png"), "absent.png: No such file")
    (tmp_path / "scans.jpg").write_bytes(many_scans(200))
    refused(run(runner, bundle, tmp_path / "scans.jpg"), "it has more than 100 scans")
    Image.new("CMYK", (20, 20)).save(tmp_path / "cmyk.jpg")
    refused(run(runner, bundle, tmp_path / "cmyk.jpg"), "its colours are CMYK; convert it to RGB first")
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "deep.png")
    refused(run(runner, bundle, tmp_path / "deep.png"), "16 bits per channel; expected 8 bits")
    for array, words in (
        (np.full((1, 3, 12, 12), np.nan, np.float32), "pixel_values holds NaN"),
        (np.zeros((1, 3, 8, 8), np.float32), "expected float32 [batch, 3, 12, 12]"),
        (np.zeros((4, 4, 4, 4, 4), np.uint8), "expected uint8 [height, width] or [height, width, 3]"),
        (np.zeros((3, 12, 12), np.uint8), "[3, 12, 12]: one image with its channels first, or 3 grey ones"),
        (np.zeros((3, 4), np.int16), "pixel_values is int64 [3, 4]"),
        (np.zeros((2, 3), np.float32, order="F"), "it is in Fortran order"),
        (np.zeros(2, ">f4"), "its type is '>f4'"),
    ):
        np.save(tmp_path / "x.npy", array)
        refused(run(runner, bundle, tmp_path / "x.npy"), words)
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}")
    refused(run(runner, bundle, tmp_path / "x.npy"), "cannot read")
    for size in (2**29 + 1, 2**62, 2**64):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({size}, 4)}}".encode()
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        refused(run(runner, bundle, tmp_path / "x.npy"), "cannot read")
    refused(
        run(runner, golden / "vit/bundle", golden / "vit-images/images/first.png"),
        "has no processor; give ready tensors",
    )
    refused(
        run(runner, golden / "bert/bundle", golden / "vit-images/images/first.png"),
        "is a file; did you mean --input",
    )


def test_bad_image_processors_are_refused_in_one_line(runner: Path, golden: Path, tmp_path: Path) -> None:
    name = "processor/preprocessor_config.json"
    for number, (changes, words) in enumerate([
        ({"do_flip": True}, "asks for do_flip, which hydrant does not do"),
        ({"crop_pct": 0.9}, "asks for crop_pct, which hydrant does not do"),
        ({"image_processor_type": "LevitImageProcessor"}, "is of a 'LevitImageProcessor', which does, or may do"),
        ({"feature_extractor_type": 3}, "is of a '3', which does, or may do, more than its keys say"),
        ({"size": {"height": 8, "width": 8}}, "makes images of 8 by 8 pixels, but the model reads 12 by 12"),
        ({"size": {"shortest_edge": 19}}, "makes images whose shorter side has 19 pixels, never one of 12 by 12"),
        ({"size": "large"}, "lacks or garbles size = 'large'"),
        ({"size": {"height": 0, "width": 12}}, "lacks or garbles size"),
        ({"size": {"height": 2**40, "width": 12}}, "lacks or garbles size"),
        ({"resample": 9}, "lacks or garbles resample = '9'"),
        ({"image_std": [0, 1, 1]}, "lacks or garbles image_std"),
        ({"image_mean": [1, 1]}, "lacks or garbles image_mean"),
        ({"image_mean": [1e300, 0, 0]}, "lacks or garbles image_mean"),
        ({"image_std": 1e300}, "lacks or garbles image_std"),
        ({"rescale_factor": 1e38}, "lacks or garbles rescale_factor"),
        ({"do_resize": False}, "becomes an image of 150 by 200 pixels; the model reads 12 by 12"),
    ]):  # fmt: skip
        bundle = shutil.copytree(golden / "vit-images/bundle", tmp_path / f"bundle{number}")
        edited(name, lambda data, changes=changes: data.update(changes))(bundle)
        refused(run(runner, bundle, golden / "vit-images/images/large.jpg"), words)
    names = [golden / f"vit-images/images/{name}" for name in ("first.png", "first.png", "large.jpg")]
    done = run(runner, bundle, *names, "--batch-size", 1)
    assert done.returncode == 2
    assert done.stderr.startswith("hydrant-run: error: input 2 becomes an image of 150 by 200 pixels")


def test_what_is_no_regular_file_is_refused_at_once(runner: Path, golden: Path, tmp_path: Path) -> None:
    words = "it is no regular file but a folder, pipe or device"
    for model, name in (("bert", "x.npz"), ("bert", "x.npy"), ("vit-images", "x.png")):
        bundle, path = golden / model / "bundle", tmp_path / name
        for make in (path.mkdir, lambda path=path: os.mkfifo(path), lambda path=path: path.symlink_to("/dev/zero")):
            make()
            refused(run(runner, bundle, "--input", path), f"{path}: {words}")
            assert path.exists(), "it was replaced"
            path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", ["hydrant.json", "model.fp32.onnx", "calibration.json", "processor/extra"])
def test_what_is_no_regular_file_is_no_file_of_a_bundle(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    (bundle / name).unlink(missing_ok=True)
    os.mkfifo(bundle / name)
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), str(bundle))


def test_a_failure_to_read_is_no_end_of_the_lines(runner: Path, golden: Path) -> None:
    folder = os.open(golden, os.O_RDONLY)
    words = [str(runner), str(golden / "bert/bundle"), "-"]
    done = subprocess.run(words, stdin=folder, capture_output=True, text=True, check=False)
    os.close(folder)
    refused(done, "cannot read all of standard input; what was predicted is of the lines before")


def test_output_that_cannot_be_written_ends_the_work(runner: Path, golden: Path) -> None:
    words = [str(runner), str(golden / "bert/bundle"), str(golden / "bert/inputs.npz"), "absent.npz"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2, "hydrant-run: error: cannot write to standard output; is the disk full?\n"
    )  # fmt: skip


def test_bad_options_are_refused_in_one_line(runner: Path, golden: Path) -> None:
    bundle, inputs = golden / "bert/bundle", golden / "bert/inputs.npz"
    for words, message in (
        ([], "no bundle was given"),
        (["", bundle, "--input", inputs], "no bundle was given"),
        ([bundle], "no input was given"),
        ([bundle, inputs, "--nonsense"], "option '--nonsense' is unknown"),
        ([bundle, "--input"], "--input lacks its value; expected --input FILE"),
        ([bundle, inputs, "--json=1"], "--json takes no value"),
        ([bundle, inputs, "--threads", "0"], "--threads is '0'; expected a whole number from 1"),
        ([bundle, inputs, "--threads", "60000"], "threads is 60000; expected 1 to"),
        ([bundle, inputs, "--threads", "two"], "--threads is 'two'"),
        ([bundle, inputs, "--batch-size", "0"], "--batch-size is '0'"),
        ([bundle, inputs, "--batch", "1"], "--batch goes with --profile"),
        ([bundle, inputs, "--profile"], "--profile measures synthetic inputs"),
        ([bundle, "--profile", "--batch", "1,,2"], "--batch is ''"),
        ([bundle, "--profile", "--batch", "1,5000"], "--batch is '5000'; expected a whole number from 1 to 4096"),
        ([bundle, "--profile", "--sequence", "41"], "sequence is 41; expected 1 to 40"),
        ([bundle, "--profile", "--seconds", "-1"], "--seconds is '-1'"),
        ([bundle, "--profile", "--seconds", "nan"], "--seconds is 'nan'"),
        ([bundle, "--profile", "--seconds", "1e5"], "--seconds is '1e5'; expected a number of seconds from 0 to 86400"),
        ([bundle, "--profile", "--probabilities"], "--probabilities goes with inputs, not with --profile; leave it"),
        ([bundle, "--profile", "--aggregation", "mean"], "--aggregation goes with inputs, not with --profile"),
        ([bundle, "--profile", "--batch-size", "8"], "--batch-size goes with inputs, not with --profile"),
        ([golden / "vit/bundle", "--profile", "--sequence", "4"], "an image always has 10 tokens here"),
        ([bundle, inputs, "--backend", "tensorflow"], "backend 'tensorflow' is unknown; expected auto, tensorrt, "),
        ([bundle, inputs, "--backend", "openvino"], "backend openvino runs through Python only"),
        ([bundle, inputs, "--backend", "onnxruntime", "--precision", "bf16"], "does not run precision 'bf16'"),
        ([bundle, inputs, "--precision", "fp16"], "has no model.fp16.onnx; make it with `hydrant export"),
        ([bundle, "absent.npz"], "cannot read absent.npz: No such file"),
        ([bundle, bundle / "hydrant.json"], "is a file; did you mean --input"),
        ([bundle, bundle], "is a folder; expected a text, or --input and a file with a text on each line"),
        ([bundle, "--input", "a.CSV"], "a.CSV is a table; expected a text on each line"),
        ([bundle, "--input", "a.Conll"], "a.Conll has a word on each line; expected a text on each line"),
        ([bundle, "--", "--nonsense"], "has no tokenizer.onnx, so it reads token ids"),
        ([bundle, "a text"], "has no tokenizer.onnx, so it reads token ids; make it with `hydrant export"),
        ([bundle, golden / "vit/inputs.npz"], "tensors are named pixel_values; expected attention_mask"),
    ):
        refused(run(runner, *words), message)
    for backend in ON_GPU:
        done = run(runner, bundle, inputs, "--backend", backend)
        if done.returncode:
            refused(done, f"backend {backend} ")
