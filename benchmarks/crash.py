"""Kills every verb that writes: `python benchmarks/crash.py MODEL DATA --kills 200 --jobs 16 -o results.json`.

Each verb is first run whole, to know what it makes and how long it takes. Then it is started again and again over what
stood there before, and gets SIGKILL: at moments drawn evenly from that time, and just before each change that it makes
to the file system. What stands there then has to be what was there before or what the verb makes, and whole: a bundle
opens, and every file has its digest. (Where a verb writes files of their own, as rows and errors, this holds for each
file; for a Triton repository that has the steps of an ensemble, for each model.) Then the same command is run again: it
has to end well, with what it makes, and nothing hidden may be left. Status 1 if not. (Of a verb that takes long, the
command may be run again after every so many kills alone, ``--again 10``.)
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crash_verbs import VERBS, Bench, Forked, States, hidden, import_all, known, save

Kill = tuple[str, float | int]
"""A verb, and the second (a float) or the step (a whole number) at which it is killed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint of a text classifier")
    parser.add_argument("data", type=Path, help="CSV with columns text and label")
    parser.add_argument("--verbs", nargs="*", default=list(VERBS), choices=list(VERBS), metavar="VERB")
    parser.add_argument("--kills", type=int, default=200, help="of each verb at random moments (default: 200)")
    parser.add_argument("--steps", type=int, default=400, help="most steps before which it is killed (default: 400)")
    parser.add_argument("--again", type=int, default=1, help="run again after every so many kills (default: 1, each)")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="results as JSON")
    options = parser.parse_args()
    import_all()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hydrant-crash-") as folder:
        place = Path(folder)
        bench = Bench.prepared(place, options.model, options.data, options.verbs)
        for name in options.verbs:
            results[name] = {"not run": f"{VERBS[name].needs} is not installed", "faults": []}
            if known(name):
                results[name] = tried(name, States.of(bench, VERBS[name], place / "now"), place, bench, options)
            save(options.output, results)
            print(f"{name:16} {results[name]}", flush=True)
    return int(any(each["faults"] for each in results.values()))


def tried(name: str, states: States, place: Path, bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Kill one verb at all its moments; what came of it."""
    kills = list(enumerate(moments(name, states, options)))
    found: Counter[str] = Counter()
    faults = []
    context = get_context("fork")  # what the verb imports is there already
    with ProcessPoolExecutor(options.jobs, context, initializer=begin, initargs=(place, bench, states)) as pool:
        again = options.again
        for done in as_completed([pool.submit(trial, kill, number % again == 0) for number, kill in kills]):
            kill, verdict = done.result()
            found[verdict if verdict in ("old", "new", "apart", "too late") else "faulty"] += 1
            if found["faulty"] > len(faults):
                faults.append(f"{kill[1]}: {verdict}")
    times, steps = (sum(isinstance(at, kind) for _, (_, at) in kills) for kind in (float, int))
    facts = {"seconds": round(states.seconds, 2), "random moments": times, "steps": steps, "of": states.steps}
    return {**facts, **found, "faults": faults}


def moments(name: str, states: States, options: argparse.Namespace) -> Iterator[Kill]:
    """Moments drawn from the time that it takes, and each of its steps, or as many of them as are wanted."""
    draw = random.Random(f"{options.seed}-{name}")
    for _ in range(options.kills):
        yield name, draw.uniform(0, 1.02) * states.seconds
    steps = range(states.steps)
    yield from ((name, step) for step in sorted(draw.sample(steps, min(len(steps), options.steps))))


_given: list[Any] = []


def begin(*given: Any) -> None:
    """Let this process know what :func:`trial` needs: the folder of the run, the bench, and the verb's states."""
    _given[:] = given


def trial(kill: Kill, again: bool) -> tuple[Kill, str]:
    """Kill a verb once, and perhaps run it again.

    Returns:
        Which state it left, ``"too late"`` where it had ended before, or what is wrong.
    """
    place, bench, states = _given
    at = kill[1]
    now = place / f"now-{os.getpid()}"
    bench.fresh(now, states.verb)
    words = bench.line(states.verb.words, now)
    if isinstance(at, float):
        late = not Forked(words).killed_after(at)
    else:
        late = Forked(words, step=at, within=now).end()[0] >= 0
    verdict = states.which(now)
    if verdict.startswith("fault") or not again:
        return kill, "too late" if late and verdict == "new" else verdict
    left = hidden(now)
    status, said = Forked(words).end()
    found = states.which(now)
    done = found == "new" or (states.verb.goes_on and verdict == "new" and "a mix" in found)  # of two tunings
    if status or not done or hidden(now):
        return kill, f"fault: run again: {status} {said} {found}, left {hidden(now)}, before {left}"
    return kill, "too late" if late else verdict


if __name__ == "__main__":
    started = time.monotonic()
    status = main()
    print(f"{time.monotonic() - started:.0f} s")
    raise SystemExit(status)
