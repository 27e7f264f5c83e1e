"""Every verb that writes, on full and on read-only disks: `python benchmarks/full_disk.py MODEL DATA --jobs 16`.

Needs Linux and the right to mount (root, or user namespaces). Each verb runs over what stood there before in a small
memory disk, which also holds its temporary files, with so much room left: none, more than its whole work takes, and
sizes in between, each larger than the last by the same factor. Either it ends well, and what it makes is there; or it
ends with status 2 and one line that says why, what stood there before stands there, and nothing is hidden beside it. On
a read-only disk it is the same. Then, with room again, the same command has to end well. Status 1 if not.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crash_verbs import VERBS, Bench, Forked, States, hidden, import_all, known, save

MS_RDONLY, MS_REMOUNT = 1, 32
DISK = "size=256m"
"""A file fills it but for the room that is to be left."""
WARNED = {"verify", "profile", "evaluate"}
"""Verbs that show what they found, and warn where it cannot be kept."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS), metavar="VERB")
    parser.add_argument("--sizes", type=int, default=12, help="sizes of the room that is left (default: 12)")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other (default: 1)")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    if "HYDRANT_OWN_MOUNTS" not in os.environ:
        alone = ["unshare", "--map-root-user", "--mount", sys.executable, *sys.argv]
        return subprocess.run(alone, env={**os.environ, "HYDRANT_OWN_MOUNTS": "1"}, check=False).returncode
    import_all()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-disk-") as folder:
        place = Path(folder)
        bench = Bench.prepared(place, options.model, options.data, options.verbs)
        for name in filter(known, options.verbs):
            results[name] = tried(name, States.of(bench, VERBS[name], place / "now"), place, bench, options)
            save(options.output, results)
            print(f"{name:16} {results[name]}", flush=True)
    return int(any(each["faults"] for each in results.values()))


def tried(name: str, states: States, place: Path, bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Run one verb on all disks; what came of it."""
    need = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1024
    sizes = [0, *(int(4 * (need / 4) ** (at / options.sizes)) for at in range(options.sizes))]
    found: Counter[str] = Counter()
    faults = []
    context = get_context("fork")  # what the verb imports is there already
    with ProcessPoolExecutor(options.jobs, context, initializer=begin, initargs=(place, bench, states)) as pool:
        for done in as_completed([pool.submit(trial, name, size) for size in [None, *sizes]]):
            verdict = done.result()
            found[verdict.split(":")[0]] += 1
            faults += [verdict] if verdict.startswith("fault") else []
    return {**found, "seconds": round(states.seconds, 2), "faults": faults}


_given: list[Any] = []


def begin(*given: Any) -> None:
    """Let this process know what :func:`trial` needs: the folder of the run, the bench, and the verb's states."""
    _given[:] = given


def trial(name: str, room_kib: int | None) -> str:
    """Run a verb with so much room, or on a read-only disk (``None``); what came of it."""
    place, bench, states = _given
    disk = place / f"disk-{os.getpid()}"
    disk.mkdir(exist_ok=True)
    mount(disk, DISK)
    try:
        now = disk / "now"
        bench.fresh(now, states.verb)
        (disk / "tmp").mkdir()
        words = bench.line(states.verb.words, now)
        filler = disk / "filler"
        if room_kib is None:
            mount(disk, DISK, MS_REMOUNT | MS_RDONLY)
        else:
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - 1024 * room_kib))
        status, said = Forked(words, before=lambda: tempfile_in(disk / "tmp")).end()
        where = "read-only" if room_kib is None else f"{room_kib} KiB left"
        if room_kib is None:
            mount(disk, DISK, MS_REMOUNT)
        verdict = judged(name, states, now, status, said, "read-only" if room_kib is None else "full")
        if verdict.startswith("fault"):
            return f"fault: {where}: {verdict}"
        filler.unlink(missing_ok=True)
        status, said = Forked(words, before=lambda: tempfile_in(disk / "tmp")).end()
        if status or states.which(now) != "new" or hidden(now):
            return f"fault: {where}, then run again: {status} {said} {states.which(now)} {hidden(now)}"
        return verdict
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def judged(name: str, states: States, now: Path, status: int, said: str, disk: str) -> str:
    """What a verb left on a disk without room."""
    which, left = states.which(now), [path for path in hidden(now) if "." in path.split("/")[0][:1]]
    lines = said.strip().splitlines()
    if left:
        return f"fault: status {status}, {which}, left {left}"
    if status == 0 and which == "new":
        return "done"
    if status == 0 and which in ("old", "apart") and name in WARNED and any("was not stored" in line for line in lines):
        return f"{disk}, warned: {which}"
    errors = [line for line in lines if line.startswith("hydrant: error: ")]
    kind = {"full": "No space left on device", "read-only": "Read-only file system"}[disk]
    ours = len(errors) == 1 and kind in errors[0] and "unexpected" not in errors[0] and "Traceback" not in said
    if status == 2 and ours and which in ("old", "apart"):
        return f"{disk}, refused: {which}"
    return f"fault: status {status}, {which}, {said[-500:]!r}"


def tempfile_in(folder: Path) -> None:
    """Let temporary files lie on the small disk, too."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def mount(place: Path, options: str, flags: int = 0) -> None:
    """Mount a memory disk, or change it.

    Raises:
        OSError: it cannot be.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"hydrant", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(status)
