"""The README and the pages in docs/: what they name is there, what they link to too, and C++ blocks compile."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from hydrant import HeadPlan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.S | re.M)


def commands(page: Path, start: str) -> list[list[str]]:
    """Command lines of a page's shell blocks that start with a word."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.split(" ")[0] == start]


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


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
