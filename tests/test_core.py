"""Installation for serving only: verbs name the extra that they need, and help works without extras."""

import json
import subprocess
from pathlib import Path

import hydrant
import numpy as np
import pandas
import pytest
import transformers
from hydrant.cli.main import COMMANDS
from hydrant.errors import EXTRAS
from support import fresh_python, random_plan

HIDDEN = sorted({*EXTRAS, "cuda", "huggingface_hub", "pandas", "tensorrt", "tensorrt_rtx"} - {"onnxruntime"})
"""Modules outside ``hydrant-uq[onnxruntime]``."""

HIDE = f"import sys\nfor name in {HIDDEN}: sys.modules[name] = None\n"
COMMAND = "from hydrant.cli.main import main\nsys.exit(main(sys.argv[1:]))"
EACH = """
import contextlib, io, json, logging, sys
from hydrant.cli.main import main
def stream():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
def report(line):
    logging.root.handlers.clear()
    with contextlib.redirect_stdout(stream()) as out, contextlib.redirect_stderr(stream()) as err:
        try:
            status = main(line.split())
        except SystemExit as left:
            status = left.code
    print(json.dumps([line, status, *(each.buffer.getvalue().decode() for each in (out, err))]))
"""
"""Run command lines in one process; print status, stdout and stderr of each as JSON."""


Outcomes = dict[str, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, bert_checkpoint: Path) -> Path:
    """Folder with a checkpoint, a plan, a bundle with a graph, and data."""
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
    ("tune out --data data.csv --validation data.csv -o new", "accelerate", "tune"), ("export out", "onnx", "fuse"),
    ("build out --backend tensorrt", "tensorrt", "tensorrt"), ("verify out", "polygraphy", "verify"),
    ("profile out --baseline single", "onnx", "fuse"), ("calibrate out --data data.csv", "torch", "fuse"),
    ("evaluate out --data data.csv", "sklearn", "report"), ("predict out hello --backend torch", "torch", "fuse"),
    ("predict out hello --backend openvino", "openvino", "openvino"),
    ("predict out --input data.parquet", "pyarrow", "parquet"), ("demo -o new", "sklearn", "demo"),
]  # fmt: skip
SERVED = ["predict out --input data.csv", "inspect out"]


@pytest.fixture(scope="module")
def commands(folder: Path) -> Outcomes:
    """Outcome of each command; nothing is written."""
    before = sorted(folder.rglob("*"))
    lines = [*SERVED, *(line for line, _, _ in VERBS)]
    done = fresh_python(f"{HIDE}{EACH}for line in {lines}: report(line)", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(folder.rglob("*")) == before
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {line: subprocess.CompletedProcess(line, *answer) for line, *answer in answers}


@pytest.mark.parametrize(("line", "package", "extra"), VERBS)
def test_a_verb_names_the_extra_that_it_needs(commands: Outcomes, line: str, package: str, extra: str) -> None:
    done = commands[line]
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith(f"hydrant: error: {package} is not installed; ")
    assert f": pip install 'hydrant-uq[{extra}]', or in a checkout: " in done.stderr
    assert done.stderr.count("\n") == 1


def test_bundles_are_served_and_inspected(commands: Outcomes) -> None:
    done = commands[SERVED[0]]
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)
    done = commands[SERVED[1]]
    assert (done.returncode, done.stderr) == (0, "")
    line = next(line for line in done.stdout.splitlines() if line.startswith("graph "))
    assert "model.fp32.onnx: precision fp32; lowering unrolled; attention primitive; onnx is not installed" in line
    assert "pip install 'hydrant-uq[fuse]'" in line


def test_public_names_exist_or_name_their_extra(folder: Path) -> None:
    names = sorted({*hydrant.__all__} - {"fuse", "save_bundle"})  # these need PyTorch
    done = fresh_python(f"{HIDE}import hydrant\nprint(len([getattr(hydrant, name) for name in {names}]))", cwd=folder)
    assert (done.stdout.strip(), done.stderr) == (str(len(names)), "")
    for call in ("fuse", "evaluate('out', 'data.csv')", "load('out', 'torch')", "verify('out')"):
        done = fresh_python(f"{HIDE}import hydrant\nhydrant.{call}", cwd=folder)
        assert "MissingExtraError" in done.stderr, call
        assert "pip install 'hydrant-uq[" in done.stderr, call


def test_help_imports_no_heavy_packages() -> None:
    heavy = [*HIDDEN, "onnxruntime"]
    code = f"""
import contextlib, io, sys
before = set(sys.modules)  # imports of the environment
from hydrant.cli.main import main
for arguments in {[["--version"], ["--help"], *([name, "--help"] for name in COMMANDS)]}:
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
        main(arguments)
    print(arguments[0], len(shown.getvalue()) > 10, [name for name in {heavy} if name in sys.modules.keys() - before])
"""
    done = fresh_python(code)
    assert done.stdout.splitlines() == [f"{name} True []" for name in ("--version", "--help", *COMMANDS)], done.stderr


def test_ready_tensors_need_no_processor(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", input_ids=np.full((3, 4), 5), attention_mask=np.ones((3, 4), np.int64))
    done = fresh_python(HIDE + COMMAND, "predict", "out", "--input", str(tmp_path / "x.npz"), cwd=folder)
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 3)
