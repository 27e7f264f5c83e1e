"""Ray in separate network and process namespaces.

Ray listens on every interface, and its processes outlive a killed driver. Here it has only a loopback interface, and
its processes end with the namespace.
"""

import fcntl
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


@functools.cache
def missing() -> str:
    """The reason that Ray cannot be tested here, or an empty text."""
    for module in ("ray.data", "ray.serve"):
        search = subprocess.run(
            [sys.executable, "-c", f"import importlib.util as u; exit(u.find_spec({module!r}) is None)"],
            capture_output=True, check=False,
        )  # fmt: skip
        if search.returncode:
            return "the extra ray is not installed"
    return "" if _space() else "unshare is not permitted, and Ray would listen on all interfaces"


@functools.cache
def _space() -> list[str]:
    """The command that opens the namespaces, or an empty list."""
    for words in (SPACE, [*SPACE, "--map-root-user"]):
        try:
            done = subprocess.run([*words, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
        except OSError:
            return []
        if done.returncode == 0:
            return words
    return []


def run(script: str, *words: object, cwd: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a Python script in the namespaces, one at a time on this machine.

    Two clusters that start at once on two cores exceed Ray's own time limits.

    Args:
        script: text of the script.
        words: arguments.
        cwd: working directory.
        timeout: seconds.
    """
    program = [sys.executable, "-c", script, *map(str, words)]
    settings = {"HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    variables = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with (Path(tempfile.gettempdir()) / "hydrant-tests-ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.run(
            [*_space(), "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *program],
            capture_output=True, text=True, check=False, timeout=timeout, cwd=cwd, env={**variables, **settings},
        )  # fmt: skip
