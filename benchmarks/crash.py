"""Crash safety: kill every writing verb, or run it on full and read-only disks, and check the files.

    python benchmarks/crash.py kills MODEL DATA --kills 200 --jobs 16 -o results.json
    python benchmarks/crash.py disks MODEL DATA --sizes 12 --jobs 16 -o results.json

Each verb first runs once for its results and duration. ``kills``: it runs over earlier results and gets SIGKILL, at
uniformly random moments and just before each change to the file system. ``disks`` (needs Linux and the right to mount):
it runs over earlier results on a small memory disk: with no free room, with several sizes of it, and read-only.

The files must be either the earlier ones or the results, and intact. (For separate files, such as rows and errors, this
holds per file; for a Triton ensemble, per model.) On a disk the verb succeeds, or fails with status 2 and one line that
names the disk's fault. The same command then runs again with room: it must succeed and leave no hidden files.
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
    """Verb that writes files."""

    words: Sequence[str]  # command line
    writes: Sequence[str] = ("out",)  # outputs in the trial's folder; a bundle is named ``out``
    apart: bool = False  # outputs are independent files, each of which may be old or new
    needs: str = "torch"  # required module
    goes_on: bool = False  # a second run over its outputs changes them again, like tuning in place


DEMO = ["demo", "--epochs", "1", "-o", "{now}/demo"]
TRITON = ["triton", "{inputs}/out", "-o", "{now}/models", "--name", "tiny", "--force"]
VERBS = {
    "plan": Verb(["plan", "{model}", *DATA, "--keep", "2", "-o", "{now}/plan.json"], ["plan.json"]),
    "circuits": Verb(
        ["plan", "{model}", *DATA, "--ood", "{other}", "--method", "circuit", "--keep", "3", "--members", "2",
         "-o", "{now}/plan.json"], ["plan.json"]),
    "fuse": Verb(["fuse", "{model}", "--plan", "{inputs}/plan.json", "-o", "{now}/out", "--force"]),
    "fuse --traced": Verb(
        ["fuse", "{model}", "--traced", "--plan", "{inputs}/traced.json", "-o", "{now}/out", "--force"]),
    "tune": Verb(["tune", "{now}/out", *DATA, "--epochs", "1"], needs="accelerate", goes_on=True),
    "export": Verb(["export", "{now}/out", "--member-outputs"]),
    "export --precision fp16": Verb(["export", "{now}/out", "--precision", "fp16"]),
    "export --tokenizer": Verb(["export", "{now}/out", "--tokenizer"], needs="onnxruntime_extensions"),
    "calibrate": Verb(["calibrate", "{now}/out", *DATA, "--fit", "{data}"], needs="sklearn"),
    "verify": Verb(["verify", "{now}/out", "--backend", "onnxruntime", "--read", "examples=4"], needs="onnxruntime"),
    "evaluate": Verb(
        ["evaluate", "{now}/out", *DATA, "--html", "{now}/report.html", "--bootstrap", "9"],
        ["out", "report.html"], True, needs="sklearn"),
    "profile": Verb(
        ["profile", "{now}/out", "--backend", "onnxruntime", "--seconds", "0.02", "--batch", "1",
         "--sequence", "8", "--no-memory"], needs="onnxruntime"),
    "build": Verb(
        ["build", "{now}/out", "--backend", "tensorrt-rtx", "--precision", "fp32", "--batch", "1:1:2",
         "--sequence", "4:4:8", "--compute-capability", "8.9"], needs="tensorrt_rtx"),
    "make": Verb(
        ["make", "{model}", *DATA, "--validation", "{other}", "--epochs", "1", "--members", "2", "-o", "{now}/out",
         "--force", "--html", "{now}/report.html"], ["out", "report.html"], True, needs="accelerate"),
    "make --fast": Verb(
        ["make", "{model}", *DATA, "--validation", "{other}", "--fast", "-o", "{now}/out", "--force"]),
    "demo": Verb([*DEMO, "--force"], ["demo"], needs="sklearn"),
    "sign": Verb(["sign", "{now}/out", "--key", "{inputs}/key.pem"], needs="model_signing"),
    "triton": Verb(TRITON, ["models"]),
    "triton version": Verb([*TRITON, "--version", "2"], ["models"]),
    "triton ensemble": Verb([*TRITON, "--name", "steps", "--device", "gpu"], ["models"], True),
    "predict": Verb(
        ["predict", "{inputs}/out", "--input", "{faulty}", "--skip-invalid", "--output", "{now}/rows.jsonl",
         "--errors", "{now}/errors.jsonl"], ["rows.jsonl", "errors.jsonl"], True),
    "predict --shard": Verb(
        ["predict", "{inputs}/out", "--input", "{data}", "--shard", "1/2", "--chunk", "6", "--output",
         "{now}/part.csv"],
        ["part.csv", "part.csv.manifest.json"], True),
    "merge": Verb(
        ["merge", "{inputs}/part-1.jsonl", "{inputs}/part-2.jsonl", "-o", "{now}/rows.jsonl", "--errors",
         "{now}/errors.jsonl"], ["rows.jsonl", "errors.jsonl"], True),
}  # fmt: skip

CHANGES = {
    "open", "os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.utime",
}  # fmt: skip
"""Python's audit events before changes to the file system."""

LIBRARIES = (
    "torch", "onnx", "onnxruntime", "transformers", "datasets", "sklearn.metrics", "matplotlib.pyplot", "accelerate",
)  # fmt: skip


def can_run(name: str) -> bool:
    """Return True if a verb's module is installed."""
    return importlib.util.find_spec(VERBS[name].needs) is not None


def import_all() -> None:
    """Import the installed slow libraries without starting a thread; :func:`learn` imports the others."""
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            import_module(library)
    import torch

    torch.set_num_threads(1)


def learn(words: Sequence[str], ready: Callable[[], None], file: Path) -> None:
    """Run a command, and import its modules into this process."""
    ready()
    status, stderr = Forked(words, after=lambda: file.write_text(json.dumps(sorted(sys.modules)))).end()
    if status:
        raise RuntimeError(f"hydrant {' '.join(words)}: {stderr}")
    for name in json.loads(file.read_text()):
        with contextlib.suppress(Exception):
            import_module(name)


@dataclass(frozen=True)
class Bench:
    """Folders and placeholders of a run."""

    inputs: Path  # inputs of verbs
    old: Path  # files before a verb runs
    words: dict[str, str]  # placeholders of command lines, except ``now``

    @classmethod
    def prepared(cls, place: Path, model: Path, data: Path, verbs: Collection[str] = tuple(VERBS)) -> Bench:
        """Create the inputs and earlier outputs of some verbs, with the verbs themselves."""
        inputs, old = place / "inputs", place / "old"
        inputs.mkdir()
        old.mkdir()
        lines = data.read_text().splitlines()
        rows = [line.rpartition(",") for line in lines[1:]]
        other = [f"{' '.join(reversed(text.split()))},{label}" for text, _, label in rows]
        halves = {"data": lines[1::2], "other": other, "faulty": [*lines[1:30], ",a", *lines[30:50]]}
        words = {"inputs": str(inputs), "model": str(model.resolve())}
        for name, rest in halves.items():
            (inputs / f"{name}.csv").write_text("\n".join([lines[0], *rest]) + "\n")
            words[name] = str(inputs / f"{name}.csv")
        bench = cls(inputs, old, words)
        plan = ["plan", "{model}", *DATA, "--keep", "2", "--method", "random", "-o"]
        first = [*plan, "{inputs}/plan.json", "--members", "2"]
        learn(bench.line(first, old), lambda: None, place / "modules.json")
        bench.hydrant(["fuse", "{model}", "--plan", "{inputs}/plan.json", "-o", "{inputs}/out"])
        bench.hydrant(["export", "{inputs}/out"])
        if "fuse --traced" in verbs:
            bench.hydrant([*plan, "{inputs}/traced.json", "--members", "2", "--traced"])
        for part in ("1", "2") if "merge" in verbs else ():
            rows = ["predict", "{inputs}/out", "--input", "{faulty}", "--skip-invalid", "--shard", f"{part}/2"]
            bench.hydrant(
                [*rows, "--output", f"{{inputs}}/part-{part}.jsonl", "--errors", f"{{inputs}}/errors-{part}.jsonl"]
            )
        key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(inputs / "key.pem")]
        subprocess.run(key, check=True, capture_output=True)
        shutil.copytree(inputs / "out", old / "out")
        bench.hydrant([*plan, str(old / "plan.json"), "--members", "3", "--seed", "9"])
        for name, device in (("tiny", "cpu"), ("steps", "gpu")) if any("triton" in verb for verb in verbs) else ():
            bench.hydrant([*TRITON, "--name", name, "--device", device, "--max-batch", "16"], old)
        if "demo" in verbs:
            bench.hydrant([*DEMO, "--seed", "9"], old)
        for name in ("rows.jsonl", "errors.jsonl", "report.html"):
            (old / name).write_text("earlier content\n")
        return bench

    def line(self, words: Sequence[str], now: Path) -> list[str]:
        """Fill in the placeholders of a command line."""
        return [word.format(**self.words, now=now) for word in words]

    def hydrant(self, words: Sequence[str], now: Path | None = None) -> None:
        """Run a command that must succeed."""
        status, stderr = Forked(self.line(words, now or self.old)).end()
        if status:
            raise RuntimeError(f"hydrant {' '.join(words)}: {stderr}")

    def fresh(self, now: Path, verb: Verb) -> None:
        """Copy a verb's earlier outputs to a new folder ``now``."""
        shutil.rmtree(now, ignore_errors=True)
        now.mkdir(parents=True)
        for name in verb.writes:
            path = self.old / name
            if path.is_dir():
                shutil.copytree(path, now / name)
            elif path.exists():
                shutil.copy(path, now / name)


class Forked:
    """Forked process of a hydrant command; it dies before change ``step``, counted below ``within``.

    It starts in a process that has imported all libraries, so random moments fall into its work. ``before`` and
    ``after`` run in the new process.
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
        """Number of changes to the file system so far."""
        return int.from_bytes(self._steps[:8], "little")

    def end(self) -> tuple[int, str]:
        """Wait; return exit status (negative: the signal) and stderr."""
        with os.fdopen(self._reader, "rb") as pipe:
            stderr = pipe.read().decode(errors="replace")
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), stderr

    def killed_after(self, seconds: float) -> bool:
        """Kill it after some seconds; return True if it still ran."""
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
    """Run the command in the forked process."""
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
    """Count changes to the file system, and die before change ``last``."""
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
    """Name → SHA-256 of every file, except hidden files and interrupted work."""
    files = {path.relative_to(now).as_posix(): path for path in sorted(now.rglob("*")) if path.is_file()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if not _is_left(name)}


def hidden(now: Path) -> list[str]:
    """Names of hidden files and interrupted work."""
    names = [path.relative_to(now).as_posix() for path in sorted(now.rglob("*"))]
    return [name for name in names if _is_left(name)]


def _is_left(name: str) -> bool:
    """Return True for hidden files, and for interrupted making, predicting, tuning and circuit search."""
    parts = name.split("/")
    return any(part.startswith(".") for part in parts) or parts[0].endswith((".make", ".chunks", ".part"))


@dataclass(frozen=True)
class States:
    """Valid files: those before a verb, or those after it."""

    verb: Verb
    old: dict[str, str]  # digests before
    new: dict[str, str]  # digests after
    varying: frozenset[str]  # files that differ between runs, such as reports with timings
    seconds: float  # duration of the verb
    steps: int  # changes to the file system

    @classmethod
    def of(cls, bench: Bench, verb: Verb, now: Path) -> States:
        """Run the verb twice in two folders, since reports may contain the bundle's path."""
        learn(bench.line(verb.words, now), lambda: bench.fresh(now, verb), now.with_name("modules.json"))
        states, seconds, steps = [], 9e9, 0
        bench.fresh(now, verb)
        old = state(now)
        for place in (now, now.with_name(f"{now.name}-again")):
            bench.fresh(place, verb)
            started = time.monotonic()
            process = Forked(bench.line(verb.words, place), within=place)
            status, stderr = process.end()
            seconds, steps = min(seconds, time.monotonic() - started), process.steps
            states.append(state(place))
            if status or hidden(place) or states[-1] == old:
                raise RuntimeError(f"{verb.words}: status {status}, {stderr or 'nothing changed'}, {hidden(place)}")
        varying = frozenset(name for name in states[0] if states[0][name] != states[1].get(name))
        return cls(verb, old, states[0], varying, seconds, steps)

    def which(self, now: Path) -> str:
        """Return ``"old"``, ``"new"``, ``"apart"`` (each file is one of the two) or a fault."""
        if "out" in self.verb.writes:
            try:
                bundle = Bundle.open(now / "out")
                for name in bundle.manifest["files"]:
                    bundle.file(name)
            except HydrantError as error:
                return f"fault: {error}"
        digests = state(now)
        if digests == self.old:
            return "old"
        if digests.keys() == self.new.keys() and all(self._fits(name, digests) for name in digests):
            return "new"
        if self.verb.apart:
            wrong = [name for name in {**digests, **self.old, **self.new} if not self._either(name, digests)]
            return f"fault: neither old nor new: {wrong}" if wrong else "apart"
        before = [name for name in {**digests, **self.old} if digests.get(name) != self.old.get(name)]
        after = [name for name in {**digests, **self.new} if not self._fits(name, digests)]
        return f"fault: a mix; other than before: {before}, than after: {after}"

    def _fits(self, name: str, digests: dict[str, str]) -> bool:
        return name in digests and name in self.new and (name in self.varying or digests[name] == self.new[name])

    def _either(self, name: str, digests: dict[str, str]) -> bool:
        return digests.get(name) in (self.old.get(name), self.new.get(name)) or name in self.varying


MS_RDONLY, MS_REMOUNT = 1, 32
DISK = "size=256m"  # A file fills it except for the free room
WARNED = {"verify", "profile", "evaluate"}  # Verbs that print their results, and warn if they cannot store them

Trial = Callable[[Path, Bench, States], str]  # Run a verb once; return the state or a fault


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("kind", choices=["kills", "disks"])
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS), metavar="VERB")
    parser.add_argument("--kills", type=int, default=200, help="random kills of each verb (default: 200)")
    parser.add_argument("--steps", type=int, default=400, help="maximum kills before changes (default: 400)")
    parser.add_argument("--again", type=int, default=1, help="kills between two repeated runs (default: 1)")
    parser.add_argument("--sizes", type=int, default=12, help="number of sizes of free room (default: 12)")
    parser.add_argument("--jobs", type=int, default=1, help="parallel processes (default: 1)")
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
            if can_run(name):
                results[name] = tried(name, States.of(bench, VERBS[name], place / "now"), place, bench, options)
            harness.save(options.output, results)
            print(f"{name:16} {results[name]}", flush=True)
    return int(any(each["faults"] for each in results.values()))


def tried(name: str, states: States, place: Path, bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Counts of the outcomes of a verb's trials, and its faults."""
    if options.kind == "kills":
        moments = list(kills(name, states, options))
        trials: list[Trial] = [partial(killed, at, n % options.again == 0) for n, at in enumerate(moments)]
        times = sum(isinstance(at, float) for at in moments)
        facts = {"random moments": times, "steps": len(moments) - times, "of": states.steps}
    else:
        need = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 1024
        sizes = [int(4 * (need / 4) ** (at / options.sizes)) for at in range(options.sizes)]
        trials, facts = [partial(on_disk, name, size) for size in (None, 0, *sizes)], {}
    outcomes: Counter[str] = Counter()
    faults = []
    context = get_context("fork")  # the verb's libraries are imported already
    with ProcessPoolExecutor(options.jobs, context, initializer=begin, initargs=(place, bench, states)) as pool:
        for done in as_completed([pool.submit(run, trial) for trial in trials]):
            outcome = done.result()
            outcomes[outcome.partition(":")[0]] += 1
            faults += [outcome] * outcome.startswith("fault")
    return {"seconds": round(states.seconds, 2), **facts, **outcomes, "faults": faults}


def kills(name: str, states: States, options: argparse.Namespace) -> Iterator[float | int]:
    """Random moments in seconds during the verb, and its steps, or a random sample of them."""
    draw = random.Random(f"{options.seed}-{name}")
    for _ in range(options.kills):
        yield draw.uniform(0, 1.02) * states.seconds
    steps = range(states.steps)
    yield from sorted(draw.sample(steps, min(len(steps), options.steps)))


_run: list[Any] = []


def begin(*run: Any) -> None:
    """Store the arguments of :func:`run`'s trials in this process."""
    _run[:] = run


def run(trial: Trial) -> str:
    return trial(*_run)


def killed(at: float | int, again: bool, place: Path, bench: Bench, states: States) -> str:
    """Kill a verb once, and optionally run it again."""
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
        status, stderr = Forked(words).end()
        outcome = states.which(now)
        done = outcome == "new" or (states.verb.goes_on and state == "new" and "a mix" in outcome)  # two tunings
        if status or not done or hidden(now):
            return f"fault: {at}, run again: {status} {stderr} {outcome}, left {hidden(now)}, before {left}"
    return "too late" if late and (again or state == "new") else state


def on_disk(name: str, room_kib: int | None, place: Path, bench: Bench, states: States) -> str:
    """Run a verb with some free room, or on a read-only disk (``None``), and again with room."""
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
        status, stderr = Forked(words, before=temporary).end()
        if room_kib is None:
            mount(disk, DISK, MS_REMOUNT)
        outcome = judged(name, states, now, status, stderr, "read-only" if room_kib is None else "full")
        if outcome.startswith("fault"):
            return f"fault: {room_kib} KiB left: {outcome}"
        filler.unlink(missing_ok=True)
        status, stderr = Forked(words, before=temporary).end()
        if status or states.which(now) != "new" or hidden(now):
            return f"fault: {room_kib} KiB left, run again: {status} {stderr} {states.which(now)} {hidden(now)}"
        return outcome
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def judged(name: str, states: States, now: Path, status: int, stderr: str, disk: str) -> str:
    """Outcome on a disk without room."""
    which, left = states.which(now), [path for path in hidden(now) if path.startswith(".")]
    lines = stderr.strip().splitlines()
    if left:
        return f"fault: status {status}, {which}, left {left}"
    if status == 0 and which == "new":
        return "done"
    if status == 0 and which in ("old", "apart") and name in WARNED and any("was not stored" in line for line in lines):
        return f"{disk}, warned: {which}"
    errors = [line for line in lines if line.startswith("hydrant: error: ")]
    kind = {"full": "No space left on device", "read-only": "Read-only file system"}[disk]
    ours = len(errors) == 1 and kind in errors[0] and "unexpected" not in errors[0] and "Traceback" not in stderr
    if status == 2 and ours and which in ("old", "apart"):
        return f"{disk}, refused: {which}"
    return f"fault: status {status}, {which}, {stderr[-500:]!r}"


def tempfile_in(folder: Path) -> None:
    """Put temporary files on the small disk as well."""
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None


def mount(place: Path, options: str, flags: int = 0) -> None:
    """Mount or remount a memory disk."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(b"hydrant", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(status)
