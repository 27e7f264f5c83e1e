"""The README is executed: every command and Python block runs, in order, and prints what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support import run_cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.S | re.M)


def commands(start: str) -> list[list[str]]:
    """Command lines of the shell blocks that start with a word."""
    shell = "\n".join(body for language, body in BLOCKS if language == "sh").replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in shell.splitlines() if line.split(" ")[0] == start]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README's reader has it, with the demo already run (shortly)."""
    folder = tmp_path_factory.mktemp("readme") / "checkout"
    folder.mkdir()
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (folder.parent / "shared").symlink_to(shared)
    done = run_cli("demo", "--epochs", "8", "-o", folder / "hydrant-demo", timeout=900, fresh=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_python_blocks_run(workplace: Path) -> None:
    blocks = [body for language, body in BLOCKS if language == "python"]
    assert blocks
    for body in blocks:
        done = subprocess.run([sys.executable, "-c", body], cwd=workplace, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{body}\n{done.stderr}"


def test_hydrant_commands_run_in_order(workplace: Path, shared: Path) -> None:
    ran = commands("hydrant")
    assert len(ran) >= 6
    for command in ran:
        if command[1] == "demo":
            continue  # it made the workplace
        few = ["--bootstrap", "20"] if command[1] == "evaluate" else []  # intervals take long, and are tested elsewhere
        done = run_cli(*command[1:], *few, cwd=workplace, timeout=1500, fresh=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        if command[1] == "predict" and "--input" not in command:
            for line in done.stdout.splitlines()[2:]:
                text, label, *figures = re.split(r"\s{2,}", line.strip())
                shown = re.search(rf"^{re.escape(text)}\s+{re.escape(label)}\s+(.*)$", README, flags=re.M)
                assert shown, f"the README does not show {text!r} as {label!r}"
                told = [float(figure) for figure in shown[1].split()]
                assert [float(figure) for figure in figures] == pytest.approx(told, abs=2e-3), line


def test_other_commands_name_what_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M)
    assert {command[1] for command in commands("make")} <= set(targets)
    for command in commands("pip"):
        assert (ROOT / "constraints.txt").is_file()
        named = re.search(r"\[(.+)\]", " ".join(command))
        assert named is None or set(named[1].split(",")) <= set(extras), command
    for command in commands("python"):
        assert (ROOT / command[1]).is_file(), command
        done = subprocess.run([sys.executable, command[1], "--help"], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", README):
        assert (ROOT / target).exists(), target
