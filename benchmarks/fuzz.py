"""Coverage-guided fuzzing of readers of files and requests, in Python and in C++.

    python benchmarks/fuzz.py plan infer --executions 1000000
    python benchmarks/fuzz.py --cpp png --executions 1000000

A finding is an exception other than hydrant's, an input that takes over two seconds or a gigabyte, or an accepted input
with an impossible result (fuzz_targets.py, runtime/cpp/fuzz/targets.cpp); in C++ also a report of the sanitizers.
Findings go to a folder; status 1 if there are any.

Python needs atheris (`pip install -c constraints.txt atheris`). C++ needs clang with libFuzzer (on Debian: clang-19 and
libclang-rt-19-dev); the program is built first (`cmake --preset fuzz`) unless --program names it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import harness
from harness import ROOT

BUNDLED = ["manifest", "plan", "architecture", "calibration", "density", "weights", "tokenizer", "tokenizer-settings"]
FURTHER = ["engine", "graph", "checkpoint", "verified", "inspected-weights", "inspected-graph", "journal"]
DATA = ["csv", "tsv", "jsonl", "conll", "npz"]
GIVEN = ["adapter", "adapter-weights", "image-processor", "sound-processor", "image", "sound", "signature", "trust"]
NAMES = [*BUNDLED, *FURTHER, *DATA, *GIVEN, "part", "log", "infer", "binary", "grpc", "predict"]

FUZZ = ROOT / "runtime/cpp/fuzz"
CPP_NAMES = sorted(path.name for path in (FUZZ / "corpus").iterdir())
OPENSSL = {"signature", "trust"}
"""Targets whose library caches memory between inputs, which libFuzzer would report as leaks."""
JSON = set(CPP_NAMES) - {"graph", "trust", "arrays", "png", "jpeg", "orientation"}

SECONDS, MEGABYTES = 2, 1024  # Limits for each input
OVERHEAD = 512  # Megabytes of a process without inputs
MOST = 20  # Maximum findings of a target


def main() -> int:
    if sys.argv[1:2] == ["--run"]:  # process of one target, with libFuzzer's flags
        return fuzz(sys.argv[2], sys.argv[3], sys.argv[4:])
    parser = harness.parser(__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--cpp", action="store_true", help=f"targets of the C++ runner: {', '.join(CPP_NAMES)}")
    parser.add_argument("--executions", type=int, default=1_000_000, help="runs of each target (default: 1000000)")
    parser.add_argument("--seconds", type=int, default=0, help="maximum time of each target (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="parallel targets (default: 1)")
    parser.add_argument("--program", type=Path, help="existing hydrant-fuzz")
    parser.add_argument("--compiler", default=shutil.which("clang++") or "clang++-19", help="clang++ with libFuzzer")
    parser.add_argument("--found", type=Path, default=Path("fuzz-findings"), help="folder for findings")
    options = parser.parse_args()
    names = CPP_NAMES if options.cpp else NAMES
    if unknown := sorted(set(options.targets) - set(names)):
        parser.error(f"unknown targets {', '.join(unknown)}; expected some of {', '.join(names)}")
    if options.cpp and options.program is None:
        options.program = build(options.compiler)
    options.found.mkdir(parents=True, exist_ok=True)
    results = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(run, name, options): name for name in options.targets or names}
        for ready in as_completed(waiting):
            results[waiting[ready]] = ready.result()
            print(f"{waiting[ready]:20} {json.dumps(ready.result())}", flush=True)
            harness.save(options.output, results)
    return int(any(each["findings"] for each in results.values()))


def build(compiler: str) -> Path:
    python = f"-DONNXRuntime_PYTHON={sys.executable}"
    for words in (["--preset", "fuzz", f"-DCMAKE_CXX_COMPILER={compiler}", python], ["--build", "--preset", "fuzz"]):
        done = subprocess.run(["cmake", *words], cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"cmake {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return ROOT / ".build/cmake/fuzz/runtime/cpp/fuzz/hydrant-fuzz"


def run(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Fuzz one target from its seeds, in a separate folder."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="hydrant-fuzz-") as folder:
        place, environment = Path(folder), {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        if options.cpp:
            shutil.copytree(FUZZ / "corpus" / name, place / "corpus")
            environment |= {"HYDRANT_FUZZ_TARGET": name, "HYDRANT_FUZZ_BUNDLE": str(FUZZ / "bundle")}
            command = [str(options.program), "-max_len=65536", "-print_funcs=0"]
            command += [f"-dict={FUZZ}/json.dict"] * (name in JSON)
            command += ["-detect_leaks=0"] * (name in OPENSSL)  # except at the end, see campaign()
        else:
            command = [sys.executable, __file__, "--run", name, folder]
            subprocess.run([*command, "prepare"], check=True)
            largest = max(path.stat().st_size for path in (place / "corpus").iterdir())
            command.append(f"-max_len={max(4096, 4 * largest)}")  # longer inputs are slower without new coverage
        return campaign(name, command, place, environment, options)


def fuzz(name: str, folder: str, flags: list[str]) -> int:
    """Create the corpus of one Python target, or run it, in its own process."""
    place = Path(folder)
    if flags == ["prepare"]:
        sys.path.insert(0, str(ROOT / "tests"))
        from fuzz_bundle import make_given
        from fuzz_targets import targets

        make_given(place)
        (place / "corpus").mkdir()
        for index, seed in enumerate(targets(place)[name]().seeds):
            (place / "corpus" / f"seed-{index}").write_bytes(seed)
        return 0
    import atheris

    logging.disable()  # avoid a million warnings
    with atheris.instrument_imports(include=["hydrant"]):
        from fuzz_targets import targets

        read = targets(place)[name]().read
    atheris.Setup([sys.argv[0], *flags], read)
    atheris.Fuzz()
    return 0


def campaign(
    name: str, command: Sequence[str], place: Path, environment: Mapping[str, str], options: argparse.Namespace
) -> dict[str, object]:
    """Run a libFuzzer program until it reaches the executions, and count its findings."""
    done, starts, coverage, started = 0, 0, 0, time.monotonic()
    findings: list[dict[str, str]] = []
    while done < options.executions and len(findings) < MOST:
        left = options.seconds - (time.monotonic() - started) if options.seconds else 0
        if options.seconds and left <= 1:
            break
        flags = [
            f"-runs={options.executions - done}", f"-seed={options.seed + starts}", f"-timeout={SECONDS}",
            f"-rss_limit_mb={MEGABYTES + OVERHEAD}", f"-max_total_time={int(left)}", "-print_final_stats=1",
            f"-artifact_prefix={place}/found-",
        ]  # fmt: skip
        starts += 1
        ran = subprocess.run(
            [*command, *flags, str(place / "corpus")],
            env=environment, check=False, capture_output=True, text=True, errors="replace",
        )  # fmt: skip
        counted = re.search(r"number_of_executed_units: *(\d+)", ran.stderr)
        last = re.findall(r"^#(\d+)\t", ran.stderr, flags=re.M)
        ran_now = int(counted.group(1)) if counted else int(last[-1]) if last else 0
        done += max(ran_now, 1)
        coverage = max([coverage, *map(int, re.findall(r"cov: (\d+)", ran.stderr))])
        artifacts = list(place.glob("found-*"))
        for path in artifacts:
            finding = options.found / f"{name}-{path.name.removeprefix('found-')}"
            finding.write_bytes(path.read_bytes())
            path.unlink()
            if path.name.startswith(("found-timeout", "found-slow")):
                (place / "empty").write_bytes(b"")
                took, start = (alone([*command, str(each)], environment) for each in (finding, place / "empty"))
                if took - start < SECONDS:
                    finding.unlink()  # slow machine, not a slow reader
                    continue
            findings.append({"input": finding.name, "why": reason(ran.stderr)})
        if not artifacts and "detected memory leaks" in ran.stderr:
            findings.append({"input": "none: seen at the end", "why": reason(ran.stderr)})
        if ran.returncode and not counted and not last:
            raise SystemExit(f"{name}: the fuzzer failed:\n{ran.stderr[-3000:]}")
    facts = {"executions": done, "seconds": round(time.monotonic() - started), "coverage": coverage}
    return {**facts, "findings": findings}


def alone(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """CPU seconds of a program with one input, including its start; infinite if it fails."""
    words = [*command, "-timeout=600"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime if process.returncode == 0 else math.inf


def reason(output: str) -> str:
    """One-line reason of a finding from the fuzzer's output."""
    for pattern in (r"Uncaught Python exception: ===\n(?:.*\n.*)", r"what\(\): .*", r"runtime error: .*", r"ERROR: .*"):
        if why := re.search(pattern, output):
            return " ".join(why.group(0).split())[:300]
    return "?"


if __name__ == "__main__":
    raise SystemExit(main())
