"""Libraries that know nothing of hydrant read a pushed folder: optimum, ONNX Runtime, transformers.js."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import hydrant
import numpy as np
import pytest
import torch
import transformers
from environments import own_environment
from hydrant.bundle.staging import locked
from hydrant.models.checkpoint import load_processor
from PIL import Image
from support import make_model, make_tokenizer, predicted, random_plan
from task_support import make_case

HERE = Path(__file__).parent
JAVASCRIPT = "@huggingface/transformers@4.3.2"
TEXTS = ["hello world", "transfer money today what is the weather", "the Ünknown"]
PAIRS = [["hello world", "transfer money"], ["what is the weather", "the money today"]]
KINDS = {
    "text": ("text-classification", TEXTS),
    "pair": ("text-classification", PAIRS),
    "regression": ("text-classification", TEXTS),
    "multi_label": ("text-classification", TEXTS),
    "tokens": ("token-classification", ["anna smith lives in paris .", "rome is the"]),
    "image": ("image-classification", ["0.png", "1.png"]),
}
"""Kind of bundle → task of other libraries, and inputs."""


class Pushed(NamedTuple):
    """A repository with inputs, and hydrant's own answers: [N, C], or [N][T, C] for tokens."""

    folder: Path
    inputs: list[Any]
    expected: Any


def checkpoint(kind: str, folder: Path) -> Path:
    """A checkpoint with its processor; images have the model's own size, since each library scales in its own way."""
    if kind not in ("text", "pair", "image"):
        return make_case(kind, folder).checkpoint
    make_model("vit" if kind == "image" else "bert").save_pretrained(folder / "source")
    if kind == "image":
        transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder / "source")
    else:
        make_tokenizer(folder / "words").save_pretrained(folder / "source")
    return folder / "source"


def pushed_of(kind: str, home: Path) -> Pushed:
    """Push a small bundle of a kind into a folder, and predict with it."""
    inputs, image = KINDS[kind][1], kind == "image"
    home.mkdir()
    source = checkpoint(kind, home)
    if image:
        noise = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
        inputs = [str(home / name) for name in inputs]
        for name, pixels in zip(inputs, noise, strict=True):
            Image.fromarray(pixels).save(name)
    ensemble = hydrant.fuse(source, random_plan("vit" if image else "bert", 3))
    bundle = hydrant.save_bundle(ensemble, home / "bundle", load_processor(source, "image" if image else "text"))
    hydrant.export_onnx(bundle)
    hydrant.push(bundle, to=home / "repository")
    prediction = predicted(home / "repository", [tuple(each) if isinstance(each, list) else each for each in inputs])
    if prediction.score is not None:
        return Pushed(home / "repository", inputs, prediction.score[:, None])
    if prediction.mask is None:
        return Pushed(home / "repository", inputs, prediction.probabilities)
    rows = zip(prediction.probabilities, prediction.mask, strict=True)
    return Pushed(home / "repository", inputs, [each[mask] for each, mask in rows])


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pushed]:
    folder = tmp_path_factory.mktemp("readers")
    return {kind: pushed_of(kind, folder / kind) for kind in KINDS}


def answers_of(command: list[Any], repositories: dict[str, Pushed], path: str = "") -> dict[str, dict[str, Any]]:
    """Answers of a reader for each kind, from a process of its own without a network."""
    asks = [
        {"folder": str(each.folder), "task": KINDS[kind][0], "inputs": each.inputs}
        for kind, each in repositories.items()
    ]
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": path}
    done = subprocess.run(
        command, input=json.dumps(asks), capture_output=True, text=True, check=False, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(repositories, json.loads(done.stdout.splitlines()[-1]), strict=True))


def assert_same(kind: str, logits: list[Any], expected: Any) -> None:
    """The softmax, or for several labels the sigmoid, of the logits is the ensemble's answer."""
    for each, own in zip(logits, expected, strict=True):
        odds = np.exp(np.asarray(each, np.float64))
        shares = {"regression": np.asarray(each), "multi_label": odds / (1 + odds)}
        np.testing.assert_allclose(shares.get(kind, odds / odds.sum(-1, keepdims=True)), own, atol=1e-5)


@pytest.fixture(scope="module")
def of_python(repositories: dict[str, Pushed], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Answers in a Python environment with optimum, to which this one lends PyTorch."""
    python, lent = own_environment(HERE / "readers.txt"), tmp_path_factory.mktemp("lent")
    packages = Path(torch.__file__).parents[1]
    for part in ("torch", "torchgen", "functorch", next(packages.glob("torch-*.dist-info")).name):
        (lent / part).symlink_to(packages / part)
    return answers_of([python, HERE / "hub_readers.py"], repositories, str(lent))


@pytest.mark.parametrize("kind", KINDS)
def test_optimum_and_onnx_runtime_give_the_ensembles_answers(
    kind: str, of_python: dict[str, dict[str, Any]], repositories: dict[str, Pushed]
) -> None:
    assert set(of_python[kind]) == {"onnxruntime", "optimum", "custom"}
    for logits in of_python[kind].values():
        assert_same(kind, logits, repositories[kind].expected)


@pytest.fixture(scope="module")
def of_node(repositories: dict[str, Pushed]) -> dict[str, dict[str, Any]]:
    """Answers of transformers.js, kept in ``.cache/``; skips without Node or the npm registry."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    home = HERE.parent / ".cache" / f"node-{JAVASCRIPT.rpartition('@')[2]}"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home):
        if not (home / "whole").exists():
            options = ["--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=0", "--fetch-timeout=30000"]
            install = ["npm", "install", "--prefix", home, *options, JAVASCRIPT]
            done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode:
                pytest.skip(f"the npm registry does not answer: {done.stderr.strip().splitlines()[-1:]}")
            (home / "whole").touch()
    return answers_of(["node", HERE / "hub_reader.mjs", home / "node_modules"], repositories)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_js_gives_the_ensembles_answers(
    kind: str, of_node: dict[str, dict[str, Any]], repositories: dict[str, Pushed]
) -> None:
    answers, expected = of_node[kind], repositories[kind].expected
    assert set(answers) == {"pair": {"logits"}, "image": {"pipeline"}}.get(kind, {"logits", "pipeline"})
    if "logits" in answers:
        assert_same(kind, answers["logits"], expected)
    if kind in ("text", "multi_label", "image"):  # its pipeline applies a softmax to scores
        labels = json.loads((repositories[kind].folder / "config.json").read_text())["label2id"]
        for row, own in zip(answers["pipeline"], expected, strict=True):
            assert len(row) == len(labels)
            for entry in row:
                assert entry["score"] == pytest.approx(own[labels[entry["label"]]], abs=1e-5)
