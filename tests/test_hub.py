"""Bundles on the Hugging Face Hub: huggingface_hub itself, against a Hub on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hub_server import OWNER, STRANGER, Blob, Fault, Hub, Repository
from huggingface_hub.utils._shared_blobs import publish_blob_to_shared_store
from hydrant.bundle.hub_download import local_folder
from hydrant.bundle.signature import SIGNATURE
from hydrant.errors import BundleError, HydrantError, InputError
from serve_support import command
from test_signature import write_key

NAME = "user/repo"
TEXTS = ["hello world", "transfer money today"]
NEEDED = {"hydrant.json", "config.json", "calibration.json", "model.fp32.onnx", "plan.json",
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
    assert len(hub.received("^POST /verify")) == len(hub.received("^PUT /stored/")) > 0
    assert_equal(answers(NAME), answers(bundle))
    assert_equal(answers(tmp_path / "folder"), answers(bundle))
    assert hydrant.pipeline(NAME, backend="onnxruntime")(TEXTS) == hydrant.pipeline(bundle, backend="onnxruntime")(
        TEXTS
    )


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
    assert "config.json" not in downloads(hub), "it is in the cache"


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


def test_a_local_folder_comes_first(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hydrant.push(bundle, to=NAME)
    assert_equal(answers(NAME), answers(bundle))
    with pytest.raises(InputError, match="user/repo is a path and has no revision 'main'"):
        answers(NAME, revision="main")
    assert not hub.requests


def test_links_into_the_cache_are_followed_and_others_rejected(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path
) -> None:
    answers(NAME)
    link = next((tmp_path / "cache").rglob("hydrant/model.fp32.onnx"))
    assert link.is_symlink()
    blob = link.resolve()
    xet = {"xet_hash": "a" * 64, "expected_size": blob.stat().st_size}
    cache = tmp_path / "cache"
    assert publish_blob_to_shared_store(blob_path=str(blob), cache_dir=cache, **xet)
    assert link.resolve() == cache / "blobs" / "aa" / ("a" * 64), "huggingface_hub keeps large files so"
    assert_equal(answers(NAME), answers(bundle))
    link.unlink()
    link.symlink_to(bundle / "model.fp32.onnx")
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx is listed in hydrant\.json but is not a file there"):
        answers(NAME)


def test_weights_in_a_file_of_their_own(
    hub: Hub, text_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(text_bundle, tmp_path / "bundle")
    monkeypatch.setattr("hydrant.export.onnx_file.EXTERNAL_DATA_BYTES", 1000)
    hydrant.export_onnx(folder)
    hydrant.push(folder, NAME)
    assert "onnx/model.onnx_data" in hub.repositories[NAME].files()
    assert_equal(answers(NAME), answers(folder))
    assert downloads(hub) == NEEDED | {"model.fp32.onnx.data"}
    hydrant.push(text_bundle, NAME)
    assert "onnx/model.onnx_data" not in hub.repositories[NAME].files()


def test_signed_bundles(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    public = write_key(tmp_path / "maker.pem", ec.generate_private_key(ec.SECP256R1()))
    other = write_key(tmp_path / "other.pem", ec.generate_private_key(ec.SECP256R1()))
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    hydrant.sign(folder, tmp_path / "maker.pem")
    hydrant.push(folder, NAME)
    assert_equal(answers(NAME, trust=public), answers(bundle))
    assert downloads(hub) == {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(BundleError):
        answers(NAME, trust=other)
    files = hub.repositories[NAME].files()
    manifest = files["hydrant/hydrant.json"].content
    changed = files["hydrant/calibration.json"].content.replace(b"}", b" }")
    hub.repositories[NAME].commit("main", {
        **files,
        "hydrant/calibration.json": Blob(changed, lfs=False),
        "hydrant/hydrant.json": Blob(remade(manifest, "calibration.json", changed), lfs=False),
    })  # fmt: skip
    assert_equal(answers(NAME), answers(bundle))
    with pytest.raises(BundleError, match=r"is not what the owner of .* signed"):
        answers(NAME, trust=public)
    unsigned = {name: blob for name, blob in files.items() if not name.endswith(SIGNATURE)}
    hub.repositories[NAME].commit("main", unsigned)
    with pytest.raises(BundleError, match=r"user/repo|is not signed") as caught:
        answers(NAME, trust=public)
    print(caught.value)


def remade(manifest: bytes, name: str, content: bytes) -> bytes:
    """The manifest with a file's new size and digest."""
    value = json.loads(manifest)
    value["files"][name] = {"bytes": len(content), "sha256": Blob(content, lfs=True).oid}
    return json.dumps(value).encode()


@pytest.fixture
def shell(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in processes of their own, with another cache, whose other ways out are closed."""
    closed = {f"{kind}_PROXY": "http://127.0.0.1:9" for kind in ("HTTP", "HTTPS", "ALL")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    for name, value in {**closed, **settings, "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "hydrant", *map(str, arguments)]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    return run


def test_the_command_line(
    hub: Hub, bundle: Path, shell: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hydrant.push(bundle, NAME, private=True, revision="v2")
    done = shell("push", bundle, NAME, "--revision", "v2", "--private")
    if 0: assert done.returncode == 0, done.stderr
    if 0: assert f"wrote {hub.url}/{NAME}/commit/" in done.stdout
    done = shell("predict", NAME, TEXTS[0], "--revision", "v2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["confidence"] == pytest.approx(answers(bundle)["probabilities"][0].max(), abs=1e-6)
    with command("serve", NAME, "--revision", "v2", "--backend", "onnxruntime") as (_, ready):
        print(ready)
        assert [model["name"] for model in ready["models"]] == ["repo"]
    monkeypatch.setenv("HF_TOKEN", STRANGER)
    done = shell("inspect", NAME, "--revision", "v3")
    assert done.returncode == 2
    assert done.stderr.startswith("hydrant: error: user/repo is neither a folder nor a repository")
    assert len(done.stderr.splitlines()) == 1, "no traceback"


@pytest.mark.usefixtures("undrawn")
def test_a_download_is_evaluated_and_stays_unchanged(
    hub: Hub, pushed: Repository, bundle: Path, text_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours = hydrant.evaluate(NAME, text_csv, compare=[bundle], backend="onnxruntime").models
    assert theirs.figures == ours.figures
    assert "cannot be changed" in caplog.text
    assert "fused.safetensors" not in downloads(hub)
    with pytest.raises(InputError, match="hf download user/repo --local-dir"):
        hydrant.calibrate(local_folder(NAME), text_csv)
