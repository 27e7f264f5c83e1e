"""README and docs/: their commands and Python blocks run in order, their links and sizes are checked."""

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import command_page
import pytest
import torch
import transformers
from hydrant import HeadPlan
from hydrant.cli.main import parse
from support import for_this_version, run_cli, run_python

ROOT = Path(__file__).parents[1]
NAV = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in NAV)]
"""Pages in reading order."""
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

NAMED = {
    "train": ("train", 0), "val": ("val", 0), "calibration": ("val", 1), "test": ("test", 0),
    "ood_val": ("oos_val", 0), "ood_test": ("oos_test", 0),
}  # fmt: skip
"""File name in the pages → CLINC150 split and first row."""
ROWS = 70
"""Rows of each file, enough to run the commands; test_clinc150.py checks the metrics."""
MORE_STEPS = ("range(12)", "range(60)")
"""Replacement in a page's training loop: a slim model learns more slowly."""
NOT_RUN = {
    "make": "installs into .venv; the targets are looked up, and a shorter demo replaces the demo",
    "pip": "installs; the extras are looked up",
    "python3": "makes a virtual environment",
    ".": "changes the shell that it is typed in",
    "python": "a study or benchmark takes hours or a GPU; script and options are looked up, test_studies.py runs them",
    "apt-get": "installs into the system",
    "unshare": "a benchmark beside Ray, in a network of its own",
    ".ci/onnxruntime-headers": "downloads",
    ".ci/aarch64": "downloads",
    "cmake": "test_cpp.py builds the runner",
    "tritonserver": "a server that does not end; test_triton_server.py runs it",
    "perf_analyzer": "is in the image of Triton's SDK",
    "hydrant-run": "runs in a test of its own, where the runner can be built",
}
"""Commands that are not run, by first word, with the reason."""
NEVER_RUN = {"demo", "profile", "serve"}
"""Subcommands that the pages only outline: they are slow or do not terminate (test_serve.py runs serve)."""
SHORTER = {
    "evaluate": ["--bootstrap", "20"],
    "make": ["--epochs", "1"],
    "tune": ["--epochs", "1"],
    "verify": ["--read", "examples=32"],
}
"""Options added to make a command faster, unless the page sets them."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.S | re.M)


def lines_of(body: str) -> list[list[str]]:
    """Split the command lines of a shell block into words."""
    lines = [shlex.split(line, comments=True) for line in body.replace("\\\n", " ").splitlines()]
    return [words for words in lines if words]


def commands(page: Path, start: str) -> list[list[str]]:
    """Return the command lines of a page's shell blocks that start with a word."""
    return [words for body in blocks(page, "sh") for words in lines_of(body) if words[0] == start]


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def workplace(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder as after ``make demo``, with a shorter training."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(demo / "digits", folder / "hydrant-demo")
    return folder


def save_slim(source: Path, folder: Path) -> None:
    """Save a narrow random model with the layers, heads, classes and tokenizer of another one.

    It prefers one class, so that rounding changes no prediction.
    """
    config = transformers.AutoConfig.from_pretrained(source)
    config.update({"hidden_size": 48, "intermediate_size": 96, "initializer_range": 0.1})
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    torch.nn.init.constant_(model.classifier.bias[:1], 3.0)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder)


@pytest.fixture(scope="module")
def own_model(workplace: Path, shared: Path) -> Path:
    """Add the reader's own checkpoint and data: a slim model and a few rows of CLINC150."""
    save_slim(shared / "models/minilm-clinc150", workplace / "my-model")
    for name, (source, first) in NAMED.items():
        with (shared / f"data/clinc150/{source}.csv").open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        with (workplace / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows[first :: max(1, len(rows) // ROWS)]])
    return workplace


def run_block(language: str, body: str, place: Path, done: set[tuple[str, ...]]) -> None:
    """Run a block in a folder, except commands that an earlier page ran."""
    if language == "python":
        ran = run_python(for_this_version(body.replace(*MORE_STEPS)), cwd=place)
        assert ran.returncode == 0, f"{body}\n{ran.stderr}"
        return
    for words in lines_of(body):
        if words[0] in NOT_RUN or tuple(words) in done:
            continue
        if words[0] == "openssl":
            subprocess.run(words, cwd=place, check=True, capture_output=True)
            continue
        assert words[0] == "hydrant", f"{words[0]} is neither run nor named with a reason in NOT_RUN"
        done.add(tuple(words))
        added = [] if "--fast" in words else SHORTER.get(words[1], [])  # --fast excludes --epochs
        ran = run_cli(*words[1:], *(added if not set(added) & set(words) else []), cwd=place, timeout=600)
        passed = ran.returncode == 0 or (words[1], ran.returncode) == ("drift", 1)  # an alarm
        assert passed, f"{words}\n{ran.stdout}\n{ran.stderr}"


def test_commands_and_python_blocks_run_in_the_order_of_the_pages(own_model: Path) -> None:
    done: set[tuple[str, ...]] = set()
    for page in PAGES:
        if page.parent.name == "research":
            continue  # takes hours; options are tested below
        for language, body in re.findall(r"^```(sh|python)\n(.*?)^```$", page.read_text(), flags=re.S | re.M):
            run_block(language, body, own_model, done)
    assert {words[1] for words in done} == set(command_page.COMMANDS) - NEVER_RUN


def test_commands_of_the_cpp_runner_run(workplace: Path, runner: Path) -> None:
    lines = [words for page in PAGES for words in commands(page, "hydrant-run")]
    assert lines
    for words in lines:
        ran = subprocess.run([str(runner), *words[1:]], cwd=workplace, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, f"{words}\n{ran.stderr}"


def test_commands_of_studies_and_outlines_have_options_that_exist() -> None:
    """Commands in text blocks, the example under each help text, and the commands of the studies."""
    shown = [
        shlex.split(line.removeprefix("example: "), comments=True)
        for page in PAGES
        for body in blocks(page, "text")
        for line in body.replace("\\\n", " ").splitlines()
        if line.removeprefix("example: ").startswith("hydrant ")
    ]
    shown += [words for page in PAGES if page.parent.name == "research" for words in commands(page, "hydrant")]
    assert len(shown) > len(command_page.COMMANDS)
    for words in shown:
        assert parse(words[1:]).command == words[1]


@pytest.mark.skipif(
    sys.version_info[:2] != command_page.PYTHON, reason="Python 3.11 wrote the page; others break lines differently"
)
def test_the_page_of_commands_matches_the_help() -> None:
    assert command_page.PAGE.read_text() == command_page.page(), "run `python tests/command_page.py`"


def test_plans_that_are_shown_are_plans() -> None:
    shown = [HeadPlan.from_json(json.loads(body)) for page in PAGES for body in blocks(page, "json")]
    assert shown and all(plan.members for plan in shown)


def test_other_commands_name_existing_targets_and_options() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        for command in commands(page, "make"):
            assert set(command[1:]) <= targets, page
        for command in commands(page, "python"):
            script = ROOT / command[1]
            assert script.is_file(), (page, command)
            options = [word for word in command if word.startswith("--")]
            source = "".join(path.read_text() for path in (script, ROOT / "benchmarks/study_run.py"))
            assert all(f'"{option}"' in source for option in options), (page, command)
        for extras in re.findall(r"pip install[^\n`]*\[([\w,-]+)\]", page.read_text()):
            assert set(extras.split(",")) <= set(SETTINGS["optional-dependencies"]), (page, extras)


def test_cpp_blocks_compile(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    lines = [
        line for page in PAGES for body in blocks(page, "cpp") for line in ("{", *body.splitlines(), "}")
    ]  # one scope each
    assert lines
    includes = [line for line in lines if line.startswith("#include")]
    rest = [line for line in lines if line not in includes]
    program = "\n".join([*includes, "#include <iostream>", "int main() {", *rest, "}", ""])
    (tmp_path / "blocks.cpp").write_text(program)
    command = ["g++", "-std=c++17", "-fsyntax-only", "-I", str(ROOT / "runtime/cpp/include"), "blocks.cpp"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as on GitHub and the site."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_have_targets() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "examples").rglob("README.md")]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if target.startswith("http"):
                continue
            place, _, anchor = target.partition("#")
            linked = (page.parent / place).resolve() if place else page
            assert linked.exists(), f"{names(page)} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{names(page)} links to {target}"


def test_every_page_is_in_the_site() -> None:
    assert sorted(NAV) == sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))


def test_pages_stay_short() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    assert len(readme.split()) <= 1000
    generated = {"commands.md", "census.md"}
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name not in generated]
    assert sum(len(page.read_text().split()) for page in pages) <= 40_000
