"""Shared fixtures: tiny checkpoints on disk, and the real checkpoint and data."""

import copy
import gc
import logging
import os
import shutil
import signal
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the import of torch: parallel commands get a core each

import numpy as np
import onnx
import pytest
import torch
import transformers
from cpp import build, missing
from environments import own_environment
from golden import make_golden
from hydrant import export_onnx, fuse, save_bundle
from hydrant.bundle.staging import locked
from hydrant.export import traced_graph
from hydrant.models.checkpoint import load_processor
from hydrant.serving.observers import RareWarnings
from one_thread import use_one_thread
from support import feeds, make_model, random_plan, save_checkpoint, stdout_of

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # shells ignore SIGINT in background jobs, and commands that tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)  # threads slow tiny models down on a busy machine
use_one_thread()

FIRST = ("processes",)
"""Test files that fork; they run first, because leftovers of other tests made forked processes hang."""

LONG = ("documents", "demo", "clinc150", "cpp", "ray", "studies", "wheel", "triton_server", "traced", "batch_ensemble")
"""Long test files, which start early so that no worker idles at the end."""


SLOW = (
    *LONG, "checkpoints", "cli", "clients", "compile", "connection", "cpp_serve", "crash_safety", "distance",
    "examples", "fuzz", "hub", "hub_readers", "inputs", "lora", "make", "numerics", "original_check", "profile",
    "serve", "signature", "site", "sounds", "task_verbs", "teachers", "thresholds", "token_stages", "tokenizer_graph",
    "traced_tasks", "tune", "tune_kinds", "verify",
)  # fmt: skip
"""Test files marked slow; the others finish in two minutes (pytest -m "not slow")."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests: forking ones first, then long ones; the others keep their order."""
    slow = {f"test_{name}" for name in SLOW}
    for item in items:
        if item.path.stem in slow:
            item.add_marker(pytest.mark.slow)
    places = {f"test_{name}": place for place, name in enumerate(FIRST + LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which every tuning triggers."""
    gc.freeze()


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this test run that the first worker fills and all workers read."""
    base = factory.getbasetemp()
    state = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"{name}-once"
    state.mkdir(exist_ok=True)
    with locked(state):
        if not (state / "made").exists():
            shutil.rmtree(state / name, ignore_errors=True)
            (state / name).mkdir()
            make(state / name)
            (state / "made").touch()
    return state / name


@pytest.fixture(autouse=True)
def _whole_log() -> Iterator[None]:
    """Remove the log filters of a service that ran in the test's process."""
    yield
    for handler in logging.getLogger().handlers:
        for rare in [each for each in handler.filters if isinstance(each, RareWarnings)]:
            handler.removeFilter(rare)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip plots, which take longer than the metrics."""
    monkeypatch.setattr("hydrant.evaluation.evaluator.pictures", lambda *_: {})


NETWORKS: dict[Any, onnx.ModelProto] = {}


@pytest.fixture(scope="module")
def network_once() -> Iterator[None]:
    """Let torch's exporter, the slow part, run once for each traced bundle's weights."""
    write = traced_graph.traced_network

    def network(model: Any, architecture: Any, plan: Any, facts: Any, opset: int = 20) -> onnx.ModelProto:
        key = facts["hydrant.weights_sha256"], repr(plan), opset
        if key not in NETWORKS:
            NETWORKS[key] = write(model, architecture, plan, facts, opset)
        return copy.deepcopy(NETWORKS[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced_graph, "traced_network", network)
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and checkpoints, beside the checkout."""
    folder = Path(__file__).parents[2] / "shared"
    if not (folder / "models" / "minilm-clinc150").is_dir():
        pytest.skip(f"the real checkpoint and data are absent ({folder.name}/ beside the checkout)")
    return folder


@pytest.fixture(scope="session")
def bert_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with tokenizer, saved as a Hugging Face folder; labels a, b, c, d, e."""
    return save_checkpoint(tmp_path_factory.mktemp("checkpoint") / "tiny-bert")


@pytest.fixture(scope="session")
def vit_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny ViT with image processor, saved as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-vit"
    make_model("vit").save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 12, "width": 12}).save_pretrained(folder)
    return folder


def exported(folder: Path, checkpoint: Path, family: str, modality: str) -> Path:
    """A bundle of three random members, with a graph."""
    save_bundle(fuse(checkpoint, random_plan(family, 3)), folder, load_processor(checkpoint, modality))
    export_onnx(folder)
    return folder


@pytest.fixture(scope="session")
def text_bundle(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny BERT in three members, to be read or copied."""
    return exported(tmp_path_factory.mktemp("text") / "bundle", bert_checkpoint, "bert", "text")


@pytest.fixture(scope="session")
def image_bundle(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny ViT in three members, to be read or copied."""
    return exported(tmp_path_factory.mktemp("image") / "bundle", vit_checkpoint, "vit", "image")


@pytest.fixture(scope="session")
def inputs() -> dict[str, np.ndarray]:
    """Tensors for the tiny BERT."""
    return feeds("bert")


@pytest.fixture(scope="session")
def text_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled texts for the tiny BERT."""
    path = tmp_path_factory.mktemp("data") / "train.csv"
    texts = ["hello world", "transfer money today", "what is the weather", "the money", "hello money world"]
    rows = [f"{text},{label}" for text, label in zip([*texts, "what today"] * 4, "abcdea" * 4, strict=True)]
    path.write_text("\n".join(["text,label", *rows, ""]))
    return path


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden data, which Python and C++ must both match."""
    return made_once(tmp_path_factory, "golden", make_golden)


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a shortened ``hydrant demo`` in ``digits``, and its standard output in ``printed``."""

    def make(folder: Path) -> None:
        printed = stdout_of("demo", "--epochs", "18", "--output", folder / "digits", timeout=900)
        (folder / "printed").write_text(printed)

    return made_once(tmp_path_factory, "demo", make)


@pytest.fixture(scope="session")
def runner() -> Path:
    """The C++ program hydrant-run, built here, or the one at ``HYDRANT_RUN``."""
    if path := os.environ.get("HYDRANT_RUN"):
        return Path(path).resolve(strict=True)
    if reason := missing():
        pytest.skip(f"the C++ runner is not built: {reason}")
    return build("release") / "runtime/cpp/hydrant-run"


@pytest.fixture(scope="session")
def library() -> dict[str, str]:
    """Environment variables with which hydrant-run finds the tokenizer operators and Python's library."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    python = Path(sysconfig.get_config_var("LIBDIR") or "") / str(sysconfig.get_config_var("INSTSONAME"))
    if not python.is_file():
        pytest.skip("this Python has no shared library, which onnxruntime-extensions' wheel needs in a C++ process")
    return {"ORTEXTENSIONS_LIBRARY": extensions.get_library_path(), "LD_PRELOAD": str(python)}


@pytest.fixture(scope="session")
def client_python() -> Path:
    """Python with the clients of ``clients.txt``."""
    return own_environment(Path(__file__).parent / "clients.txt")
