"""An install that serves bundles only: every verb that needs more names the extra, and no help needs anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import hydrant
import numpy as np
import pandas
import pytest
import transformers
from hydrant.cli.main import COMMANDS
from hydrant.errors import EXTRAS
from support import random_plan

HIDDEN = sorted({*EXTRAS, "cuda", "huggingface_hub", "pandas", "tensorrt", "tensorrt_rtx"} - {"onnxruntime"})
"""What ``hydrant-uq[onnxruntime]`` does not bring."""

HIDE = f"import sys\nfor name in {HIDDEN}: sys.modules[name] = None\n"
COMMAND = "from hydrant.cli.main import main\nsys.exit(main(sys.argv[1:]))"
EACH = """
import contextlib, io, json, logging, sys
def stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
def say(line):
    with contextlib.redirect_stdout(stream()) as out, contextlib.redirect_stderr(stream()) as err:
        status = call(line)
    print(json.dumps([line, status, *(each.buffer.getvalue().decode() for each in (out, err))]))
"""
"""Reports what ``call`` says of each line, which all are asked of one process."""


def python(code: str, *arguments: str, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


Told = dict[str, subprocess.CompletedProcess[str]]


def told(code: str, lines: list[str], cwd: Path) -> Told:
    """What a process, whose code has a function ``call``, says of each line."""
    done = python(f"{HIDE}{code}{EACH}for line in {lines}: say(line)", cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {line: subprocess.CompletedProcess(line, *answer) for line, *answer in answers}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bert_checkpoint: Path) -> Path:
    """A checkpoint, a plan, a bundle with a graph, and data."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "checkpoint").symlink_to(bert_checkpoint)
    plan = random_plan("bert", 2)
    plan.save(folder / "plan.json")
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert_checkpoint)
    hydrant.export_onnx(hydrant.save_bundle(hydrant.fuse(bert_checkpoint, plan), folder / "out", tokenizer))
    table = pandas.DataFrame({"text": ["hello world", "the money"], "label": ["a", "b"]})
    table.to_csv(folder / "data.csv", index=False)
    table.to_parquet(folder / "data.parquet")
    return folder


VERBS = [
    ("plan checkpoint --data data.csv -o new.json", "torch", "fuse"),
    ("fuse checkpoint --plan plan.json -o new", "torch", "fuse"),
    ("tune out --data data.csv --validation data.csv -o new", "accelerate", "tune"),
    ("export out", "onnx", "fuse"),
    ("build out --backend tensorrt", "tensorrt", "tensorrt"),
    ("verify out", "polygraphy", "verify"),
    ("profile out --baseline single", "onnx", "fuse"),
    ("calibrate out --data data.csv", "torch", "fuse"),
    ("evaluate out --data data.csv", "sklearn", "report"),
    ("predict out hello --backend torch", "torch", "fuse"),
    ("predict out hello --backend openvino", "openvino", "openvino"),
    ("predict out --input data.parquet", "datasets", "fuse"),
    ("demo -o new", "sklearn", "demo"),
]
SERVED = ["predict out --input data.csv", "inspect out"]


@pytest.fixture(scope="module")
def commands(folder: Path) -> Told:
    """What the command line says, and nothing that it writes."""
    call = """
def call(line):
    from hydrant.cli.main import main
    logging.root.handlers.clear()
    try:
        return main(line.split())
    except SystemExit as left:
        return left.code
"""
    before = sorted(folder.rglob("*"))
    found = told(call, [*SERVED, *(line for line, _, _ in VERBS)], folder)
    assert sorted(folder.rglob("*")) == before
    return found


@pytest.mark.parametrize(("line", "package", "extra"), VERBS)
def test_a_verb_names_the_extra_that_it_needs(commands: Told, line: str, package: str, extra: str) -> None:
    done = commands[line]
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"hydrant: error: {package} is not installed; it is needed ")
    assert done.stderr.endswith(f": pip install 'hydrant-uq[{extra}]'\n")
    assert done.stderr.count("\n") == 1


def test_bundles_are_served_and_inspected(commands: Told) -> None:
    done = commands[SERVED[0]]
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)
    done = commands[SERVED[1]]
    assert (done.returncode, done.stderr) == (0, "")
    line = next(line for line in done.stdout.splitlines() if line.startswith("graph "))
    assert "model.fp32.onnx: precision fp32; lowering unrolled; attention primitive; onnx is not installed" in line
    assert line.endswith("pip install 'hydrant-uq[fuse]'")


MODELS = ["fuse", "save_bundle"]
"""Public names that are made of PyTorch."""

CALLS = [
    *MODELS, "build_engine('out')", "calibrate('out', 'data.csv')", "evaluate('out', 'data.csv')",
    "export_onnx('out')", "load('out', 'torch')", "plan_heads('checkpoint', 'data.csv')",
    "profile('out', ['onnxruntime'], baseline=['single'])", "tune('out', 'data.csv', validation='data.csv')",
    "verify('out')",
]  # fmt: skip
"""Uses of public names that ask for an extra."""


@pytest.fixture(scope="module")
def names(folder: Path) -> Told:
    """What using each public name says."""
    call = """
import hydrant, hydrant.errors
from hydrant import HeadPlan, HydrantError
def call(line):
    try:
        eval(f"hydrant.{line}")
    except hydrant.errors.MissingExtraError as error:
        print(error)
    return 0
"""
    return told(call, CALLS, folder)


@pytest.mark.parametrize("name", CALLS)
def test_a_public_name_names_the_extra_that_it_needs(names: Told, name: str) -> None:
    done = names[name]
    assert done.stderr == ""
    assert " is not installed; it is needed " in done.stdout
    assert "pip install 'hydrant-uq[" in done.stdout


def test_all_other_public_names_are_there(folder: Path) -> None:
    names = sorted({*hydrant.__all__} - {*MODELS})
    done = python(f"{HIDE}import hydrant\nprint(len([getattr(hydrant, name) for name in {names}]))", cwd=folder)
    assert (done.stdout.strip(), done.stderr) == (str(len(names)), "")


def test_no_help_imports_what_is_heavy() -> None:
    heavy = [*HIDDEN, "onnxruntime"]
    code = f"""
import contextlib, io, sys
before = set(sys.modules)  # what the environment imports into every process
from hydrant.cli.main import main
for arguments in {[["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]}:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main(arguments)
    print(arguments[0], len(shown.getvalue()) > 10, [name for name in {heavy} if name in sys.modules.keys() - before])
"""
    done = python(code)
    assert done.stdout.splitlines() == [f"{name} True []" for name in ("--version", "--help", *COMMANDS)], done.stderr


def test_ready_tensors_need_no_processor(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_ids=np.full((3, 4), 5), attention_mask=np.ones((3, 4), np.int64))
    done = python(HIDE + COMMAND, "predict", "out", "--input", str(tmp_path / "x.npz"), cwd=folder)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 3)
