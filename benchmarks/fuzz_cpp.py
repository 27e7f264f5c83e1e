"""Coverage-guided fuzzing of what the C++ runner reads: `python benchmarks/fuzz_cpp.py png --executions 1000000`.

A finding is a crash, a fault that the sanitizers of addresses and undefined behaviour see, an exception that is not one
of hydrant's, an input that takes over two seconds or a gigabyte, or one that is taken and says something that cannot
be (runtime/cpp/fuzz/targets.cpp). The program is built first (`cmake --preset fuzz`), unless --program names it; that
needs clang with libFuzzer (on Debian: clang-19 and libclang-rt-19-dev). Each target runs in a process of its own; found
inputs go to a folder, and status 1 says that there are some.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from libfuzzer import Limits, campaign

ROOT = Path(__file__).parents[1]
FUZZ = ROOT / "runtime/cpp/fuzz"
NAMES = sorted(path.name for path in (FUZZ / "corpus").iterdir())
OPENSSL = {"signature", "trust"}
"""Targets whose library keeps memory from one input to the next, which libFuzzer would look through for leaks."""
JSON = set(NAMES) - {"graph", "trust", "arrays", "png", "jpeg", "orientation"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--executions", type=int, default=1_000_000, help="a target (default: 1000000)")
    parser.add_argument("--seconds", type=int, default=0, help="a target, where that is over first (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="targets at once (default: 1)")
    parser.add_argument("--program", type=Path, help="hydrant-fuzz, where it was built before")
    parser.add_argument("--compiler", default=shutil.which("clang++") or "clang++-19", help="clang++ with libFuzzer")
    parser.add_argument("--found", type=Path, default=Path("fuzz-findings"), help="folder of inputs that are findings")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; the targets are {', '.join(NAMES)}")
    program = options.program or build(options.compiler)
    options.found.mkdir(parents=True, exist_ok=True)
    results = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(run, name, program, options): name for name in options.targets or NAMES}
        for ready in as_completed(waiting):
            results[waiting[ready]] = ready.result()
            print(f"{waiting[ready]:14} {json.dumps(ready.result())}", flush=True)
            if options.output:
                options.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(each["findings"] for each in results.values()))


def build(compiler: str) -> Path:
    """Compile the program, and return its path."""
    python = f"-DONNXRuntime_PYTHON={sys.executable}"
    for words in (["--preset", "fuzz", f"-DCMAKE_CXX_COMPILER={compiler}", python], ["--build", "--preset", "fuzz"]):
        done = subprocess.run(["cmake", *words], cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"cmake {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return ROOT / ".build/cmake/fuzz/runtime/cpp/fuzz/hydrant-fuzz"


def run(name: str, program: Path, options: argparse.Namespace) -> dict[str, object]:
    """Fuzz one target from a copy of its corpus."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="hydrant-fuzz-") as folder:
        place = Path(folder)
        shutil.copytree(FUZZ / "corpus" / name, place / "corpus")
        words = [f"-dict={FUZZ}/json.dict"] if name in JSON else []
        words += ["-detect_leaks=0"] if name in OPENSSL else []  # but at the end, which campaign() looks at
        limits = Limits(
            options.executions, options.seconds, options.seed, flags=("-max_len=65536", "-print_funcs=0", *words)
        )
        told = {"HYDRANT_FUZZ_TARGET": name, "HYDRANT_FUZZ_BUNDLE": str(FUZZ / "bundle")}
        return campaign(name, [str(program)], place, limits, options.found, **told)


if __name__ == "__main__":
    raise SystemExit(main())
