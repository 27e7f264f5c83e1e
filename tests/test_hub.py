"""Bundles on the Hugging Face Hub: huggingface_hub itself, against a Hub on loopback."""

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
from hydrant.bundle.hub_download import bundle_name, local_folder
from hydrant.bundle.store import located
from hydrant.cli.inspect import inspect_bundle
from hydrant.errors import BundleError, HydrantError, InputError
from hydrant.serving.service import list_bundles
from serve_support import command
from support import predicted
from test_signature import write_key

NAME = "user/repo"
TEXTS = ["hello world", "transfer money today"]
TOKENIZER = {"processor/tokenizer.json", "processor/tokenizer_config.json"}
NEEDED = {"hydrant.json", "config.json", "plan.json", "calibration.json", "model.fp32.onnx", *TOKENIZER}
"""Files of a bundle that ONNX Runtime needs."""


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
    """An empty Hub, which this process uses as the owner, with an empty cache."""
    with Hub() as hub:
        settings = {"ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": True}
        template = {"HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}"}
        for name, value in {**settings, **template, "HF_HUB_OFFLINE": False, "DOWNLOAD_CHUNK_SIZE": 1000}.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        monkeypatch.setenv("HF_TOKEN", OWNER)
        monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
        yield hub


@pytest.fixture(scope="module")
def bundle(text_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of two precisions."""
    folder = shutil.copytree(text_bundle, tmp_path_factory.mktemp("hub") / "bundle")
    hydrant.export_onnx(folder, precision="fp16")
    return folder


@pytest.fixture
def pushed(hub: Hub, bundle: Path) -> Repository:
    """The repository of the pushed bundle."""
    hydrant.push(bundle, NAME)
    hub.requests.clear()
    return hub.repositories[NAME]


def answers(bundle: str | Path, **options: Any) -> dict[str, Any]:
    """Every output of the bundle for the texts."""
    prediction = vars(predicted(bundle, TEXTS, "onnxruntime", threads=1, **options))
    return {name: value for name, value in prediction.items() if isinstance(value, np.ndarray)}


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left.keys() == right.keys() >= {"probabilities", "mutual_information"}
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


def downloads(hub: Hub) -> set[str]:
    """Names of the bundle's files that were downloaded."""
    return {request.line.partition("/hydrant/")[2] for request in hub.received("^HEAD ")}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pushed_bundle_predicts_bit_equal(
    hub: Hub, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = hydrant.push(bundle, NAME)
    repository = hub.repositories[NAME]
    assert address == f"{hub.url}/{NAME}/commit/{repository.refs['main']}"
    assert not repository.private
    monkeypatch.chdir(tmp_path)
    hydrant.push(bundle, to="folder")
    files, written = repository.files(), contents(Path("folder"))
    assert set(files) - set(written) == {".gitattributes"}
    assert {name for name, data in written.items() if files[name].content != data} == {"README.md"}
    own = {f"hydrant/{name}": data for name, data in contents(bundle).items()}
    assert own == {name: data for name, data in written.items() if name.startswith("hydrant/")}
    graphs = {"onnx/model.onnx", "onnx/model_fp16.onnx"}
    assert {"README.md", "config.json", "tokenizer.json", "tokenizer_config.json", *graphs} == set(written) - set(own)
    assert all(files[name].lfs for name in {*graphs, "hydrant/model.fp32.onnx", "hydrant/fused.safetensors"})
    assert hub.received("^POST /verify")
    assert_equal(answers(NAME), answers(bundle))
    theirs, ours = (hydrant.pipeline(source, backend="onnxruntime") for source in (NAME, bundle))
    assert theirs(TEXTS) == ours(TEXTS)
    hub.requests.clear()
    Path(NAME).parent.mkdir()
    shutil.move("folder", NAME)
    assert_equal(answers(NAME), answers(bundle))
    assert not hub.requests, "a local folder comes first"
    with pytest.raises(InputError, match="user/repo is a path and has no revision 'main'"):
        answers(NAME, revision="main")


def test_a_second_push_sends_changes_only_and_removes_outdated_files(
    hub: Hub, pushed: Repository, text_bundle: Path, bundle: Path
) -> None:
    before = pushed.commit("main", {**pushed.files(), "LICENSE": Blob(b"mine", lfs=False)})
    hydrant.push(bundle, NAME)
    assert pushed.refs["main"] == before, "no empty commit"
    hydrant.push(text_bundle, NAME)
    assert not hub.received("^PUT ")
    assert pushed.files(before).keys() - pushed.files().keys() == {"hydrant/model.fp16.onnx", "onnx/model_fp16.onnx"}
    assert pushed.files()["hydrant/hydrant.json"].content == (text_bundle / "hydrant.json").read_bytes()
    assert_equal(answers(NAME), answers(text_bundle))


def test_an_interrupted_push_continues(hub: Hub, bundle: Path) -> None:
    hub.faults = [Fault("^POST .*/commit/", status=500)]
    with pytest.raises(InputError, match=r"cannot push to user/repo .* run the command again"):
        hydrant.push(bundle, NAME)
    assert set(hub.repositories[NAME].files()) == {".gitattributes"}
    hub.requests.clear()
    hydrant.push(bundle, NAME)
    assert not hub.received("^PUT ")
    assert_equal(answers(NAME), answers(bundle))


def test_private_repositories_and_branches(hub: Hub, bundle: Path) -> None:
    for _ in range(2):
        hydrant.push(bundle, NAME, private=True, revision="try/1")
    assert hub.repositories[NAME].private
    assert set(hub.repositories[NAME].files("main")) == {".gitattributes"}
    assert_equal(answers(NAME, revision="try/1"), answers(bundle))
    hub.repositories["user/open"] = Repository()
    hub.repositories["user/open"].commit("main", {})
    with pytest.raises(InputError, match=r"user/open exists and is public"):
        hydrant.push(bundle, "user/open", private=True)


@pytest.mark.parametrize("kind", ["branch", "tag", "commit"])
def test_a_revision_is_loaded_by_the_needed_files_and_then_without_a_network(
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


def test_a_cut_download_leaves_nothing_half_written_and_resumes(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path
) -> None:
    cut = Fault("^GET /stored/.*fp32", after=50_000)
    hub.faults = [cut, Fault("^GET /stored/", after=0, times=99)]
    with pytest.raises(BundleError, match=r"model\.fp32\.onnx of user/repo .* run the command again"):
        answers(NAME)
    sizes = {len(blob.content) for blob in pushed.files().values()}
    assert {path.stat().st_size for path in (tmp_path / "cache").rglob("blobs/*")} < sizes
    hub.faults, hub.requests, cut.times = [cut, Fault("^HEAD ", status=503)], [], 1
    assert_equal(answers(NAME), answers(bundle))
    assert [request.headers.get("Range") for request in hub.received("^GET .*fp32")] == [None, "bytes=50000-"]
    assert "config.json" not in downloads(hub), "it is in the cache"


def stranger(hub: Hub, monkeypatch: pytest.MonkeyPatch, **rules: bool) -> None:
    vars(hub.repositories[NAME]).update(rules)
    monkeypatch.setenv("HF_TOKEN", STRANGER)


def altered(hub: Hub, *_: object) -> None:
    files = hub.repositories[NAME].files()
    files["hydrant/plan.json"] = Blob(files["hydrant/plan.json"].content.replace(b"random", b"taylor"), lfs=False)


CASES: dict[str, tuple[Callable[[Hub, pytest.MonkeyPatch], Any], str]] = {
    "no bundle": (lambda hub, _: hub.repositories[NAME].commit("main", {}), "no file hydrant/hydrant.json; .* push"),
    "unknown": (lambda hub, _: hub.repositories.clear(), "user/repo is neither a folder nor a repository"),
    "revision": (lambda hub, _: hub.repositories[NAME].refs.clear(), "no revision 'main'; expected a branch"),
    "private": (lambda hub, patch: stranger(hub, patch, private=True), "user/repo is neither .* may read; .*HF_TOKEN"),
    "gated": (lambda hub, patch: stranger(hub, patch, gated=True), "access to user/repo .* consent; .*HF_TOKEN"),
    "token": (
        lambda _, patch: patch.setenv("HF_TOKEN", "hf_wrong"),
        "rejects the access token .* user/repo .*HF_TOKEN",
    ),
    "no network": (lambda hub, _: hub.__exit__(), "user/repo is not .* check the name and the connection"),
    "offline": (lambda _, patch: patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True), "HF_HUB_OFFLINE"),
    "broken": (lambda hub, _: hub.faults.append(Fault("^HEAD", status=500, times=99)), "the Hub answers .* status 500"),
    "altered": (altered, r"plan\.json was altered.* `hf cache rm model/user/repo`"),
}
"""Obstacles, and the errors of ``load``."""


@pytest.mark.parametrize("name", CASES)
def test_a_failed_load_is_one_line_with_a_remedy(
    name: str, hub: Hub, pushed: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    CASES[name][0](hub, monkeypatch)
    with pytest.raises(HydrantError, match=CASES[name][1]) as caught:
        answers(NAME, revision="main")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["a/b/c", "user/", "a--b/c", "user/name.git", "-a/b", "user/na me"])
def test_malformed_names_are_rejected_without_a_request(name: str, hub: Hub, bundle: Path) -> None:
    with pytest.raises(BundleError, match="does not exist; expected a bundle"):
        answers(name)
    with pytest.raises(InputError, match="expected USER/NAME"):
        hydrant.push(bundle, name)
    assert not hub.requests


def test_paths_never_reach_the_hub(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for place in (f"./{NAME}", f"{NAME}/", Path(NAME)):
        with pytest.raises(BundleError, match="does not exist"):
            hydrant.load(place)
    with pytest.raises(BundleError, match="does not exist"):
        hydrant.export_onnx(NAME)
    assert hub.requests == []
    named = shutil.copytree(bundle, tmp_path / "models" / "hydrant")
    shutil.copytree(bundle, tmp_path / "models" / "digits")
    assert set(list_bundles(local_folder("models"))) == {"digits", "hydrant"}, "a bundle's name is not a repository's"
    assert bundle_name(named) == "hydrant"


def test_a_copy_keeps_the_signature_and_inspect_reads_no_weights(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    maker = write_key(tmp_path / "a.pem", ec.generate_private_key(ec.SECP256R1()))
    signed = shutil.copytree(bundle, tmp_path / "bundle")
    hydrant.sign(signed, tmp_path / "a.pem")
    hydrant.push(signed, NAME)
    hub.requests.clear()
    facts = inspect_bundle(located(NAME))
    assert (facts["problems"], facts["signature"]) == ([], "not checked; give --trust")
    assert facts["files"]["fused.safetensors"]["state"] == facts["graphs"]["model.fp16.onnx"] == "not downloaded"
    assert not downloads(hub) & {"fused.safetensors", "model.fp32.onnx", "model.fp16.onnx"}
    hydrant.push(located(NAME), "user/copy")
    assert_equal(answers("user/copy", trust=maker), answers(bundle))
    with pytest.raises(InputError, match="cannot be changed"):
        hydrant.sign(located(NAME), tmp_path / "a.pem")


def test_a_copy_to_serve_has_no_weights_and_is_signed_again(bundle: Path, tmp_path: Path) -> None:
    maker = write_key(tmp_path / "a.pem", ec.generate_private_key(ec.SECP256R1()))
    signed = shutil.copytree(bundle, tmp_path / "bundle")
    hydrant.sign(signed, tmp_path / "a.pem")
    copy = Path(hydrant.push(signed, to=tmp_path / "copy", serving=True))
    gone = {path.name for path in signed.rglob("*")} - {path.name for path in copy.rglob("*")}
    assert {"fused.safetensors", "hydrant.sig"} <= gone
    assert_equal(answers(copy), answers(bundle))
    assert inspect_bundle(copy)["problems"] == []
    for backend, key, words in (("torch", None, "only predicts"), ("onnxruntime", maker, "not signed")):
        with pytest.raises(HydrantError, match=words):
            hydrant.load(copy, backend, trust=key)
    hydrant.sign(copy, tmp_path / "a.pem")
    assert_equal(answers(copy, trust=maker), answers(bundle))


def test_a_folder_of_git_is_not_replaced_and_a_token_not_shown(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    hydrant.push(bundle, to=tmp_path / "clone")
    (tmp_path / "clone" / ".git").mkdir()
    with pytest.raises(InputError, match="is a git repository"):
        hydrant.push(bundle, to=tmp_path / "clone", force=True)
    with pytest.raises(InputError, match="the access token is malformed") as refused:
        hydrant.push(bundle, NAME, token="hf_se\ncret")
    assert "hf_se" not in str(refused.value)


@pytest.mark.parametrize("token", [STRANGER, "hf_wrong"])
def test_a_push_without_the_right_to_write_is_rejected(token: str, hub: Hub, bundle: Path) -> None:
    hub.repositories[NAME] = Repository()
    hub.repositories[NAME].commit("main", {})
    with pytest.raises(InputError, match=r"cannot push to user/repo .*HF_TOKEN"):
        hydrant.push(bundle, NAME, token=token)
    assert not hub.repositories[NAME].files()


def test_links_into_the_cache_are_followed_and_others_rejected(
    hub: Hub, pushed: Repository, bundle: Path, tmp_path: Path
) -> None:
    answers(NAME)
    cache, shared = tmp_path / "cache", "a" * 64
    link = next(cache.rglob("hydrant/model.fp32.onnx"))
    size = link.stat().st_size
    assert publish_blob_to_shared_store(
        blob_path=str(link.resolve()), xet_hash=shared, cache_dir=cache, expected_size=size
    )
    assert link.resolve() == cache / "blobs" / "aa" / shared, "where huggingface_hub keeps files of Xet"
    assert_equal(answers(NAME), answers(bundle))
    link.unlink()
    link.symlink_to(shutil.copytree(bundle, cache / "models--user--other") / "model.fp32.onnx")
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


def test_trust(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    maker, other = (write_key(tmp_path / name, ec.generate_private_key(ec.SECP256R1())) for name in ("a.pem", "b.pem"))
    hydrant.push(bundle, NAME)
    with pytest.raises(BundleError, match="is not signed"):
        answers(NAME, trust=maker)
    folder = shutil.copytree(bundle, tmp_path / "bundle")
    hydrant.sign(folder, tmp_path / "a.pem")
    hydrant.push(folder, NAME)
    hub.requests.clear()
    assert_equal(answers(NAME, trust=maker), answers(bundle))
    assert downloads(hub) | TOKENIZER > contents(folder).keys() - {"model.fp16.onnx"}
    with pytest.raises(BundleError):
        answers(NAME, trust=other)
    files = hub.repositories[NAME].files()
    manifest = files["hydrant/hydrant.json"].content.replace(b'"b"', b'"z"')
    hub.repositories[NAME].commit("main", {**files, "hydrant/hydrant.json": Blob(manifest, lfs=False)})
    with pytest.raises(BundleError, match=r"is not what the owner of .* signed .*hydrant\.json"):
        answers(NAME, trust=maker)


@pytest.mark.usefixtures("undrawn")
def test_a_download_is_evaluated_but_not_changed(
    hub: Hub, pushed: Repository, bundle: Path, text_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs, ours = hydrant.evaluate(NAME, text_csv, compare=[bundle], backend="onnxruntime").models
    assert theirs.figures == ours.figures
    assert "cannot be changed; download a copy of your own: hf download user/repo --local-dir" in caplog.text


def test_the_command_line(hub: Hub, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In processes of their own, with another cache, whose other ways to a network are closed."""
    closed = {f"{kind}_PROXY": "http://127.0.0.1:9" for kind in ("HTTP", "HTTPS", "ALL")}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    for name, value in {**closed, **settings, "NO_PROXY": "127.0.0.1,localhost", "HF_HUB_OFFLINE": "0"}.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "hydrant", *map(str, arguments), "--revision", "v2"]
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    done = run("push", bundle, NAME, "--private")
    assert done.returncode == 0, done.stderr
    assert f"wrote {hub.url}/{NAME}/commit/" in done.stdout
    done = run("predict", NAME, TEXTS[0])
    assert done.returncode == 0, done.stderr
    assert f" {answers(bundle)['probabilities'][0].max():.3g} " in done.stdout
    with command(NAME, "--revision", "v2", "--backend", "onnxruntime") as (_, ready):
        assert "repo" in str(ready)
    done = run("inspect", NAME)
    assert done.returncode == 0, done.stdout
    done = run("inspect", "user/other")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert done.stderr.startswith("hydrant: error: user/other is neither a folder nor a repository")
