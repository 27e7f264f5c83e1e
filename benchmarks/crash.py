"""Kills verbs that write a bundle at random moments: `python benchmarks/crash.py --kills 200 -o results.json`.

Each verb is first run whole, to know how long it takes. Then it is started again and again on a copy of the bundle as
it was, and gets SIGKILL at a moment drawn evenly from that time. What stands there then has to be the old bundle or the
new one: it opens, every file has its digest, and nothing is hidden in or beside it once it was opened. Status 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hydrant.bundle import owned
from hydrant.bundle.store import Bundle
from hydrant.errors import HydrantError

VERBS = {
    "export": ["export", "{bundle}", "--member-outputs"],
    "calibrate": ["calibrate", "{bundle}", "--data", "{data}", "--fit", "{data}"],
    "verify": ["verify", "{bundle}", "--backend", "onnxruntime", "--examples", "4"],
    "sign": ["sign", "{bundle}", "--key", "{key}"],
    "fuse": ["fuse", "{model}", "--plan", "{plan}", "-o", "{bundle}", "--force"],
    "tune": ["tune", "{bundle}", "--data", "{data}", "--epochs", "1"],
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS), metavar="VERB")
    parser.add_argument("--kills", type=int, default=200, help="of each verb (default: 200)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-crash-") as folder:
        place = Path(folder)
        words = prepare(place, options.model, options.data)
        for verb in options.verbs:
            results[verb] = try_verb(place, [word.format(**words) for word in VERBS[verb]], options, verb)
            print(f"{verb:10} {json.dumps(results[verb])}", flush=True)
    if options.output:
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    return int(any(each["faults"] for each in results.values()))


def prepare(place: Path, model: Path, data: Path) -> dict[str, str]:
    """A plan, a key, and the bundle that each verb begins with, in ``old/out``."""
    words = {"model": str(model), "data": str(data), "plan": str(place / "plan.json"), "key": str(place / "key.pem")}
    words["bundle"] = str(place / "now" / "out")
    hydrant("plan", model, "--data", data, "--members", "2", "--keep", "2", "--method", "random", "-o", words["plan"])
    (place / "old").mkdir()
    hydrant("fuse", model, "--plan", words["plan"], "-o", place / "old/out")
    hydrant("export", place / "old/out")
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", words["key"]], check=True)
    return words


def hydrant(*words: object) -> None:
    subprocess.run([sys.executable, "-m", "hydrant", *map(str, words)], check=True, capture_output=True)


def try_verb(place: Path, words: list[str], options: argparse.Namespace, verb: str) -> dict[str, object]:
    draw = random.Random(f"{options.seed}-{verb}")
    before = Bundle.open(place / "old/out").digests()
    fresh(place)
    started = time.monotonic()
    hydrant(*words)
    whole = time.monotonic() - started
    old = new = late = 0
    faults = []
    for kill in range(options.kills):
        fresh(place)
        process = subprocess.Popen(
            [sys.executable, "-m", "hydrant", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            process.wait(draw.uniform(0.3, 1.05) * whole)  # before, it only imports
            late += 1
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        try:
            bundle = Bundle.open(place / "now/out")
            for name in bundle.manifest["files"]:
                bundle.file(name)
        except HydrantError as error:
            faults.append(f"kill {kill}: {error}")
            continue
        old, new = old + (bundle.digests() == before), new + (bundle.digests() != before)
        if litter := left_behind(place / "now"):
            faults.append(f"kill {kill}: left behind: {litter}")
    seconds = round(whole, 2)
    return {"kills": options.kills, "seconds": seconds, "too late": late, "old": old, "new": new, "faults": faults}


def fresh(place: Path) -> None:
    shutil.rmtree(place / "now", ignore_errors=True)
    shutil.copytree(place / "old", place / "now")


def left_behind(folder: Path) -> list[str]:
    """What stays hidden there once a minute has passed and the next command ran."""
    past = time.time() - 2 * owned.LITTER_SECONDS
    for path in folder.rglob(".*"):
        os.utime(path, (past, past))
    Bundle.open(folder / "out")
    owned.sweep(folder, "out")  # as the next `fuse` to this place does
    return [path.name for path in folder.rglob(".*")]


if __name__ == "__main__":
    raise SystemExit(main())
