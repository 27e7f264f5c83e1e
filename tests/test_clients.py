"""Third-party clients, unmodified and in a separate environment, with ``hydrant serve``."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from serve_support import command, make_bundle, picture

HERE = Path(__file__).parent
OUTPUTS = ["label", "label_index", "probabilities", "confidence", "predictive_entropy", "mutual_information", "energy"]
TEXTS = ["hello world", "transfer money today what is the weather", "the Ünknown", "what is hello " * 9]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def models(bert_checkpoint: Path, vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, source, kind in (("texts", bert_checkpoint, "text"), ("images", vit_checkpoint, "image")):
        make_bundle(source, folder / name, kind)
    return folder


def expected(bundle: Path, inputs: Any) -> dict[str, Any]:
    with hydrant.load(bundle, threads=1) as predictor:
        prediction = predictor.predict(inputs, batch_size=1)
        arrays = {name: getattr(prediction, name) for name in OUTPUTS if not name.startswith("label")}
        label = [predictor.labels[index] for index in prediction.label]
        lists = {name: array.tolist() for name, array in arrays.items()}
        return {**lists, "label": label, "label_index": list(prediction.label)}


def client_outputs(python: Path, client: str, ask: dict[str, Any]) -> dict[str, Any]:
    """The answers that a client read."""
    words, environment = [python, HERE / "oip_clients.py", client], {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=300, input=json.dumps(ask), env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_tritonclient_and_kserve_read_every_answer(client_python: Path, models: Path) -> None:
    image = picture()
    with command(models, "--grpc-port", "0") as (_, ready):
        ask = {
            "http": f"127.0.0.1:{ready['port']}", "grpc": f"127.0.0.1:{ready['grpc_port']}", "outputs": OUTPUTS,
            "texts": TEXTS, "image": base64.b64encode(image).decode(), "text_model": "texts",
            "image_model": "images",
        }  # fmt: skip
        outputs = client_outputs(client_python, "triton", ask) | client_outputs(client_python, "kserve", ask)
    texts = expected(models / "texts", TEXTS)
    ids = np.array([[2, 7, 3]])
    answers = {
        **dict.fromkeys(("triton http json", "triton http binary", "triton http default", "triton grpc raw"), texts),
        **dict.fromkeys(("triton grpc default", "kserve json", "kserve binary", "kserve grpc"), texts),
        **dict.fromkeys(("triton http image", "triton grpc image"), expected(models / "images", [image])),
        **dict.fromkeys(
            ("triton http ready tensors", "triton grpc ready tensors"),
            expected(models / "texts", {"input_ids": ids, "attention_mask": np.ones_like(ids)}),
        ),
    }
    for name, wanted in answers.items():
        for field, values in wanted.items():
            if field == "label":
                assert outputs[name][field] == values, name
            else:
                np.testing.assert_allclose(outputs[name][field], values, atol=TOLERANCE, err_msg=f"{name}: {field}")
    for over, codes in (("triton http", ["404", "400"]), ("triton grpc", ["NOT_FOUND", "INVALID_ARGUMENT"])):
        check_metadata_and_refusals(outputs, over, codes)


def check_metadata_and_refusals(outputs: dict[str, Any], over: str, codes: list[str]) -> None:
    """Check metadata, index and refusals of one transport of tritonclient."""
    assert outputs[f"{over} server"]["name"] == "hydrant"
    model = outputs[f"{over} model"]
    assert (model["name"], model["versions"], model["platform"]) == ("texts", ["1"], "hydrant_onnxruntime")
    assert [(each["name"], each["datatype"]) for each in model["inputs"]] == [("text", "BYTES")]
    shapes = {each["name"]: [int(size) for size in each["shape"]] for each in model["outputs"]}
    assert shapes["probabilities"] == [-1, 5] and set(OUTPUTS) <= set(shapes)
    index = outputs[f"{over} index"]
    assert [(each["name"], each["state"]) for each in index] == [("images", "READY"), ("texts", "READY")]
    forms = ("json", "binary") if over == "triton http" else ("raw",)
    assert [outputs[f"{over} {form} head"] for form in forms] == [["texts", "1", "7"]] * len(forms)
    missing, malformed = codes
    words = {
        "model": (missing, "'nobody'"), "version": (missing, "'9'"), "input": (malformed, "'words'"),
        "output": (malformed, "'scores'"), "classification": (malformed, "parameter classification"),
        "sequence": (malformed, "parameter sequence_id"), "empty": (malformed, "input 0"),
        "config": (malformed, "`config`"),
    }  # fmt: skip
    for name, (code, part) in words.items():
        status, message = outputs[f"{over} refused"][name]
        assert code in status and part in message, (over, name, status, message)
