"""Killed at any moment, a bundle is the old one or the new one, and nothing stays behind."""

from __future__ import annotations

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

import hydrant
import numpy as np
import pytest
from hydrant.bundle import journal, owned
from hydrant.bundle.files import write_atomically
from hydrant.bundle.journal import JOURNAL, NEW, PURPOSE
from hydrant.bundle.store import MANIFEST, Bundle, new_bundle
from hydrant.errors import BundleError, HydrantError, InputError
from support import CLASSES, make_inputs, make_model, random_plan

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


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process left is litter at once, not after a minute."""
    monkeypatch.setattr(owned, "LITTER_SECONDS", 0.0)


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
    monkeypatch.setattr(journal.os, "link", counted(os.link))
    monkeypatch.setattr(owned.shutil, "rmtree", lambda *_, **__: None)
    return lambda: done


@pytest.mark.parametrize("step", range(14))
def test_after_every_step_the_bundle_is_the_old_or_the_new_one(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aged: None
) -> None:
    bundle = make(tmp_path / "out")
    with monkeypatch.context() as patch:
        steps = killed_at(patch, step)
        try:
            bundle.add(dict.fromkeys(FILES, b"new"))
        except SystemExit:
            pass
        else:
            assert steps() <= step
    assert contents(tmp_path / "out") in ({"old"}, {"new"})
    assert hidden(tmp_path / "out") == []


CHILD = """
import sys; from pathlib import Path; from hydrant.bundle.store import Bundle
print("ready", flush=True)
for turn in range(10**6):
    Bundle.open(sys.argv[1]).add(dict.fromkeys({files!r}, str(turn).encode() * 2000))
"""


def test_killed_at_random_moments(tmp_path: Path, aged: None) -> None:
    """Two writers, one of which is killed; whoever opens next finds every file of one turn."""
    make(tmp_path / "out", "0")
    draw = random.Random(3)
    command = [sys.executable, "-c", CHILD.format(files=FILES), str(tmp_path / "out")]
    for _ in range(6):
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
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
    inputs = {name: tensor.numpy() for name, tensor in make_inputs("bert", batch=40).items()}
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


def test_where_names_cannot_be_exchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "out", "0")
    monkeypatch.setattr(owned, "_exchanged", lambda *_: False)
    with new_bundle(tmp_path / "out", KEYS, force=True) as stage:
        (stage / "one.json").write_text("1")
    assert Bundle.open(tmp_path / "out").file("one.json").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_living_writer_keeps_what_it_is_about(tmp_path: Path, aged: None) -> None:
    bundle = make(tmp_path / "out")
    with owned.owned_folder(bundle.path, PURPOSE) as stage:
        (stage / "mine").write_text("x")
        bundle.add({"one.json": b"new"})
        owned.sweep(bundle.path, PURPOSE)
        assert (stage / "mine").read_text() == "x"
    assert hidden(bundle.path) == []


def test_litter_of_killed_processes_goes(tmp_path: Path, aged: None) -> None:
    """Folders beside a new bundle, files beside a new file; what only looks alike stays."""
    for place in (".out.0123456789ab.stage", ".out.note.stage"):
        (tmp_path / place).mkdir()
    for place in (".plan.json.0123456789ab.part", ".plan.json.txt"):
        (tmp_path / place).write_bytes(b"")
    make(tmp_path / "out")
    write_atomically(tmp_path / "plan.json", b"{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.note.stage", ".plan.json.txt", "out", "plan.json"]


def hostile(folder: Path, **entry: object) -> None:
    stage = folder / f".{PURPOSE}.0123456789ab.stage"
    (stage / NEW).mkdir(parents=True)
    (stage / NEW / "one.json").write_text("new")
    whole = {"names": ["one.json"], "gone": [], "fresh": [], "forward": True}
    (stage / JOURNAL).write_text(json.dumps({**whole, **entry}))


@pytest.mark.parametrize(
    "entry",
    [
        {"names": ["../mine"]},
        {"gone": ["../mine"]},
        {"gone": ["/etc/x"]},
        {"names": "one.json"},
        {"forward": 1},
        {"names": [3]},
    ],
    ids=str,
)
def test_a_journal_leads_nowhere_else(entry: dict[str, object], tmp_path: Path) -> None:
    make(tmp_path / "out")
    (tmp_path / "mine").write_text("mine")
    hostile(tmp_path / "out", **entry)
    with pytest.raises(BundleError, match=r"is no journal of hydrant's .*; remove"):
        Bundle.open(tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_journal_takes_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Its folder of new files is a link to one with files of the user."""
    make(tmp_path / "out")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "one.json").write_text("mine")
    hostile(tmp_path / "out")
    new = tmp_path / "out" / f".{PURPOSE}.0123456789ab.stage" / NEW
    (new / "one.json").unlink()
    new.rmdir()
    new.symlink_to(tmp_path / "own", target_is_directory=True)
    with pytest.raises(BundleError, match="is a link out of the bundle"):
        Bundle.open(tmp_path / "out")
    assert (tmp_path / "own" / "one.json").read_text() == "mine"


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
