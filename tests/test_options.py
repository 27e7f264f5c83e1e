"""Option types, which check themselves, and the command line's options, which are made from them."""

from __future__ import annotations

import inspect
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import hydrant
import pytest
from hydrant import (
    Budget,
    Circuit,
    Conformal,
    Coverage,
    FalseAlarm,
    Figures,
    GraphForm,
    HydrantError,
    Jointly,
    PerMember,
    Reading,
    Recipe,
    Risk,
    Taylor,
    TensorRT,
    TensorRTForRTX,
    Timing,
)
from hydrant.cli.main import COMMANDS, main, parse
from hydrant.cli.renamed import PYTHON_ONLY, RENAMED
from hydrant.cli.shared import read_options


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Reading(batch_size=0), "batch_size"),
        (lambda: Taylor("luck"), "luck"),
        (Circuit, "ood"),
        (lambda: Budget(math.nan), "nan"),
        (lambda: Coverage(1.5), "coverage"),
        (lambda: Risk(0), "risk"),
        (lambda: Recipe(members=1), "members"),
        (lambda: Recipe(fast=True, epochs=7), "epochs = 7"),
        (lambda: Recipe(method="taylor,dropout,random"), "dropout"),
        (lambda: FalseAlarm(score="luck"), "luck"),
        (lambda: Conformal(0.1, "raps"), "raps"),
        (lambda: Jointly(learning_rate=0), "learning_rate"),
        (lambda: PerMember(keep_separate="heads"), "heads"),
        (lambda: Figures(corrupted=7), "corrupted"),
        (lambda: GraphForm(lowering="flat"), "flat"),
        (lambda: Timing(batch=[0]), "batch"),
        (lambda: TensorRT(workspace=2**50), "1048576"),
        (lambda: TensorRTForRTX(optimization_level=9), "'9'"),
    ],
)
def test_option_types_refuse_values_by_name(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(HydrantError, match=re.escape(name)):
        make()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_every_help_can_be_parsed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}." in shown
    command = shlex.split(shown.rpartition("example: ")[2])
    assert command[:2] == ["hydrant", name]
    assert parse(command[1:]).command == name


def test_an_option_is_its_parameter() -> None:
    """Name, type, default, choices and help: from the signature and the docstring."""
    given = parse(["calibrate", "out", "--data", "x.csv", "--read", "batch_size=7", "--risk", "0.25"])
    assert (given.bundle, given.data, given.risk) == (Path("out"), "x.csv", 0.25)
    assert read_options(given) == Reading(batch_size=7)
    assert not hasattr(given, "coverage"), "what was not given keeps the verb's default"


def test_former_options_still_read_or_name_their_place(capsys: pytest.CaptureFixture[str]) -> None:
    given = parse(["evaluate", "out", "--data", "x.csv", "--text-column", "query", "--examples=9", "--batch-size", "7"])
    assert read_options(given) == Reading(text="query", examples=9, batch_size=7)
    warned = capsys.readouterr().err
    assert [flag for flag in RENAMED if flag in warned] == ["--text-column", "--examples", "--batch-size"]
    for command, places in PYTHON_ONLY.items():
        for place, flags in places.items():
            module, _, name = place.rpartition(".")
            for flag in flags:
                with pytest.raises(HydrantError, match=flag) as refused:
                    parse([command, "out", flag, "1"])
                if module:
                    [parameter] = re.findall(r"\((\w+)=…\)", str(refused.value))
                    assert parameter in inspect.signature(getattr(import_module(module), name)).parameters


CIRCUIT = ["--method", "circuit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "m", "--ood", "x"], "--ood is given for --method taylor, which has no use for it; leave it out"),
        (["plan", "m", "--method", "random", "--ood", "x"], "--ood is given for --method random, which has no use"),
        (["plan", "m", *CIRCUIT], "objective 'separation' needs out-of-distribution data"),
        (["plan", "m", "--keep", "2", "--budget", "1.5"], "argument --budget: not allowed with argument --keep"),
        (["build", "b", "--backend", "tensorrt-rtx", "--hardware-compatibility", "ampere+"],
         "--hardware-compatibility is given for --backend tensorrt-rtx, which has no use for it"),
        (["build", "b", "--compute-capability", "8.9"], "leave it out, or use --backend tensorrt-rtx"),
        (["tune", "b", "--data", "x", "--keep-separate", "mlp"], "--keep-separate is given without --per-member"),
        (["calibrate", "b", "--data", "x", "--coverage", "0.9", "--risk", "0.1"], "not allowed with argument"),
        (["export", "b", "--without", "fast"], "rewrite 'fast' is unknown"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_together(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = ["-o", str(tmp_path / "plan.json")] if words[0] == "plan" else []
    try:
        status = main([*words, *output])
    except SystemExit as left:
        status = int(str(left.code))
    assert status == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def loaded(*words: str) -> set[str]:
    """Modules that a command has imported when it ends."""
    code = (
        "import sys\n"
        "from hydrant.cli.main import main\n"
        f"try: main({list(words)!r})\n"
        "except SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return set(done.stderr.split())


HEAVY = {"torch", "transformers", "datasets", "onnx", "onnxruntime", "openvino", "matplotlib", "sklearn", "scipy"}


def test_help_imports_no_heavy_library_and_no_subcommand() -> None:
    found = loaded("--help")
    assert not found & (HEAVY | {"numpy"})
    assert not {f"hydrant.cli.{name}" for name in COMMANDS} & found


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of texts with a graph; ``bare``, beside it, has neither a graph nor a processor."""
    from support import make_model, make_tokenizer, random_plan

    folder = tmp_path_factory.mktemp("options")
    ensemble = hydrant.fuse(make_model("bert"), random_plan("bert", 2))
    hydrant.save_bundle(ensemble, folder / "bare", tensors_only=True)
    hydrant.export_onnx(hydrant.save_bundle(ensemble, folder / "out", make_tokenizer(folder / "source")))
    return folder / "out"


def test_predicting_imports_only_what_it_needs(bundle: Path) -> None:
    found = loaded("predict", str(bundle), "hello world", "--backend", "onnxruntime")
    assert "onnxruntime" in found
    assert not found & {"torch", "transformers", "datasets", "onnx", "hydrant.export", "hydrant.build"}
    commands = {name.removeprefix("hydrant.cli.") for name in found if name.startswith("hydrant.cli.")}
    assert commands <= {"main", "renamed", "terminal", "command_options", "shared", "predict", "prediction_text"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("words", [["--version"], ["inspect", "BARE", "--json"], ["predict", "BUNDLE", "hello"],
                                   ["predict", "BUNDLE", "--input", "FILE", "--skip-invalid"]])  # fmt: skip
def test_a_full_device_is_told_in_one_line(words: list[str], bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\nhello\n")
    places = {"BUNDLE": str(bundle), "BARE": str(bundle.with_name("bare")), "FILE": str(tmp_path / "x.csv")}
    command = [sys.executable, "-m", "hydrant", *(places.get(word, word) for word in words)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd="/")
    assert done.stderr == "hydrant: error: cannot write to standard output: No space left on device\n"
    assert done.returncode == 2
