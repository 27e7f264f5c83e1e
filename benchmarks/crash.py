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
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import mmap
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a forked process has none of its parent's threads
os.environ.update(CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", MPLBACKEND="agg")

import harness
from hydrant.bundle.store import Bundle
from hydrant.cli.main import main as command
from hydrant.errors import HydrantError

DATA = ["--data", "{data}"]


@dataclass(frozen=True)
class Verb:
    """A verb that writes."""

    words: Sequence[str]  # of its command line
    writes: Sequence[str] = ("out",)  # what it writes, in the folder of the trial; a bundle is named ``out``
    apart: bool = False  # whether what it writes are files of their own, each of which may be old or new
    needs: str = "torch"  # module without which it cannot run
    goes_on: bool = False  # whether the same command over what it made makes something else, as tuning in place does


DEMO = ["demo", "--epochs", "1", "-o", "{now}/demo"]
TRITON = ["triton", "{given}/out", "-o", "{now}/models", "--name", "tiny", "--force"]
VERBS = {
    "plan": Verb(["plan", "{model}", *DATA, "--keep", "2", "-o", "{now}/plan.json"], ["plan.json"]),
    "circuits": Verb(
        ["plan", "{model}", *DATA, "--ood", "{other}", "--method", "circuit", "--keep", "3", "--members", "2",
         "-o", "{now}/plan.json"], ["plan.json"],
    ),
    "fuse": Verb(["fuse", "{model}", "--plan", "{given}/plan.json", "-o", "{now}/out", "--force"]),
    "fuse --traced": Verb(
        ["fuse", "{model}", "--traced", "--plan", "{given}/traced.json", "-o", "{now}/out", "--force"]
    ),
    "tune": Verb(["tune", "{now}/out", *DATA, "--epochs", "1"], needs="accelerate", goes_on=True),
    "export": Verb(["export", "{now}/out", "--member-outputs"]),
    "export --precision fp16": Verb(["export", "{now}/out", "--precision", "fp16"]),
    "export --tokenizer": Verb(["export", "{now}/out", "--tokenizer"], needs="onnxruntime_extensions"),
    "calibrate": Verb(["calibrate", "{now}/out", *DATA, "--fit", "{data}"], needs="sklearn"),
    "verify": Verb(["verify", "{now}/out", "--backend", "onnxruntime", "--read", "examples=4"], needs="onnxruntime"),
    "evaluate": Verb(
        ["evaluate", "{now}/out", *DATA, "--html", "{now}/report.html", "--bootstrap", "9"],
        ["out", "report.html"], True, needs="sklearn",
    ),
    "profile": Verb(
        ["profile", "{now}/out", "--backend", "onnxruntime", "--seconds", "0.02", "--batch", "1",
         "--sequence", "8", "--no-memory"], needs="onnxruntime",
    ),
    "build": Verb(
        ["build", "{now}/out", "--backend", "tensorrt-rtx", "--precision", "fp32", "--batch", "1:1:2",
         "--sequence", "4:4:8", "--compute-capability", "8.9"], needs="tensorrt_rtx",
    ),
    "make": Verb(
        ["make", "{model}", *DATA, "--validation", "{other}", "--epochs", "1", "--members", "2", "-o", "{now}/out",
         "--force", "--html", "{now}/report.html"], ["out", "report.html"], True, needs="accelerate",
    ),
    "make --fast": Verb(
        ["make", "{model}", *DATA, "--validation", "{other}", "--fast", "--members", "2", "-o", "{now}/out", "--force"],
        needs="accelerate",
    ),
    "demo": Verb([*DEMO, "--force"], ["demo"], needs="sklearn"),
    "sign": Verb(["sign", "{now}/out", "--key", "{given}/key.pem"], needs="model_signing"),
    "triton": Verb(TRITON, ["models"]),
    "triton version": Verb([*TRITON, "--version", "2"], ["models"]),
    "triton ensemble": Verb([*TRITON, "--name", "steps", "--device", "gpu"], ["models"], True),
    "predict": Verb(
        ["predict", "{given}/out", "--input", "{faulty}", "--skip-invalid", "--output", "{now}/rows.jsonl",
         "--errors", "{now}/errors.jsonl"], ["rows.jsonl", "errors.jsonl"], True,
    ),
    "predict --shard": Verb(
        ["predict", "{given}/out", "--input", "{data}", "--shard", "1/2", "--chunk", "6", "--output", "{now}/part.csv"],
        ["part.csv", "part.csv.manifest.json"], True,
    ),
    "merge": Verb(
        ["merge", "{given}/part-1.jsonl", "{given}/part-2.jsonl", "-o", "{now}/rows.jsonl", "--errors",
         "{now}/errors.jsonl"], ["rows.jsonl", "errors.jsonl"], True,
    ),
}  # fmt: skip

CHANGES = {
    "open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.utime",
}  # fmt: skip
"""Events by which Python tells of changes to the file system before they are made."""

LIBRARIES = (
    "torch",
    "onnx",
    "onnxruntime",
    "transformers",
    "datasets",
    "sklearn.metrics",
    "matplotlib.pyplot",
    "accelerate",
)


def known(name: str) -> bool:
    """Whether a verb can run here."""
    return importlib.util.find_spec(VERBS[name].needs) is not None


def import_all() -> None:
    """Import what takes long, as far as it is installed; nothing here starts a thread. The rest is learned."""
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(library)
    import torch

    torch.set_num_threads(1)


def learn(words: Sequence[str], ready: Callable[[], None], file: Path) -> None:
    """Run a command, and import here what it imported."""
    ready()
    status, said = Forked(words, after=lambda: file.write_text(json.dumps(sorted(sys.modules)))).end()
    if status:
        raise RuntimeError(f"hydrant {' '.join(words)}: {said}")
    for name in json.loads(file.read_text()):
        with contextlib.suppress(Exception):
            import_module(name)


@dataclass(frozen=True)
class Bench:
    """The folder of a run."""

    given: Path  # what verbs read
    old: Path  # what stands there before a verb runs
    words: dict[str, str]  # values of the placeholders of command lines, but ``now``

    @classmethod
    def prepared(cls, place: Path, model: Path, data: Path, verbs: Collection[str] = tuple(VERBS)) -> Bench:
        """What some verbs read or replace, made by the verbs themselves."""
        given, old = place / "given", place / "old"
        given.mkdir()
        old.mkdir()
        lines = data.read_text().splitlines()
        rows = [line.rpartition(",") for line in lines[1:]]
        other = [f"{' '.join(reversed(text.split()))},{label}" for text, _, label in rows]
        halves = {"data": lines[1::2], "other": other, "faulty": [*lines[1:30], ",a", *lines[30:50]]}
        words = {"given": str(given), "model": str(model.resolve())}
        for name, rest in halves.items():
            (given / f"{name}.csv").write_text("\n".join([lines[0], *rest]) + "\n")
            words[name] = str(given / f"{name}.csv")
        bench = cls(given, old, words)
        plan = ["plan", "{model}", *DATA, "--keep", "2", "--method", "random", "-o"]
        first = [*plan, "{given}/plan.json", "--members", "2"]
        learn(bench.line(first, old), lambda: None, place / "modules.json")
        bench.hydrant(["fuse", "{model}", "--plan", "{given}/plan.json", "-o", "{given}/out"])
        bench.hydrant(["export", "{given}/out"])
        if "fuse --traced" in verbs:
            bench.hydrant([*plan, "{given}/traced.json", "--members", "2", "--traced"])
        for part in ("1", "2") if "merge" in verbs else ():
            rows = ["predict", "{given}/out", "--input", "{faulty}", "--skip-invalid", "--shard", f"{part}/2"]
            bench.hydrant(
                [*rows, "--output", f"{{given}}/part-{part}.jsonl", "--errors", f"{{given}}/errors-{part}.jsonl"]
            )
        key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(given / "key.pem")]
        subprocess.run(key, check=True, capture_output=True)
        shutil.copytree(given / "out", old / "out")
        bench.hydrant([*plan, str(old / "plan.json"), "--members", "3", "--seed", "9"])
        for name, device in (("tiny", "cpu"), ("steps", "gpu")) if any("triton" in verb for verb in verbs) else ():
            bench.hydrant([*TRITON, "--name", name, "--device", device, "--max-batch", "16"], old)
        if "demo" in verbs:
            bench.hydrant([*DEMO, "--seed", "9"], old)
        for name in ("rows.jsonl", "errors.jsonl", "report.html"):
            (old / name).write_text("what stood there before\n")
        return bench

    def line(self, words: Sequence[str], now: Path) -> list[str]:
        """A command line whose placeholders are filled in."""
        return [word.format(**self.words, now=now) for word in words]

    def hydrant(self, words: Sequence[str], now: Path | None = None) -> None:
        """Run a command that must go well."""
        status, said = Forked(self.line(words, now or self.old)).end()
        if status:
            raise RuntimeError(f"hydrant {' '.join(words)}: {said}")

    def fresh(self, now: Path, verb: Verb) -> None:
        """What stands there before the verb runs, in a new folder ``now``."""
        shutil.rmtree(now, ignore_errors=True)
        now.mkdir(parents=True)
        for name in verb.writes:
            there = self.old / name
            if there.is_dir():
                shutil.copytree(there, now / name)
            elif there.exists():
                shutil.copy(there, now / name)


class Forked:
    """A hydrant command in a process of its own, forked from this one; with ``step`` it dies before that change.

    ``within`` leaves out changes elsewhere; ``before`` and ``after`` are called in the new process.
    """

    def __init__(
        self,
        words: Sequence[str],
        step: int | None = None,
        within: Path | None = None,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._steps = mmap.mmap(-1, 8)
        self._reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(words, writer, before, lambda: _count(self._steps, step, within), after)
        os.close(writer)

    @property
    def steps(self) -> int:
        """Changes to the file system so far."""
        return int.from_bytes(self._steps[:8], "little")

    def end(self) -> tuple[int, str]:
        """Wait for it; its exit status (negative: the signal that ended it) and what it said on standard error."""
        with os.fdopen(self._reader, "rb") as pipe:
            said = pipe.read().decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), said

    def killed_after(self, seconds: float) -> bool:
        """Kill it at a moment; whether it still ran."""
        time.sleep(seconds)
        os.kill(self.pid, signal.SIGKILL)
        return self.end()[0] == -signal.SIGKILL


def _become(
    words: Sequence[str],
    writer: int,
    before: Callable[[], None] | None,
    watch: Callable[[], None],
    after: Callable[[], None] | None,
) -> None:
    """What a forked process does."""
    status = 3
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor, new in ((0, null), (1, null), (2, writer)):
            os.dup2(new, descriptor)
        os.close(writer)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        if before:
            before()
        watch()
        status = command(list(words))
        sys.stderr.flush()
        if after:
            after()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 2
    finally:
        os._exit(status)


def _count(steps: Any, last: int | None, within: Path | None) -> None:
    """Count changes to the file system from now on, and die before the last one."""
    below = None if within is None else f"{within}/"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or not arguments:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        path = arguments[0]
        if isinstance(path, int):
            return
        path = os.fsdecode(path)
        if below is not None and path.startswith("/") and not path.startswith(below):
            return
        done = int.from_bytes(steps[:8], "little")
        if done == last:
            os.kill(os.getpid(), signal.SIGKILL)
        steps[:8] = (done + 1).to_bytes(8, "little")

    sys.addaudithook(hook)


def state(now: Path) -> dict[str, str]:
    """SHA-256 of every file that is not hidden, nor of interrupted work: name → digest."""
    files = {path.relative_to(now).as_posix(): path for path in sorted(now.rglob("*")) if path.is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if not _is_left(name)}


def hidden(now: Path) -> list[str]:
    """What is hidden there, or left of interrupted work."""
    names = [path.relative_to(now).as_posix() for path in sorted(now.rglob("*"))]
    return [name for name in names if _is_left(name)]


def _is_left(name: str) -> bool:
    """Whether it is hidden, or what an interrupted verb goes on with: making, a large prediction, tuning, circuits."""
    parts = name.split("/")
    return any(part.startswith(".") for part in parts) or parts[0].endswith((".make", ".chunks", ".part"))


@dataclass(frozen=True)
class States:
    """What may stand there: as before a verb, or as after it."""

    verb: Verb  # the verb
    old: dict[str, str]  # before
    new: dict[str, str]  # after
    varying: frozenset[str]  # files that differ from run to run, as reports with timings do
    seconds: float  # that the verb takes
    steps: int  # changes to the file system that it makes

    @classmethod
    def of(cls, bench: Bench, verb: Verb, now: Path) -> States:
        """Found by running the verb twice, in two places, since a report may tell where its bundle stands."""
        learn(bench.line(verb.words, now), lambda: bench.fresh(now, verb), now.with_name("modules.json"))
        found, seconds, steps = [], 9e9, 0
        bench.fresh(now, verb)
        old = state(now)
        for place in (now, now.with_name(f"{now.name}-again")):
            bench.fresh(place, verb)
            started = time.monotonic()
            process = Forked(bench.line(verb.words, place), within=place)
            status, said = process.end()
            seconds, steps = min(seconds, time.monotonic() - started), process.steps
            found.append(state(place))
            if status or hidden(place) or found[-1] == old:
                raise RuntimeError(f"{verb.words}: status {status}, {said or 'nothing changed'}, {hidden(place)}")
        varying = frozenset(name for name in found[0] if found[0][name] != found[1].get(name))
        return cls(verb, old, found[0], varying, seconds, steps)

    def which(self, now: Path) -> str:
        """``"old"``, ``"new"``, ``"apart"`` where each file is one of the two, or what is wrong."""
        if "out" in self.verb.writes:
            try:
                bundle = Bundle.open(now / "out")
                for name in bundle.manifest["files"]:
                    bundle.file(name)
            except HydrantError as error:
                return f"fault: {error}"
        found = state(now)
        if found == self.old:
            return "old"
        if found.keys() == self.new.keys() and all(self._fits(name, found) for name in found):
            return "new"
        if self.verb.apart:
            wrong = [name for name in {**found, **self.old, **self.new} if not self._either(name, found)]
            return f"fault: neither old nor new: {wrong}" if wrong else "apart"
        before = [name for name in {**found, **self.old} if found.get(name) != self.old.get(name)]
        after = [name for name in {**found, **self.new} if not self._fits(name, found)]
        return f"fault: a mix; other than before: {before}, than after: {after}"

    def _fits(self, name: str, found: dict[str, str]) -> bool:
        return name in found and name in self.new and (name in self.varying or found[name] == self.new[name])

    def _either(self, name: str, found: dict[str, str]) -> bool:
        return found.get(name) in (self.old.get(name), self.new.get(name)) or name in self.varying


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
