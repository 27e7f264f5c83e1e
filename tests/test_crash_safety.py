"""Killed at any moment, a bundle is the old one or the new one, and nothing stays behind."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import command
import hydrant
import numpy as np
import pytest
from hydrant.bundle import progress_checkpoint, staging, store
from hydrant.bundle.manifest import MANIFEST
from hydrant.bundle.staging import JOURNAL, NEW, PURPOSE
from hydrant.bundle.store import Bundle, new_bundle, staged
from hydrant.errors import BundleError, HydrantError, InputError
from hydrant.runtime.offline import chunks
from hydrant.workflow import workspace
from support import CLASSES, feeds, make_model, random_plan

KEYS = {"hydrant": "0", "family": "bert", "members": 1, "labels": ["a", "b"]}
FILES = ("one.json", "deep/two.json", "three.json")


def make(folder: Path, content: str = "old") -> Bundle:
    with new_bundle(folder, KEYS) as stage:
        (stage / "deep").mkdir()
        for name in FILES:
            (stage / name).write_text(content)
    return Bundle.open(folder)


def contents(folder: Path) -> set[str]:
    """What the files of a bundle hold, each after its digest was compared."""
    bundle = Bundle.open(folder)
    return {bundle.file(name).read_text() for name in FILES}


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Every renaming and removal from the given one on fails as if the process were gone; how many there were."""
    done = 0

    def counted(method: Callable[..., object]) -> Callable[..., object]:
        def run(*arguments: object, **options: object) -> object:
            nonlocal done
            done += 1
            if done > step:
                raise SystemExit
            return method(*arguments, **options)

        return run

    for name in ("replace", "unlink", "write_text"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(staging.os, "link", counted(os.link))
    monkeypatch.setattr(staging.shutil, "rmtree", lambda *_, **__: None)
    return lambda: done


STEPS = 10
"""Renamings, links, removals and small files that putting three files into a bundle takes."""


@pytest.mark.parametrize("step", range(STEPS + 1))
def test_after_every_step_the_bundle_is_the_old_or_the_new_one(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make(tmp_path / "out")
    with monkeypatch.context() as patch:
        steps = killed_at(patch, step)
        with contextlib.nullcontext() if step == STEPS else pytest.raises(SystemExit):
            bundle.add(dict.fromkeys(FILES, b"new"))
        assert steps() == STEPS if step == STEPS else steps() > step
    assert contents(tmp_path / "out") in ([{"old"}, {"new"}] if step < STEPS else [{"new"}])
    assert hidden(tmp_path / "out") == []


CHILD = """
import sys; from pathlib import Path; from hydrant.bundle.store import Bundle
print("ready", flush=True)
for turn in range(10**6):
    Bundle.open(sys.argv[1]).add(dict.fromkeys({files!r}, str(turn).encode() * 2000))
"""


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Two writers, one of which is killed; whoever opens next finds every file of one turn."""
    make(tmp_path / "out", "0")
    draw = random.Random(3)
    words = [sys.executable, "-c", CHILD.format(files=FILES), str(tmp_path / "out")]
    for _ in range(6):
        writers = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        time.sleep(draw.uniform(0.01, 0.15))
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate()
        assert len(contents(tmp_path / "out")) == 1
        assert hidden(tmp_path / "out") == []


def test_readers_during_replacement_see_one_bundle(tmp_path: Path) -> None:
    """Temperature and graph of one turn: the graph's metadata tell its calibration, which loading compares."""
    folder = tmp_path / "out"
    hydrant.save_bundle(hydrant.fuse(make_model("bert"), random_plan("bert", 2)), folder)
    hydrant.export_onnx(folder)
    first = {name: (folder / name).read_bytes() for name in ("calibration.json", "model.fp32.onnx", "plan.json")}
    inputs = feeds("bert", batch=40)
    hydrant.calibrate(folder, (inputs, np.arange(40) % CLASSES))
    second = {name: (folder / name).read_bytes() for name in first}
    stop, failures, loaded = threading.Event(), [], []

    def read() -> None:
        while not stop.is_set():
            try:
                with hydrant.load(folder, "onnxruntime") as predictor:
                    loaded.append(predictor.calibration.temperature)
            except HydrantError as error:
                failures.append(str(error))

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for turn in range(40):
            Bundle.open(folder).add(first if turn % 2 else second)
            time.sleep(0.02)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert len(set(loaded)) == 2


def test_replacing_a_whole_bundle_is_one_step(tmp_path: Path) -> None:
    """On Linux the name is never free, so that a reader finds one or the other."""
    if not sys.platform.startswith("linux"):
        pytest.skip("other systems cannot exchange two names")
    make(tmp_path / "out", "0")
    stop, missing = threading.Event(), []

    def watch() -> None:
        while not stop.is_set():
            if not (tmp_path / "out" / MANIFEST).exists():
                missing.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for turn in range(60):
        with new_bundle(tmp_path / "out", KEYS, force=True) as stage:
            (stage / "one.json").write_text(str(turn))
    stop.set()
    watcher.join()
    assert missing == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_litter_of_killed_processes_goes(tmp_path: Path) -> None:
    """What only looks alike stays."""
    for place in (".out.0123456789ab.stage", "..out.0123456789ab.stage.ab0123456789.stage", ".out.note.stage"):
        (tmp_path / place).mkdir()
    make(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.note.stage", "out"]


def hostile(folder: Path, **entry: object) -> None:
    stage = folder / f".{PURPOSE}.0123456789ab.stage"
    (stage / NEW).mkdir(parents=True)
    (stage / NEW / "one.json").write_text("new")
    whole = {"names": ["one.json"], "gone": [], "fresh": [], "forward": True}
    (stage / JOURNAL).write_text(json.dumps({**whole, **entry}))


@pytest.mark.parametrize(
    "entry",
    [{"names": ["../mine"]}, {"gone": ["/etc/x"]}, {"forward": 1}, {"names": ["a\0/b"]}, {"gone": ["a\ud800/b"]}],
    ids=str,
)
def test_a_journal_leads_nowhere_else(entry: dict[str, object], tmp_path: Path) -> None:
    make(tmp_path / "out")
    (tmp_path / "mine").write_text("mine")
    hostile(tmp_path / "out", **entry)
    with pytest.raises(BundleError, match=r"journal\.json is not .*; remove"):
        Bundle.open(tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_full_disk_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make(tmp_path / "out")
    replace = Path.replace

    def full(self: Path, target: Path) -> Path:
        if Path(target).name == "three.json" and self.parent.name == NEW:
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        bundle.add(dict.fromkeys(FILES, b"new"))
    monkeypatch.undo()
    assert contents(tmp_path / "out") == {"old"}
    assert hidden(tmp_path / "out") == []


def interrupted(folder: Path) -> None:
    """What a writer leaves that is killed while it gives files their places: the manifest is still to come."""
    stage = folder / f".{PURPOSE}.0123456789ab.stage"
    (stage / NEW).mkdir(parents=True)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["one.json"] = {"bytes": 3, "sha256": hashlib.sha256(b"new").hexdigest()}
    (stage / NEW / MANIFEST).write_text(json.dumps(manifest))
    (folder / "one.json").write_text("new")
    entry = {"names": ["one.json", MANIFEST], "gone": [], "fresh": [], "forward": True}
    (stage / JOURNAL).write_text(json.dumps(entry))


def test_who_waits_for_a_writer_that_is_killed_finishes_its_work_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal comes after the waiting one looked for it, and before it has the lock."""
    bundle = make(tmp_path / "out")
    waiting = iter([True])

    def meanwhile(folder: Path, stage: Path, name: str, content: bytes | Path) -> Path:
        if next(waiting, False):
            interrupted(folder)
        return staged(folder, stage, name, content)

    monkeypatch.setattr(store, "staged", meanwhile)
    bundle.add({"three.json": b"newer"})
    opened = Bundle.open(tmp_path / "out")
    assert [opened.file(name).read_text() for name in FILES] == ["new", "old", "newer"]
    assert hidden(tmp_path / "out") == []


def test_a_bundle_that_is_kept_is_opened_again_while_a_writer_waits(tmp_path: Path) -> None:
    """A second lock of one's own would be waited for without end."""
    bundle, opened = make(tmp_path / "out"), threading.Event()

    def within() -> None:
        with staging.owned_folder(bundle.path, PURPOSE), bundle.kept():
            Bundle.open(bundle.path)
            opened.set()

    threading.Thread(target=within, daemon=True).start()
    assert opened.wait(10)


def test_the_last_copy_of_a_bundle_is_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between two renamings where names cannot be exchanged, and then a writer that fails."""
    make(tmp_path / "out", "mine")
    monkeypatch.setattr(staging, "_exchanged", lambda *_: False)
    replace = Path.replace
    done: list[int] = []

    def once(self: Path, target: Path) -> Path:
        if Path(target) == tmp_path / "out" or done:
            raise SystemExit
        done.extend([1] * target.name.startswith("."))
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", once)
        patch.setattr("hydrant.bundle.staging.write_atomically", lambda path, content: path.write_bytes(content))
        with pytest.raises(SystemExit), new_bundle(tmp_path / "out", KEYS, force=True) as stage:
            (stage / "one.json").write_bytes(b"new")
    with pytest.raises(RuntimeError), new_bundle(tmp_path / "out", KEYS):
        raise RuntimeError
    assert [path.read_text() for path in tmp_path.glob(".*/one.json")] == ["mine"]
    make(tmp_path / "out")
    with new_bundle(tmp_path / "out", KEYS, force=True):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_are_on_the_disk_before_the_journal_tells_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal before they take their places, and their places before it goes."""
    flushed: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.add(os.fstat(descriptor).st_ino))
    bundle = make(tmp_path / "out")
    write, forward = staging._write, staging._forward

    def written(stage: Path, entry: dict[str, object]) -> None:
        assert {path.stat().st_ino for path in (bundle.path, stage, *stage.rglob("*"))} <= flushed
        flushed.clear()
        write(stage, entry)

    def taken(folder: Path, stage: Path, entry: dict[str, object]) -> None:
        assert flushed == {stage.stat().st_ino, (stage / JOURNAL).stat().st_ino}
        flushed.clear()
        forward(folder, stage, entry)

    monkeypatch.setattr(staging, "_write", written)
    monkeypatch.setattr(staging, "_forward", taken)
    bundle.add({"one.json": b"new", "deep/two.json": b"new"})
    assert flushed == {bundle.path.stat().st_ino, (bundle.path / "deep").stat().st_ino}


def test_a_making_that_is_killed_while_it_begins_or_ends_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is there with what it did, or not at all; what was about to be removed is litter."""
    folder, digests = tmp_path / "out.make", {"model": "0"}
    with monkeypatch.context() as patch:
        patch.setattr(staging.shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(progress_checkpoint, "to_json_bytes", killed)
        with pytest.raises(SystemExit):
            workspace.Workspace(folder, digests).stage("plan", lambda: {"heads": 3})
    assert not folder.exists()
    begun = workspace.Workspace(folder, digests)
    assert begun.stage("plan", lambda: {"heads": 3}) == {"heads": 3}
    assert workspace.Workspace(folder, digests).recorded("plan")
    assert [path.name for path in tmp_path.iterdir()] == ["out.make"]
    with monkeypatch.context() as patch:
        patch.setattr(staging.shutil, "rmtree", lambda *_, **__: None)
        begun.remove()
    assert not folder.exists()
    make(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def killed(*_: object, **__: object) -> None:
    raise SystemExit


def test_chunks_of_a_part_that_is_whole_go_with_the_next_run(tmp_path: Path) -> None:
    """Killed after the part took its place, or while its chunks were removed."""
    output, job = tmp_path / "part.jsonl", {"inputs": "0"}
    with pytest.raises(SystemExit), chunks.open_chunks(output, job, range(4), 2) as found:
        found.file(0).write_bytes(b'{"index": 0}\n{"index": 1}\n')
        raise SystemExit
    (tmp_path / f".{output.name}.0123456789ab.stage").mkdir()
    chunks.drop(output, {"inputs": "another"})
    assert [path.name for path in tmp_path.iterdir()] == ["part.jsonl.chunks"]
    chunks.drop(output, job)
    assert list(tmp_path.iterdir()) == []


def test_every_verb_killed_in_its_short_form(bert_checkpoint: Path, text_csv: Path, tmp_path: Path) -> None:
    """The program of docs/reference/promises.md, which kills by itself."""
    place = Path(__file__).parents[1] / "benchmarks" / "crash.py"
    output = tmp_path / "found.json"
    words = ["kills", bert_checkpoint, text_csv, "--verbs", "export", "--kills", "2", "--steps", "3", "-o", output]
    code = f"import runpy, sys; sys.path.append({str(place.parent)!r})\n"
    code += f"runpy.run_path({str(place)!r}, None, '__main__')"
    done = command.run([str(word) for word in words], os.environ, "/", "", 300, code)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(output.read_text())["export"]
    assert document["faults"] == []
    assert document["random moments"] == 2
    assert document["steps"] == 3
    assert document["of"] > 15
    assert sum(document.get(name, 0) for name in ("old", "new", "too late")) == 5
