"""What a command writes: regular files are replaced whole, all else is written through, and failures leave nothing."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hydrant import HeadPlan
from hydrant.bundle.staging import check_file, destination, staged_folder, write_atomically
from hydrant.errors import InputError
from support import run_cli, stdout_of
from test_files_and_bundle import make_bundle, tree


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Path]:
    """A character device that swallows everything, of this test's own; the machine's stays as it is."""
    before = Path(os.devnull).stat()
    path = tmp_path / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.open("wb").close()
    except OSError:
        pytest.skip("no device can be made or opened here")
    yield path
    assert stat.S_ISCHR(path.stat().st_mode), "the device was replaced"
    after = Path(os.devnull).stat()
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)


def read_through(fifo: Path, write: Callable[[], object]) -> bytes:
    """What ``write`` puts into a FIFO."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    write()
    reader.join(60)
    assert stat.S_ISFIFO(fifo.stat().st_mode), "the FIFO was replaced"
    return found[0]


def test_a_device_and_a_fifo_are_written_through(device: Path, tmp_path: Path) -> None:
    check_file(device)
    HeadPlan.all_heads("bert", 2, 4).save(device)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    check_file(fifo)
    assert read_through(fifo, lambda: write_atomically(fifo, b"x" * 100_000)) == b"x" * 100_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["device", "fifo"]


@pytest.mark.parametrize("existing", [True, False])
def test_a_link_stays_and_its_target_is_replaced(existing: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    if existing:
        target.write_bytes(b"old")
        inode = target.stat().st_ino
    (tmp_path / "middle").symlink_to("far/target")
    link.symlink_to(tmp_path / "middle")
    check_file(link)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()
    assert not existing or target.stat().st_ino != inode, "replaced whole, not written into"
    assert [path.name for path in target.parent.iterdir()] == ["target"]


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout")
def test_an_open_file_is_written_where_it_stands(tmp_path: Path) -> None:
    """Standard output in a file: what was there stays, and what follows comes behind it."""
    code = (
        "import sys; from pathlib import Path; from hydrant.bundle.staging import check_file, write_atomically\n"
        "print('first', flush=True); place = Path('/dev/stdout'); check_file(place)\n"
        "write_atomically(place, b'second\\n')\n"
        "print('third')"
    )
    with (tmp_path / "out").open("ab") as out:
        out.write(b"zeroth\n")
        out.flush()
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, cwd="/", env=dict(os.environ))
    assert (tmp_path / "out").read_text().split() == ["zeroth", "first", "second", "third"]
    assert destination(tmp_path / "out") == tmp_path / "out"


def test_commands_write_through_and_follow_links(
    text_bundle: Path, bert_checkpoint: Path, text_csv: Path, device: Path, tmp_path: Path
) -> None:
    stdout_of("plan", bert_checkpoint, "--keep", 2, "--data", text_csv, "-o", device)
    (tmp_path / "plan.json").symlink_to("real.json")
    stdout_of("plan", bert_checkpoint, "--method", "random", "--keep", "2", "-o", tmp_path / "plan.json")
    assert (tmp_path / "plan.json").is_symlink()
    assert HeadPlan.load(tmp_path / "real.json").method == "random"
    predict = ["predict", text_bundle, "--backend", "torch"]
    assert run_cli(*predict, "hello", "--output", device).returncode == 0
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    lines = read_through(fifo, lambda: run_cli(*predict, "--input", text_csv, "--output", fifo))
    assert len(lines.splitlines()) == 24


def test_a_failure_takes_the_folders_away_that_it_made(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "there" / "deep" / "er" / "out", "marker"):
        raise KeyboardInterrupt
    assert tree(tmp_path) == {"there": None}
    with pytest.raises(KeyError), staged_folder(tmp_path / "deep" / "er" / "out", "marker"):
        (tmp_path / "deep" / "mine").write_bytes(b"")
        raise KeyError
    assert tree(tmp_path) == {"deep": None, "deep/mine": b"", "there": None}, "what others put there stays"


def test_a_bundle_keeps_no_folder_of_what_was_not_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = make_bundle(tmp_path / "out")
    before = tree(tmp_path)
    bundle.check_addable("reports/evaluation.json")
    assert tree(tmp_path) == before

    def broken(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hydrant.bundle.staging.commit", broken)
    with pytest.raises(InputError, match=r"cannot write into bundle .*: No space left on device"):
        bundle.add({"reports/deep/x.json": b"{}"})
    assert tree(tmp_path) == before
    monkeypatch.undo()
    bundle.add({"reports/x.json": b"{}"}).check_addable("reports/y.json")
    assert (tmp_path / "out" / "reports" / "x.json").read_bytes() == b"{}"
