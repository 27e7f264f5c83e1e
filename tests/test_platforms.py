"""Other systems, simulated: no advisory locks, folders that cannot be opened, no hard links, names, separators.

None of this is a run on Windows or macOS (docs/reference/support.md).
"""

import itertools
import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import httpx
import pytest
from hydrant import Bundle, HydrantError, load
from hydrant.bundle import staging
from hydrant.bundle.manifest import check_apart, safe_name, stays_inside
from hydrant.bundle.store import new_bundle
from hydrant.errors import BundleError
from hypothesis import given, settings
from hypothesis import strategies as st
from other_system import ABSENT, without_proc

OLDER = Path(__file__).parent / "bundles_0_1_0"
KEYS: dict[str, Any] = {"hydrant": "0.2.0", "family": "bert", "members": 1, "labels": ["a", "b"]}


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Windows refuses: locks, opening a folder, exchanging two names; and a disk without hard links."""
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)

    def no_links(*_: Any, **__: Any) -> None:
        raise OSError(1, "Incorrect function")

    monkeypatch.setattr(os, "open", without_proc(os.open, files_only=True))
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(staging, "_exchanged", lambda *_: False)


def made(path: Path, content: bytes = b"old", force: bool = False) -> Bundle:
    with new_bundle(path, KEYS, force=force) as folder:
        (folder / "processor").mkdir()
        (folder / "processor/one.json").write_bytes(content)
        (folder / "two.json").write_bytes(content)
    return Bundle.open(path)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def test_bundles_are_made_replaced_and_added_to_without_locks(tmp_path: Path, windows: None) -> None:
    bundle = made(tmp_path / "out")
    bundle = bundle.add({"processor/one.json": b"new", "reports/three.json": b"new"}, remove=["two.json"])
    digests = {name: bundle.file(name).read_bytes() for name in bundle.manifest["files"]}
    assert digests == {"processor/one.json": b"new", "reports/three.json": b"new"}
    (tmp_path / ".out.0123456789ab.stage").mkdir()
    assert made(tmp_path / "out", b"newer", force=True).file("two.json").read_bytes() == b"newer"
    assert hidden(tmp_path) == [".out.0123456789ab.stage"], "its maker may be alive"


LIBRARIES = "msgspec,numpy,onnxruntime,PIL.Image,safetensors.numpy,subprocess,tokenizers,tqdm"
MAKING = "accelerate,datasets,matplotlib.pyplot,onnx,onnxscript,peft,polygraphy,scipy.stats,sklearn,torch,transformers"
SERVING = "asyncio,grpc.aio,httptools,prometheus_client,starlette.routing,uvicorn"


def on(system: str, libraries: str, *words: object) -> list[str]:
    """The command line of hydrant on another system, simulated."""
    return [sys.executable, str(Path(__file__).with_name("other_system.py")), system, libraries, *map(str, words)]


def output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_bundles_are_made_without_what_windows_lacks(bert_checkpoint: Path, tmp_path: Path) -> None:
    """Planned, fused, tuned, exported, calibrated and verified."""
    words = ("hello", "world", "transfer", "money", "today", "what", "is", "the", "weather")
    texts = [" ".join(each) for each in itertools.permutations(words, 3)][::4]
    for name, rows in (("train", texts[:40]), ("validation", texts[40:])):
        lines = [f"{text},{'abcde'[len(text) % 5]}" for text in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *lines, ""]))
    data = ("--data", tmp_path / "train.csv", "--validation", tmp_path / "validation.csv")
    options = ("--members", 2, "--budget", 1.2, "--epochs", 1, "-o", tmp_path / "out")
    made = output(on("win32", f"{LIBRARIES},{MAKING}", "make", bert_checkpoint, *data, *options))
    assert f"wrote {tmp_path / 'out'}" in made
    assert hidden(tmp_path) == []
    with load(tmp_path / "out", "onnxruntime") as predictor:
        assert predictor.predict("hello world").abstain is not None


@pytest.mark.slow
def test_a_bundle_is_replaced_without_what_macos_lacks(bert_checkpoint: Path, tmp_path: Path) -> None:
    made(tmp_path / "out")
    libraries = f"{LIBRARIES},torch,transformers"
    output(on("darwin", libraries, "fuse", bert_checkpoint, "--members", 2, "-o", tmp_path / "out", "--force"))
    assert Bundle.open(tmp_path / "out").has("fused.safetensors")
    assert hidden(tmp_path) == []


@pytest.mark.slow
def test_a_service_answers_and_ends_on_a_signal_without_what_windows_lacks() -> None:
    words = ("serve", OLDER / "text", "--port", 0, "--grpc-port", 0, "--json")
    command = on("win32", f"{LIBRARIES},{SERVING}", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/") as process:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        port = json.loads(line)["port"]
        answer = httpx.post(f"http://127.0.0.1:{port}/predict", json={"inputs": ["hello world"]}, timeout=30)
        process.terminate()
        assert (len(answer.json()["predictions"]), process.wait(30), process.stderr.read()) == (1, 0, "")
    done = subprocess.run([*command, "--workers", "2"], capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--workers 1" in done.stderr


UNPORTABLE = ["NUL", "processor/nul.json", "aux.tar.gz", "Com1", "com¹.json", "CONIN$", "a./b", "a ", "a*b", "a\x1fb"]
PORTABLE = ["null.json", "com10.json", ".hidden", "a b/c.d", "ünïcode.json"]
OUTSIDE = ["", "..", "../a", "/a", "a/../b", "a//b", "C:a", "a\\b", "a\0b"]


def test_names_that_not_every_system_holds() -> None:
    for name in UNPORTABLE:
        with pytest.raises(BundleError, match="Windows"):
            safe_name(name, Path("hydrant.json"))
    assert [safe_name(name, Path("hydrant.json")) for name in PORTABLE] == PORTABLE
    assert [name for name in OUTSIDE if stays_inside(name)] == []
    assert [name for name in UNPORTABLE + PORTABLE if not stays_inside(name)] == []


@settings(max_examples=200, deadline=None)
@given(st.text(min_size=1, max_size=12), st.sampled_from(["NFC", "NFD"]))
def test_a_name_and_its_other_spellings_are_one_place(name: str, form: Any) -> None:
    for names in ([name, name], ["x" + unicodedata.normalize(form, name), "x" + name]):
        with pytest.raises(BundleError, match="same file"):
            check_apart(names, Path("hydrant.json"))
    check_apart([name, f"{name}-"], Path("hydrant.json"))


def listed(bundle: Bundle, *names: str) -> Path:
    manifest = json.loads((bundle.path / "hydrant.json").read_text())
    manifest["files"] |= {name: {"bytes": 0, "sha256": "0" * 64} for name in names}
    (bundle.path / "hydrant.json").write_text(json.dumps(manifest))
    return bundle.path


REFUSED = [
    (("processor/NUL.json",), r"lists the file 'processor/NUL.json', .*Windows"),
    (("processor/ONE.json",), r"lists the files 'processor/ONE.json' and 'processor/one.json'"),
    (("é" * 128,), r"lists the file '.*', a name of more than 255 bytes between two /, or 1024 in all"),
    (tuple(f"{number}" for number in range(4096)), r"lists 4099 files, itself included; expected at most 4096"),
]


@pytest.mark.parametrize(("names", "words"), REFUSED)
def test_manifests_that_other_systems_read_otherwise_are_refused(
    names: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(HydrantError, match=words):
        Bundle.open(listed(made(tmp_path / "out"), *names))


def test_files_that_would_be_one_elsewhere_are_not_written(tmp_path: Path) -> None:
    bundle = made(tmp_path / "out")
    for name in ("processor/One.json", "aux"):
        with pytest.raises(HydrantError, match=r"Windows"):
            bundle.add({name: b"x"})
    assert made(tmp_path / "again").digests() == Bundle.open(bundle.path).digests()
