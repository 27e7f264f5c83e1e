"""The README and the pages in docs/ are executed: every command and every Python block runs, in order."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydrant import HeadPlan
from support import run_cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMED = {"train": "train", "val": "val", "test": "test", "ood_val": "oos_val", "ood_test": "oos_test"}
"""Files as the pages call them, and as CLINC150 does."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.S | re.M)


def commands(page: Path, start: str) -> list[list[str]]:
    """Command lines of a page's shell blocks that start with a word."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.split(" ")[0] == start]


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the reader has it, with the demo already run (shortly)."""
    folder = tmp_path_factory.mktemp("reader")
    done = run_cli("demo", "--epochs", "8", "-o", folder / "hydrant-demo", timeout=900, fresh=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def own_model(workplace: Path, shared: Path) -> Path:
    """The reader's own checkpoint and data lie there, too: those of CLINC150."""
    (workplace / "my-model").symlink_to(shared / "models/minilm-clinc150")
    (workplace / "shared").symlink_to(shared)
    for name, source in NAMED.items():
        (workplace / f"{name}.csv").symlink_to(shared / f"data/clinc150/{source}.csv")
    return workplace


def run_all(workplace: Path, wanted: bool) -> Iterator[str]:
    """Run each different command once, in the order of the pages: those on the own model, or the others."""
    seen = set()
    for page in PAGES:
        for command in commands(page, "hydrant"):
            own = any(word.rstrip("/").split(".")[0] in {"my-model", "out", *NAMED, "single"} for word in command)
            if tuple(command) in seen or own != wanted or "../shared" in " ".join(command):
                continue  # what names ../shared reproduces a study, which its own tests run in miniature
            seen.add(tuple(command))
            few = ["--bootstrap", "20"] if command[1] == "evaluate" else []  # intervals take long
            done = run_cli(*command[1:], *few, cwd=workplace, timeout=1500, fresh=True)
            assert done.returncode == 0, f"{names(page)}: {command}\n{done.stdout}\n{done.stderr}"
            if command[1] == "predict" and "--input" not in command:
                yield done.stdout


def test_commands_on_what_the_demo_leaves_run(workplace: Path) -> None:
    assert list(run_all(workplace, wanted=False))


def test_commands_on_the_own_model_run_and_print_what_is_shown(own_model: Path) -> None:
    text = "".join(page.read_text() for page in PAGES)
    for printed in run_all(own_model, wanted=True):
        for line in printed.splitlines()[2:]:
            query, label, *figures = re.split(r"\s{2,}", line.strip())
            shown = re.search(rf"^{re.escape(query)}\s+{re.escape(label)}\s+(.*)$", text, flags=re.M)
            assert shown, f"no page shows {query!r} as {label!r}"
            told = [float(figure) for figure in shown[1].split()]
            assert [float(figure) for figure in figures] == pytest.approx(told, abs=2e-3), line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=names)
def test_python_blocks_run(page: Path, workplace: Path, tmp_path: Path) -> None:
    place = shutil.copytree(workplace, tmp_path / "place", symlinks=True)
    for body in blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", body], cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{body}\n{done.stderr}"


def test_plans_that_are_shown_are_plans() -> None:
    shown = [body for page in PAGES for body in blocks(page, "json")]
    assert shown
    for body in shown:
        assert HeadPlan.from_json(json.loads(body)).members


def test_other_commands_name_what_there_is() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        for command in commands(page, "make"):
            assert set(command[1:]) <= targets, page
        for command in commands(page, "python"):
            script = ROOT / command[1]
            assert script.is_file(), (page, command)
            options = [word for word in command if word.startswith("--")]
            source = "".join(path.read_text() for path in (script, ROOT / "benchmarks/study.py"))
            assert all(f'"{option}"' in source for option in options), (page, command)
        for extras in re.findall(r"pip install[^\n`]*\[([\w,-]+)\]", page.read_text()):
            assert set(extras.split(",")) <= set(SETTINGS["optional-dependencies"]), (page, extras)


def test_code_blocks_have_a_language_that_is_run_or_text() -> None:
    for page in PAGES:
        languages = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), flags=re.S | re.M)
        assert set(languages) <= {"sh", "python", "json", "cpp", "text"}, page


def test_cpp_blocks_compile(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    for page in PAGES:
        for body in blocks(page, "cpp"):
            includes = "".join(line for line in body.splitlines(keepends=True) if line.startswith("#include"))
            rest = body.replace(includes, "")
            program = f"{includes}#include <iostream>\nint main() {{\n{rest}}}\n"
            (tmp_path / "block.cpp").write_text(program)
            command = ["g++", "-std=c++17", "-fsyntax-only", "-I", str(ROOT / "runtime/cpp/include"), "block.cpp"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("README.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith("http"):
                continue
            place, _, anchor = target.partition("#")
            found = (page.parent / place).resolve() if place else page
            assert found.exists(), f"{names(page)} links to {target}"
            assert not anchor or anchor in anchors(found), f"{names(page)} links to {target}"


def test_the_readme_fits_on_a_few_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_every_page_is_in_the_site() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}
