"""Kills every verb that writes, and runs it on full and read-only disks; checks what it leaves.

    python benchmarks/crash.py kills MODEL DATA --kills 200 --jobs 16 -o results.json
    python benchmarks/crash.py disks MODEL DATA --sizes 12 --jobs 16 -o results.json

Each verb is first run whole, for its results and its time. ``kills``: it is started again and again over earlier
results, and gets SIGKILL: at moments drawn evenly from that time, and just before each change that it makes to the file
system. ``disks`` (needs Linux and the right to mount): it runs over earlier results in a small memory disk, which also
holds its temporary files: with no room, with more than its work takes, with sizes in between that grow by the same
factor, and read-only.

The files must be the earlier ones or the verb's results, and whole: a bundle opens, and every file has its digest.
(If a verb writes separate files, such as rows and errors, this holds for each file; for a Triton ensemble, for each
model.) On a disk the verb ends well, or with status 2 and one line that names the disk's fault. Then, with room, the
same command runs again: it must end well, and leave no hidden files. Status 1 if not. (For slow verbs, ``--again 10``
runs the command again after every tenth kill only.)
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import harness
from crash_verbs import VERBS, Bench, Forked, States, hidden, import_all, known

MS_RDONLY, MS_REMOUNT = 1, 32
DISK = "size=256m"  # A file fills it but for the room that is to be left
WARNED = {"verify", "profile", "evaluate"}  # Verbs that print their results, and warn if these cannot be stored

Trial = Callable[[Path, Bench, States], str]  # Runs a verb once in the folder of the run; the state it left, or a fault


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("kind", choices=["kills", "disks"])
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS), metavar="VERB")
    parser.add_argument("--kills", type=int, default=200, help="of each verb at random moments (default: 200)")
    parser.add_argument("--steps", type=int, default=400, help="most steps before which it is killed (default: 400)")
    parser.add_argument("--again", type=int, default=1, help="run again after every so many kills (default: 1, each)")
    parser.add_argument("--sizes", type=int, default=12, help="sizes of the room that is left (default: 12)")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.kind == "disks" and "HYDRANT_OWN_MOUNTS" not in os.environ:
        alone = ["unshare", "--map-root-user", "--mount", sys.executable, *sys.argv]
        return subprocess.run(alone, env={**os.environ, "HYDRANT_OWN_MOUNTS": "1"}, check=False).returncode
    import_all()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-crash-") as folder:
        place = Path(folder)
        bench = Bench.prepared(place, options.model, options.data, options.verbs)
        for name in options.verbs:
            results[name] = {"not run": f"{VERBS[name].needs} is not installed", "faults": []}
            if known(name):
                results[name] = tried(name, States.of(bench, VERBS[name], place / "now"), place, bench, options)
            harness.save(options.output, results)
            print(f"{name:16} {results[name]}", flush=True)
    return int(any(each["faults"] for each in results.values()))


def tried(name: str, states: States, place: Path, bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Counts of the outcomes of all trials of a verb, and its faults."""
    if options.kind == "kills":
        moments = list(kills(name, states, options))
        trials: list[Trial] = [partial(killed, at, n % options.again == 0) for n, at in enumerate(moments)]
        times = sum(isinstance(at, float) for at in moments)
        facts = {"random moments": times, "steps": len(moments) - times, "of": states.steps}
    else:
        need = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1024
        sizes = [int(4 * (need / 4) ** (at / options.sizes)) for at in range(options.sizes)]
        trials, facts = [partial(on_disk, name, size) for size in (None, 0, *sizes)], {}
    found: Counter[str] = Counter()
    faults = []
    context = get_context("fork")  # the verb's libraries are imported already
    with ProcessPoolExecutor(options.jobs, context, initializer=begin, initargs=(place, bench, states)) as pool:
        for done in as_completed([pool.submit(run, trial) for trial in trials]):
            outcome = done.result()
            found[outcome.partition(":")[0]] += 1
            faults += [outcome] * outcome.startswith("fault")
    return {"seconds": round(states.seconds, 2), **facts, **found, "faults": faults}


def kills(name: str, states: States, options: argparse.Namespace) -> Iterator[float | int]:
    """Moments in seconds, drawn from the time that the verb takes, and its steps, or as many of them as asked."""
    draw = random.Random(f"{options.seed}-{name}")
    for _ in range(options.kills):
        yield draw.uniform(0, 1.02) * states.seconds
    steps = range(states.steps)
    yield from sorted(draw.sample(steps, min(len(steps), options.steps)))


_run: list[Any] = []


def begin(*run: Any) -> None:
    """Keep in this process what :func:`run` needs: the folder of the run, the bench, and the verb's states."""
    _run[:] = run


def run(trial: Trial) -> str:
    return trial(*_run)


def killed(at: float | int, again: bool, place: Path, bench: Bench, states: States) -> str:
    """Kill a verb once, and perhaps run it again."""
    now = place / f"now-{os.getpid()}"
    bench.fresh(now, states.verb)
    words = bench.line(states.verb.words, now)
    if isinstance(at, float):
        late = not Forked(words).killed_after(at)
    else:
        late = Forked(words, step=at, within=now).end()[0] >= 0
    state, left = states.which(now), hidden(now)
    if state.startswith("fault"):
        return f"fault: {at}: {state}"
    if again:
        status, said = Forked(words).end()
        found = states.which(now)
        done = found == "new" or (states.verb.goes_on and state == "new" and "a mix" in found)  # of two tunings
        if status or not done or hidden(now):
            return f"fault: {at}, run again: {status} {said} {found}, left {hidden(now)}, before {left}"
    return "too late" if late and (again or state == "new") else state


def on_disk(name: str, room_kib: int | None, place: Path, bench: Bench, states: States) -> str:
    """Run a verb with so much room, or on a read-only disk (``None``), and again with room."""
    disk = place / f"disk-{os.getpid()}"
    disk.mkdir(exist_ok=True)
    mount(disk, DISK)
    try:
        now, filler, temporary = disk / "now", disk / "filler", partial(tempfile_in, disk / "tmp")
        bench.fresh(now, states.verb)
        (disk / "tmp").mkdir()
        words = bench.line(states.verb.words, now)
        if room_kib is None:
            mount(disk, DISK, MS_REMOUNT | MS_RDONLY)
        else:
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, shutil.disk_usage(disk).free - 1024 * room_kib))
        status, said = Forked(words, before=temporary).end()
        if room_kib is None:
            mount(disk, DISK, MS_REMOUNT)
        outcome = judged(name, states, now, status, said, "read-only" if room_kib is None else "full")
        if outcome.startswith("fault"):
            return f"fault: {room_kib} KiB left: {outcome}"
        filler.unlink(missing_ok=True)
        status, said = Forked(words, before=temporary).end()
        if status or states.which(now) != "new" or hidden(now):
            return f"fault: {room_kib} KiB left, run again: {status} {said} {states.which(now)} {hidden(now)}"
        return outcome
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def judged(name: str, states: States, now: Path, status: int, said: str, disk: str) -> str:
    """The outcome on a disk without room."""
    which, left = states.which(now), [path for path in hidden(now) if path.startswith(".")]
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
    """Put temporary files on the small disk, too."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def mount(place: Path, options: str, flags: int = 0) -> None:
    """Mount a memory disk, or change it."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"hydrant", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(status)
