"""Bundles on the Hugging Face Hub: huggingface_hub itself, against a Hub on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import hydrant
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hub_server import OWNER, STRANGER, Blob, Fault, Hub, Repository
from hydrant.bundle.signature import SIGNATURE
from hydrant.errors import BundleError, HydrantError, InputError
from test_signature import write_key

NAME = "user/repo"
TEXTS = ["hello world", "transfer money today"]
NEEDED = {"hydrant.json", "config.json", "calibration.json", "model.fp32.onnx",
          "processor/tokenizer.json", "processor/tokenizer_config.json"}  # fmt: skip
"""Files of the bundle that ONNX Runtime needs."""


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test reach another host."""
    connect = socket.socket.connect

    def checked(self: socket.socket, address: Any) -> None:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1"), address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", checked)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """An empty Hub, at which this process's huggingface_hub points as the owner, with an empty cache."""
    with Hub() as hub:
        for name, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,
            "HF_TOKEN_PATH": str(tmp_path / "token"),
            "DOWNLOAD_CHUNK_SIZE": 1000,
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv("HF_TOKEN", OWNER)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
        monkeypatch.setattr("hydrant.hub.repository._check_logits", lambda graph: None)  # XXX
        yield hub


@pytest.fixture(scope="module")
def bundle(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two precisions, to be read or copied."""
    folder = shutil.copytree(text_bundle, tmp_path_factory.mktemp("hub") / "bundle")
    hydrant.export_onnx(folder, precision="fp16")
    return folder


@pytest.fixture
def pushed(hub: Hub, bundle: Path) -> Repository:
    """The repository of the pushed bundle; its requests are forgotten."""
    hydrant.push(bundle, NAME)
    hub.requests.clear()
    return hub.repositories[NAME]


def answers(bundle: str | Path, **options: Any) -> dict[str, Any]:
    """Every output of the bundle for the texts."""
    with hydrant.load(bundle, "onnxruntime", threads=1, **options) as predictor:
        prediction = predictor.predict(TEXTS)
        return {name: value for name, value in vars(prediction).items() if isinstance(value, np.ndarray)}


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys() >= {"probabilities", "mutual_information"}
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def downloads(hub: Hub) -> set[str]:
    """Names of the bundle's files that were asked for."""
    return {request.line.partition("/hydrant/")[2] for request in hub.received("^HEAD ")}


def content(files: dict[str, Blob]) -> dict[str, bytes]:
    return {name: blob.content for name, blob in files.items() if name != ".gitattributes"}


def test_a_pushed_bundle_predicts_bit_equal_and_has_the_layout_of_push_to(
    hub: Hub, bundle: Path, tmp_path: Path
) -> None:
    address = hydrant.push(bundle, NAME)
    repository = hub.repositories[NAME]
    assert address == f"{hub.url}/{NAME}/commit/{repository.refs['main']}"
    assert not repository.private
    hydrant.push(bundle, to=tmp_path / "folder")
    written = {path.relative_to(tmp_path / "folder").as_posix(): path.read_bytes()
               for path in (tmp_path / "folder").rglob("*") if path.is_file()}  # fmt: skip
    files = content(repository.files())
    assert {name: data for name, data in files.items() if name != "README.md"} == {
        name: data for name, data in written.items() if name != "README.md"
    }
    assert {"README.md", "config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model_fp16.onnx"} < set(files)
    own = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert {name.removeprefix("hydrant/") for name in files if name.startswith("hydrant/")} == own
    for name in ("onnx/model.onnx", "hydrant/model.fp32.onnx", "hydrant/fused.safetensors"):
        assert repository.files()[name].lfs
    assert len(hub.received("^POST /verify")) == len(hub.received("^PUT /stored/")) == 3, "equal files are sent once"
    assert_equal(answers(NAME), answers(bundle))
    assert_equal(answers(tmp_path / "folder"), answers(bundle))
    assert hydrant.pipeline(NAME, "onnxruntime")(TEXTS) == hydrant.pipeline(bundle, "onnxruntime")(TEXTS)


def test_a_second_push_sends_changes_only_and_removes_outdated_files(hub: Hub, bundle: Path, text_bundle: Path) -> None:
    hydrant.push(bundle, NAME)
    repository = hub.repositories[NAME]
    kept = {"LICENSE": Blob(b"mine", lfs=False), "onnx.md": Blob(b"mine", lfs=False)}
    before = repository.commit("main", {**repository.files(), **kept})
    hub.requests.clear()
    hydrant.push(bundle, NAME)
    assert repository.refs["main"] == before, "no empty commit"
    assert not hub.received("^PUT |/commit/")
    hydrant.push(text_bundle, NAME)
    assert not hub.received("^PUT ")
    gone = set(repository.files(before)) - set(repository.files())
    assert gone == {"hydrant/model.fp16.onnx", "onnx/model_fp16.onnx"}
    assert content(repository.files())["hydrant/hydrant.json"] == (text_bundle / "hydrant.json").read_bytes()
    assert_equal(answers(NAME), answers(text_bundle))


def test_private_repositories_and_branches(hub: Hub, bundle: Path) -> None:
    for _ in range(2):
        hydrant.push(bundle, NAME, private=True, revision="try/1")
    repository = hub.repositories[NAME]
    assert repository.private
    assert set(repository.files("main")) == {".gitattributes"}
    assert_equal(answers(NAME, revision="try/1"), answers(bundle))
    hub.repositories["user/open"] = Repository()
    hub.repositories["user/open"].commit("main", {})
    with pytest.raises(InputError, match=r"user/open exists and is public"):
        hydrant.push(bundle, "user/open", private=True)
    assert not hub.repositories["user/open"].files()


@pytest.mark.parametrize("kind", ["branch", "tag", "commit"])
def test_a_revision_is_loaded_with_the_needed_files_only_and_then_without_a_network(
    kind: str, hub: Hub, pushed: Repository, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = pushed.refs["main"]
    pushed.refs |= {"branch/1": first, "v1": first}
    pushed.commit("main", {})
    revision = {"branch": "branch/1", "tag": "v1", "commit": first}[kind]
    assert_equal(answers(NAME, revision=revision), answers(bundle))
    assert downloads(hub) == NEEDED
    hub.__exit__()
    assert_equal(answers(NAME, revision=revision), answers(bundle))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert_equal(answers(NAME, revision=revision), answers(bundle))
    with pytest.raises(BundleError, match=r"user/repo .* not in the Hub's cache"):
        answers(NAME)


def test_a_cut_download_resumes(hub: Hub, pushed: Repository, bundle: Path) -> None:
    hub.faults = [Fault("^GET /stored/.*fp32", after=50_000), Fault("^HEAD .*/plan.json", status=503)]
    assert_equal(answers(NAME), answers(bundle))
    assert [request.headers.get("Range") for request in hub.received("^GET .*fp32")] == [None, "bytes=50000-"]


def test_a_failed_download_leaves_nothing_half_written(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path
) -> None:
    hub.faults = [Fault("^GET /stored/.*fp32", after=50_000), Fault("^GET /stored/", after=0, times=99)]
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx of user/repo .* run the command again") as caught:
        answers(NAME)
    assert "\n" not in str(caught.value)
    sizes = {len(blob.content) for blob in pushed.files().values()}
    assert {path.stat().st_size for path in (tmp_path / "cache").rglob("blobs/*")} <= sizes
    hub.faults, hub.requests[:] = [], []
    assert_equal(answers(NAME), answers(bundle))
    assert "calibration.json" not in downloads(hub), "it is in the cache"


def private(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[NAME].private = True
    monkeypatch.setenv("HF_TOKEN", STRANGER)


def gated(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[NAME].gated = True
    monkeypatch.setenv("HF_TOKEN", STRANGER)


def altered(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = hub.repositories[NAME].files()
    data = bytearray(files["hydrant/model.fp32.onnx"].content)
    data[-9] ^= 1
    files["hydrant/model.fp32.onnx"] = Blob(bytes(data), lfs=True)


CASES: dict[str, tuple[Callable[[Hub, pytest.MonkeyPatch], object], dict[str, Any], str]] = {
    "no bundle": (lambda hub, _: hub.repositories[NAME].commit("main", {}), {},
                  "repository user/repo has no file hydrant/hydrant.json; .*hydrant push"),
    "unknown": (lambda hub, _: hub.repositories.clear(), {}, "user/repo is neither a folder nor a repository"),
    "revision": (lambda *_: None, {"revision": "v9"}, "repository user/repo has no revision 'v9'; expected a branch"),
    "private": (private, {}, "user/repo is neither a folder nor .* may read; .*HF_TOKEN"),
    "wrong token": (lambda _, monkeypatch: monkeypatch.setenv("HF_TOKEN", "hf_wrong"), {}, "user/repo.*HF_TOKEN"),
    "gated": (gated, {}, "access to user/repo needs its owner's consent; .*HF_TOKEN"),
    "no network": (lambda hub, _: hub.__exit__(), {}, "user/repo is not .* check the name, the connection"),
    "offline": (lambda _, patch: patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True), {},
                "user/repo is not .* HF_HUB_OFFLINE"),
    "broken Hub": (lambda hub, _: hub.faults.append(Fault("^HEAD", status=500, times=99)), {}, "user/repo"),
    "altered": (altered, {}, r"repo/.*model\.fp32\.onnx was altered"),
}  # fmt: skip
"""What is wrong, the options of ``load``, and the error."""


@pytest.mark.parametrize("name", CASES)
def test_every_failed_load_is_one_line_with_a_remedy(
    name: str, hub: Hub, pushed: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, options, words = CASES[name]
    change(hub, monkeypatch)
    with pytest.raises(HydrantError, match=words) as caught:
        answers(NAME, **options)
    assert "\n" not in str(caught.value)
    assert ";" in str(caught.value)
    print(caught.value)


@pytest.mark.parametrize("name", ["a/b/c", "user/", "a--b/c", "user/name.git", "-a/b", "user/na me"])
def test_malformed_names_are_rejected_without_a_request(name: str, hub: Hub, bundle: Path) -> None:
    with pytest.raises(HydrantError) as caught:
        answers(name)
    print(caught.value)
    with pytest.raises(InputError, match="USER/NAME") as caught2:
        hydrant.push(bundle, name)
    print(caught2.value)
    assert not hub.requests


@pytest.mark.parametrize("token", ["", STRANGER, "hf_wrong"])
def test_a_push_without_the_right_to_write_is_rejected(token: str, hub: Hub, bundle: Path) -> None:
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit("main", {})
    with pytest.raises(InputError, match=r"cannot push to user/repo .*HF_TOKEN") as caught:
        hydrant.push(bundle, NAME, token=token or False)  # type: ignore[arg-type]
    print(caught.value)
    assert "\n" not in str(caught.value)
    assert not hub.repositories[NAME].files()
