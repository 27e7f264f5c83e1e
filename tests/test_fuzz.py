"""A minute of what `benchmarks/fuzz.py` does for hours: every reader of what comes from elsewhere, on damaged ones."""

import functools
import inspect
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from fuzz_bundle import make_given

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import fuzz
import fuzz_target
import fuzz_targets

MUTATIONS = 100


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz_targets.Made]:
    place = tmp_path_factory.mktemp("fuzz")
    make_given(place)
    return {name: functools.cache(make) for name, make in fuzz_targets.targets(place).items()}


@pytest.mark.parametrize("name", fuzz.NAMES)
def test_damaged_files_are_refused_or_read(name: str, targets: dict[str, fuzz_targets.Made]) -> None:
    target = targets[name]()
    slowest, memory = cost(target, [*target.seeds, b"", *fuzz_target.mutations(target.seeds, MUTATIONS, seed=7)])
    assert slowest < fuzz.SECONDS
    assert memory < fuzz.MEGABYTES


def cost(target: fuzz_target.Target, inputs: Iterable[bytes]) -> tuple[float, float]:
    """Seconds that the slowest input took, and megabytes that this process grew by for any, where that can be told."""
    slowest, memory = 0.0, 0.0
    for data in inputs:
        before, started = measured_anew(), time.process_time()
        target.read(data)
        slowest = max(slowest, time.process_time() - started)
        if before is not None:
            memory = max(memory, megabytes("VmHWM") - before)
    return slowest, memory


def measured_anew() -> float | None:
    """Megabytes that this process takes, of which the kernel notes the most from now on; ``None`` if it cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # no Linux, or a container that hides this
        return None
    return megabytes("VmRSS")


def megabytes(name: str) -> float:
    """What this process takes, ``VmRSS``, or took at the most, ``VmHWM``."""
    match = re.search(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024


@pytest.mark.parametrize("name", fuzz.NAMES)
def test_seeds_get_everywhere(name: str, targets: dict[str, fuzz_targets.Made]) -> None:
    """All that a target does some seed gets to the end of: else its damaged copies would not come there either."""
    target = targets[name]()
    fuzz_target.BEGUN.clear()
    fuzz_target.TAKEN.clear()
    for data in target.seeds:
        target.read(data)
    assert fuzz_target.TAKEN == fuzz_target.BEGUN != set()


@pytest.mark.parametrize("name", fuzz.NAMES)
def test_values_nested_as_deep_as_can_be_read(name: str, targets: dict[str, fuzz_targets.Made]) -> None:
    """What is decoded just so must be refused in words, too, and writing these takes a little more depth."""
    target = targets[name]()
    if not target.deep:
        pytest.skip("no JSON")
    left = sys.getrecursionlimit() - len(inspect.stack(0))
    for data in fuzz_target.nested(target.seeds, range(left - 60, left, 2), seed=3):
        target.read(data)


def test_every_target_has_a_name(targets: dict[str, fuzz_targets.Made]) -> None:
    assert list(targets) == fuzz.NAMES


def test_a_fault_would_be_found(targets: dict[str, fuzz_targets.Made], monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that lets Python's own error through, as of a missing key, fails the target."""
    monkeypatch.setattr(
        fuzz_targets.Bundle, "plan", lambda bundle: bundle.read_json("plan.json")["members"][0]["nothing"]
    )
    with pytest.raises(KeyError):
        targets["plan"]().read(targets["plan"]().seeds[0])
