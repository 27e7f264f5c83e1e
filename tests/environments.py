"""Python environments for packages that cannot live beside hydrant's own pins."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
from hydrant.bundle.staging import locked


def own_environment(pins: Path) -> Path:
    """Python with the packages of a complete list of pins, kept in ``.cache/``; skips without a package index."""
    wanted = pins.read_bytes() + sys.version.encode()
    folder = pins.parents[1] / ".cache" / f"{pins.stem}-{hashlib.sha256(wanted).hexdigest()[:12]}"
    python, whole = folder / "bin" / "python", folder / "whole"
    folder.parent.mkdir(exist_ok=True)
    with locked(folder.parent):
        if whole.exists():
            return python
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile"]
        done = subprocess.run(
            [*install, "--only-binary", ":all:", "-r", pins], check=False, capture_output=True, text=True, timeout=600
        )
        if done.returncode and any(words in done.stderr for words in ("from versions: none", "Retrying")):
            pytest.skip(f"the package index does not answer: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        whole.touch()
    return python
