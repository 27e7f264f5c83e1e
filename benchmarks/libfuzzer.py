"""Running one program that takes libFuzzer's flags until it has run as often as asked, and counting what it found."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS, MEGABYTES = 2, 1024
"""A finding is what takes longer, or more memory."""

MOST = 20
"""Findings of a target after which it is left."""


@dataclass(frozen=True)
class Limits:
    """How long a target is fuzzed.

    Attributes:
        executions: so often.
        seconds: or so long, where that is over first; 0 for no limit.
        seed: of the first process; each further one takes the next.
        overhead: megabytes that the process takes beside what it reads.
        flags: further ones of libFuzzer.
    """

    executions: int
    seconds: int
    seed: int
    overhead: int = 512
    flags: tuple[str, ...] = ()


def campaign(
    name: str, command: Sequence[str], place: Path, limits: Limits, found: Path, **variables: str
) -> dict[str, object]:
    """Fuzz one target, in a new process after each finding.

    Args:
        name: of the target; what it finds is kept under it.
        command: the program; its flags and the folder of its corpus are added.
        place: a folder of this target alone, with its corpus in ``corpus``.
        limits: when it ends.
        found: where inputs that are findings are kept.
        **variables: of the program's environment.
    """
    done, starts, coverage, started = 0, 0, 0, time.monotonic()
    findings: list[dict[str, str]] = []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(place), **variables}
    while done < limits.executions and len(findings) < MOST:
        left = limits.seconds - (time.monotonic() - started) if limits.seconds else 0
        if limits.seconds and left <= 1:
            break
        flags = [
            f"-runs={limits.executions - done}", f"-seed={limits.seed + starts}", f"-timeout={SECONDS}",
            f"-rss_limit_mb={MEGABYTES + limits.overhead}", f"-max_total_time={int(left)}", "-print_final_stats=1",
            f"-artifact_prefix={place}/found-", *limits.flags,
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
            kept = found / f"{name}-{path.name.removeprefix('found-')}"
            kept.write_bytes(path.read_bytes())
            path.unlink()
            if path.name.startswith(("found-timeout", "found-slow")):
                (place / "empty").write_bytes(b"")
                took, start = (alone([*command, str(each)], environment) for each in (kept, place / "empty"))
                if took - start < SECONDS:
                    kept.unlink()  # the machine was slow, not the reader
                    continue
            findings.append({"input": kept.name, "why": reason(ran.stderr)})
        if not artifacts and "detected memory leaks" in ran.stderr:
            findings.append({"input": "none: seen at the end", "why": reason(ran.stderr)})
        if ran.returncode and not counted and not last:
            raise SystemExit(f"{name}: the fuzzer failed:\n{ran.stderr[-3000:]}")
    return {
        "executions": done,
        "seconds": round(time.monotonic() - started),
        "coverage": coverage,
        "findings": findings,
    }


def alone(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds of the processor that a program takes with one input, its start included; endless where it fails."""
    words = [*command, "-timeout=600"]
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return used.ru_utime + used.ru_stime if process.returncode == 0 else math.inf


def reason(said: str) -> str:
    """What a fuzzer says of its finding, on one line."""
    for pattern in (r"Uncaught Python exception: ===\n(?:.*\n.*)", r"what\(\): .*", r"runtime error: .*", r"ERROR: .*"):
        if why := re.search(pattern, said):
            return " ".join(why.group(0).split())[:300]
    return "?"
