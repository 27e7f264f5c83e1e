"""Errors of the C++ runner: one line and exit status 2."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cpp import refused, run
from hydrant import Bundle
from hydrant.runtime.backends.backend_registry import ON_GPU
from onnx import helper
from PIL import Image
from support import many_scans, relabel

Bad = Callable[[Path], object]
ENDS = {"confidence": 0.9, "quantile": 1.0, "floor": 1.0, "factor": 1.0, "bounds": None}


def put(bundle: Path, name: str, content: bytes) -> None:
    Bundle.open(bundle).add({name: content})


def edited(name: str, edit: Callable[[dict[str, Any]], Any]) -> Bad:
    """Change a JSON file of a bundle and its digest."""

    def change(bundle: Path) -> None:
        data = json.loads((bundle / name).read_bytes())
        edit(data)
        (raw if name == "hydrant.json" else listed)(name, json.dumps(data).encode())(bundle)

    return change


def raw(name: str, content: bytes) -> Bad:
    return lambda bundle: (bundle / name).write_bytes(content)


def listed(name: str, content: bytes) -> Bad:
    return lambda bundle: put(bundle, name, content)


def linked(bundle: Path) -> None:
    (bundle / "config.json").rename(bundle.parent / "config.json")
    (bundle / "config.json").symlink_to(bundle.parent / "config.json")


def flipped(bundle: Path) -> None:
    data = bytearray((bundle / "model.fp32.onnx").read_bytes())
    data[len(data) // 2] ^= 1  # in the weights, since metadata at the end are compared first
    (bundle / "model.fp32.onnx").write_bytes(data)


def swap(name: str) -> Bad:
    entry = {"bytes": 0, "sha256": "0" * 64}
    return edited("hydrant.json", lambda manifest: manifest["files"].update({name: entry}))


def manifest(**changes: Any) -> Bad:
    return edited("hydrant.json", lambda data: data.update(changes))


def calibration(**changes: Any) -> Bad:
    return edited("calibration.json", lambda data: data.update(changes))


def labels_of(**changes: Any) -> Bad:
    """Label thresholds for five classes."""
    return calibration(labels={"temperatures": [1.0] * 5, "thresholds": [0.5] * 5, **changes})


def not_finite(bundle: Path) -> None:
    """A graph that returns NaN for the disagreement."""
    model = onnx.load(bundle / "model.fp32.onnx")
    (maker,) = (node for node in model.graph.node if "disagreement" in node.output)
    maker.output[list(maker.output).index("disagreement")] = "original"
    model.graph.node.append(helper.make_node("Sub", ["original", "original"], ["zero"]))
    model.graph.node.append(helper.make_node("Div", ["zero", "zero"], ["disagreement"]))
    put(bundle, "model.fp32.onnx", model.SerializeToString())


def config(**changes: Any) -> Bad:
    return edited("config.json", lambda data: data.update(changes))


BAD_BUNDLES: dict[str, tuple[Bad, str]] = {
    "no folder": (shutil.rmtree, "bundle"),
    "no manifest": (lambda bundle: (bundle / "hydrant.json").unlink(), "hydrant.json"),
    "no JSON": (raw("hydrant.json", b"{"), "hydrant.json is not JSON"),
    "deep": (raw("hydrant.json", b"[" * 100_000), "nested too deeply"),
    "huge": (raw("hydrant.json", b" " * (17 * 2**20)), "hydrant.json is larger"),
    "schema": (manifest(schema=2, hydrant="1.4.0"), "hydrant 1.4.0"),
    "missing key": (edited("hydrant.json", lambda data: data.pop("family")), "family"),
    "name up": (swap("a/../../x"), "stay inside its folder"),
    "name of NUL": (swap("a\0b"), "stay inside its folder"),
    "truncated": (raw("config.json", b"{"), "config.json has 1 bytes"),
    "missing": (lambda bundle: (bundle / "plan.json").unlink(), "plan.json"),
    "link": (linked, "config.json"),
    "altered graph": (flipped, "model.fp32.onnx was altered"),
    "no graph": (edited("hydrant.json", lambda data: data["files"].pop("model.fp32.onnx")), "model.fp32.onnx"),
    "no ONNX": (listed("model.fp32.onnx", b"graph"), "cannot load"),
    "another graph": (partial(relabel, target="model.fp16.onnx", members="2"), "model.fp16.onnx has members '2'"),
    "not finite": (not_finite, "disagreement"),
    "plan layers": (edited("plan.json", lambda data: data["members"][1].update(keep=[[0]])), "plan.json"),
    "calibration, newer": (calibration(schema=2), "calibration.json has schema '2'"),
    "config keys": (edited("config.json", lambda data: data.pop("layers")), "layers"),
    "config extra": (config(colour=1), "colour"),
    "task and classes": (config(task="score"), "classes"),
    "temperature": (calibration(temperature=0), "temperature"),
    "threshold side": (
        calibration(thresholds={"ood": {"score": "confidence", "side": "above", "value": 1}}), "'above'"
    ),
    "label value": (labels_of(thresholds=[2] * 5), "thresholds = '2'"),
    "labels of classes": (labels_of(), "thresholds of labels"),
    "intervals of classes": (calibration(intervals=ENDS), "intervals"),
    "conformal": (calibration(conformal={"method": "x", "alpha": 0.1, "quantile": 1}), "method"),
    "processor slipped in": (raw("processor/x.json", b"[]"), "processor/x.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BUNDLES)
def test_a_bad_bundle_is_refused_in_one_line(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    change, words = BAD_BUNDLES[name]
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    change(bundle)
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), words)


def test_an_unfinished_write_has_its_own_advice(runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    stage = bundle / ".hydrant.0123456789ab.stage"
    stage.mkdir()
    (bundle / "config.json").write_bytes(b"{}")
    (stage / "journal.json").write_text("{}")
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), f"`hydrant inspect {bundle}`")


def ones(*shape: int, kind: Any = np.int64) -> np.ndarray:
    return np.ones(shape, kind)


BAD_TEXT: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "no mask": ({"input_ids": ones(1, 2)}, "attention_mask"),
    "range": ({"input_ids": ones(1, 2) * 99, "attention_mask": ones(1, 2)}, "from 99 to 99"),
    "long": ({"input_ids": ones(1, 41), "attention_mask": ones(1, 41)}, "41 tokens"),
    "shapes": ({"input_ids": ones(1, 4), "attention_mask": ones(2, 4)}, "[2, 4]"),
    "masked": ({"input_ids": ones(2, 4), "attention_mask": ones(2, 4) * 0}, "row 0"),
    "floats": ({"input_ids": ones(2, 4, kind=np.float64), "attention_mask": ones(2, 4)}, "float32 [2, 4]"),
    "complex": ({"input_ids": ones(1, 2, kind=np.complex64)}, "'<c8'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TEXT)
def test_bad_token_ids_are_refused_in_one_line(name: str, runner: Path, golden: Path, tmp_path: Path) -> None:
    arrays, words = BAD_TEXT[name]
    np.savez(tmp_path / "x.npz", **arrays)
    refused(run(runner, golden / "bert/bundle", tmp_path / "x.npz"), words)


def test_bad_images_are_refused_in_one_line(runner: Path, golden: Path, tmp_path: Path) -> None:
    bundle, picture = golden / "vit-images/bundle", (golden / "vit-images/images/large.jpg").read_bytes()
    contents = {"empty.png": b"", "text.jpg": b"hello", "cut.jpg": picture[:3000], "scans.jpg": many_scans(200)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        refused(run(runner, bundle, tmp_path / name), f"{tmp_path / name}: ")
    Image.new("CMYK", (20, 20)).save(tmp_path / "cmyk.jpg")
    refused(run(runner, bundle, tmp_path / "cmyk.jpg"), "CMYK")
    for array, words in (
        (np.full((1, 3, 12, 12), np.nan, np.float32), "NaN"),
        (np.zeros((1, 3, 8, 8), np.float32), "[batch, 3, 12, 12]"),
        (np.zeros((2, 3), np.float32, order="F"), "Fortran"),
    ):
        np.save(tmp_path / "x.npy", array)
        refused(run(runner, bundle, tmp_path / "x.npy"), words)
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**64}, 4)}}".encode()
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    refused(run(runner, bundle, tmp_path / "x.npy"), "x.npy")


@pytest.mark.parametrize(("changes", "words"), [
    ({"do_flip": True}, "do_flip"),
    ({"size": {"shortest_edge": 19}}, "19 pixels"),
    ({"size": {"height": 2**40, "width": 12}}, "size"),
    ({"image_std": [0, 1, 1]}, "image_std"),
    ({"do_resize": False}, "150 by 200"),
])  # fmt: skip
def test_bad_image_processors_are_refused(
    changes: dict[str, Any], words: str, runner: Path, golden: Path, tmp_path: Path
) -> None:
    bundle = shutil.copytree(golden / "vit-images/bundle", tmp_path / "bundle")
    edited("processor/preprocessor_config.json", lambda data: data.update(changes))(bundle)
    refused(run(runner, bundle, golden / "vit-images/images/large.jpg"), words)


def test_pipes_are_refused_at_once(runner: Path, golden: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npz")
    refused(run(runner, golden / "bert/bundle", "--input", tmp_path / "x.npz"), str(tmp_path / "x.npz"))
    bundle = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle")
    (bundle / "calibration.json").unlink()
    os.mkfifo(bundle / "calibration.json")
    refused(run(runner, bundle, "--input", golden / "bert/inputs.npz"), "calibration.json")


def test_failing_streams_end_the_program(runner: Path, golden: Path) -> None:
    folder = os.open(golden, os.O_RDONLY)
    words = [str(runner), str(golden / "bert/bundle")]
    done = subprocess.run([*words, "-"], stdin=folder, capture_output=True, text=True, check=False)
    os.close(folder)
    refused(done, "standard input")
    words += [str(golden / "bert/inputs.npz")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, "standard output" in done.stderr) == (2, True)


@pytest.mark.parametrize(("words", "message"), [
    ((), "no input"),
    (("INPUTS", "--nonsense"), "--nonsense"),
    (("--input",), "--input"),
    (("INPUTS", "--threads", "60000"), "60000"),
    (("INPUTS", "--batch", "1"), "--profile"),
    (("--profile", "--sequence", "41"), "41"),
    (("--profile", "--seconds", "nan"), "'nan'"),
    (("INPUTS", "--backend", "openvino"), "openvino"),
    (("INPUTS", "--precision", "fp16"), "model.fp16.onnx"),
    (("--input", "a.CSV"), "a.CSV"),
    (("a text",), "tokenizer.onnx"),
])  # fmt: skip
def test_bad_options_are_refused_in_one_line(words: tuple[str, ...], message: str, runner: Path, golden: Path) -> None:
    arguments = [str(golden / "bert/inputs.npz") if word == "INPUTS" else word for word in words]
    refused(run(runner, golden / "bert/bundle", *arguments), message)


def test_backends_that_cannot_run_are_named(runner: Path, golden: Path) -> None:
    for backend in ON_GPU:
        done = run(runner, golden / "bert/bundle", golden / "bert/inputs.npz", "--backend", backend)
        if done.returncode:
            refused(done, f"backend {backend} ")
