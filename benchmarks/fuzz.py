"""Coverage-guided fuzzing of what reads files and requests: `python benchmarks/fuzz.py plan --executions 1000000`.

A finding is a crash (any exception that is not one of hydrant's), a file that takes over two seconds or a gigabyte, or
one that is taken and says something that cannot be (fuzz_targets.py). Coverage is followed by atheris (`pip install -c
constraints.txt atheris`). Each target runs in a process of its own; found inputs go to a folder, and status 1 says that
there are some.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from libfuzzer import Limits, campaign

HERE = Path(__file__).parent
BUNDLED = ["manifest", "plan", "architecture", "calibration", "density", "weights", "tokenizer", "tokenizer-settings"]
FURTHER = ["engine", "graph", "checkpoint", "verified", "inspected-weights", "inspected-graph", "journal"]
DATA = ["csv", "tsv", "jsonl", "conll", "npz"]
GIVEN = ["adapter", "adapter-weights", "image-processor", "sound-processor", "image", "sound", "signature", "trust"]
KEPT = ["part", "chunk", "job", "log", "making", "tuning", "search"]
NAMES = [*BUNDLED, *FURTHER, *DATA, *GIVEN, *KEPT, "infer", "binary", "grpc", "predict"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)} (default: all)")
    parser.add_argument("--executions", type=int, default=1_000_000, help="a target (default: 1000000)")
    parser.add_argument("--seconds", type=int, default=0, help="a target, where that is over first (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, default=Path("fuzz-findings"), help="folder of inputs that are findings")
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    if sys.argv[1:2] == ["--run"]:  # the process of one target, with flags of libFuzzer
        return fuzz(sys.argv[2], sys.argv[3], sys.argv[4:])
    options = parser.parse_args()
    if unknown := sorted(set(options.targets) - set(NAMES)):
        parser.error(f"unknown: {', '.join(unknown)}; the targets are {', '.join(NAMES)}")
    options.found.mkdir(parents=True, exist_ok=True)
    results = {}
    for name in options.targets or NAMES:
        results[name] = run(name, options)
        print(f"{name:20} {json.dumps(results[name])}", flush=True)
        if options.output:
            options.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(each["findings"] for each in results.values()))


def run(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Fuzz one target in a process of its own, again after each finding, until it has run as often as asked."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="hydrant-fuzz-") as folder:
        subprocess.run([sys.executable, __file__, "--run", name, folder, "prepare"], check=True)
        command = [sys.executable, __file__, "--run", name, folder]
        largest = max(path.stat().st_size for path in (Path(folder) / "corpus").iterdir())
        flags = (f"-max_len={max(4096, 4 * largest)}",)  # what is longer takes longer, and says nothing new
        limits = Limits(options.executions, options.seconds, options.seed, flags=flags)
        return campaign(name, command, Path(folder), limits, options.found)


def fuzz(name: str, folder: str, flags: list[str]) -> int:
    """In the process of one target: make its corpus, or run it."""
    place = Path(folder)
    if flags == ["prepare"]:
        sys.path.insert(0, str(HERE.parent / "tests"))
        from fuzz_bundle import make_given
        from fuzz_targets import targets

        make_given(place)
        (place / "corpus").mkdir()
        for index, seed in enumerate(targets(place)[name]().seeds):
            (place / "corpus" / f"seed-{index}").write_bytes(seed)
        return 0
    import atheris

    logging.disable()  # what is told of a file is told a million times
    with atheris.instrument_imports(include=["hydrant"]):
        from fuzz_targets import targets

        read = targets(place)[name]().read
    atheris.Setup([sys.argv[0], *flags], read)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
