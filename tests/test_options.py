"""Option types, which check themselves, and the command-line options generated from them."""

import inspect
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import hydrant
import pytest
from hydrant.cli.main import COMMANDS, FIRST, main, parse
from hydrant.cli.renamed import PYTHON_ONLY, RENAMED
from hydrant.cli.shared import read_options
from support import fresh_python


@pytest.mark.parametrize(("make", "name"), [
    (lambda: hydrant.Reading(batch_size=0), "batch_size"),
    (lambda: hydrant.Taylor("luck"), "luck"),
    (hydrant.Circuit, "ood"),
    (lambda: hydrant.Budget(math.nan), "nan"),
    (lambda: hydrant.Coverage(1.5), "coverage"),
    (lambda: hydrant.Risk(0), "risk"),
    (lambda: hydrant.Recipe(members=0), "members"),
    (lambda: hydrant.Recipe(members=1, epochs=7).resolved(0), "epochs = 7"),
    (lambda: hydrant.Recipe(method="taylor,dropout,random"), "dropout"),
    (lambda: hydrant.FalseAlarm(score="luck"), "luck"),
    (lambda: hydrant.Conformal(0.1, "raps"), "raps"),
    (lambda: hydrant.Jointly(learning_rate=0), "learning_rate"),
    (lambda: hydrant.PerMember(keep_separate="heads"), "heads"),
    (lambda: hydrant.Figures(corrupted=7), "corrupted"),
    (lambda: hydrant.GraphForm(lowering="flat"), "flat"),
    (lambda: hydrant.Timing(batch=[0]), "batch"),
    (lambda: hydrant.TensorRT(workspace=2**50), "1048576"),
    (lambda: hydrant.TensorRTForRTX(optimization_level=9), "'9'"),
])  # fmt: skip
def test_option_types_refuse_values_by_name(make: Callable[[], Any], name: str) -> None:
    with pytest.raises(hydrant.HydrantError, match=re.escape(name)):
        make()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_short_and_its_example_can_be_parsed(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "116")  # 24 before a help text, 90 for it, and 2 that argparse leaves
    with pytest.raises(SystemExit):
        main([name, "--help"])
    shown = capsys.readouterr().out
    assert f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}." in shown
    options = shown.partition("\n\nexample: ")[0].partition("\n\nbackends: ")[0].splitlines()[2:]
    wrapped = [
        (line, after)
        for line, after in pairwise(options)
        if re.match(" {24}|  .{20}  ", line) and after[:24] == " " * 24
    ]
    assert not wrapped
    assert set(re.findall("^[a-z]+(?=:$)", shown, flags=re.M)) <= {"required", "common", "advanced"}
    command = shlex.split(shown.rpartition("example: ")[2])
    assert command[:2] == ["hydrant", name]
    assert parse(command[1:]).command == name


def test_an_option_is_its_parameter() -> None:
    """Name, type, default, choices and help come from the signature and the docstring."""
    options = parse(["calibrate", "out", "--data", "x.csv", "--read", "batch_size=7", "--risk", "0.25"])
    assert (options.bundle, options.data, options.risk) == ("out", "x.csv", 0.25)
    assert read_options(options) == hydrant.Reading(batch_size=7)
    assert not hasattr(options, "coverage"), "omitted options keep the verb's default"


def test_former_options_work_or_name_their_replacement(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(
        ["evaluate", "out", "--data", "x.csv", "--text-column", "query", "--examples=9", "--batch-size", "7"]
    )
    assert read_options(options) == hydrant.Reading(text="query", examples=9, batch_size=7)
    warned = capsys.readouterr().err
    assert [flag for flag in RENAMED if flag in warned] == ["--text-column", "--examples", "--batch-size"]
    for command, places in PYTHON_ONLY.items():
        for place, flags in places.items():
            module, _, name = place.rpartition(".")
            for flag in flags:
                with pytest.raises(hydrant.HydrantError, match=flag) as refused:
                    parse([command, "out", flag, "1"])
                if module:
                    [parameter] = re.findall(r"\((\w+)=…\)", str(refused.value))
                    assert parameter in inspect.signature(getattr(import_module(module), name)).parameters


CIRCUIT = ["--method", "circuit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "m", "--ood", "x"], "--ood does not apply to --method taylor;"),
        (["plan", "m", "--method", "random", "--ood", "x"], "--ood does not apply to --method random;"),
        (["plan", "m", *CIRCUIT], "objective 'separation' needs out-of-distribution data"),
        (["plan", "m", "--keep", "2", "--budget", "1.5"], "argument --budget: not allowed with argument --keep"),
        (["build", "b", "--backend", "tensorrt-rtx", "--hardware-compatibility", "ampere+"],
         "--hardware-compatibility does not apply to --backend tensorrt-rtx;"),
        (["build", "b", "--compute-capability", "8.9"], "use --backend tensorrt-rtx"),
        (["tune", "b", "--data", "x", "--keep-separate", "mlp"], "--keep-separate needs --per-member"),
        (["calibrate", "b", "--data", "x", "--coverage", "0.9", "--risk", "0.1"], "not allowed with argument"),
        (["export", "b", "--without", "fast"], "without is 'fast'; expected one of"),
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
    """Return the modules that a command has imported."""
    code = (
        "import sys\n"
        "from hydrant.cli.main import main\n"
        f"try: main({list(words)!r})\n"
        "except SystemExit: pass\n"
        "print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = fresh_python(code)
    return set(done.stderr.split())


HEAVY = {"torch", "transformers", "datasets", "onnx", "onnxruntime", "openvino", "matplotlib", "sklearn", "scipy"}


@pytest.mark.parametrize("words", [["--help"], []])
def test_overview_shows_six_commands_first_and_imports_no_subcommand(words: list[str]) -> None:
    code = f"import sys; from hydrant.cli.main import main; main({words})"
    done = fresh_python(code)
    assert (done.returncode, not done.stdout) == ((0, False) if words else (2, True))
    first, _, more = (done.stdout or done.stderr).partition("more commands:")
    assert re.findall("^  ([a-z]+)  ", first, flags=re.M) == list(FIRST)
    assert {*FIRST, *re.findall("^  ([a-z]+)  ", more, flags=re.M)} == set(COMMANDS)
    modules = loaded(*words)
    assert not modules & (HEAVY | {"numpy"})
    assert not {f"hydrant.cli.{name}" for name in COMMANDS} & modules


def test_predicting_imports_only_what_it_needs(text_bundle: Path) -> None:
    modules = loaded("predict", str(text_bundle), "hello world", "--backend", "onnxruntime")
    assert "onnxruntime" in modules
    assert not modules & {"torch", "transformers", "datasets", "onnx", "hydrant.export", "hydrant.build"}
    commands = {name.removeprefix("hydrant.cli.") for name in modules if name.startswith("hydrant.cli.")}
    assert commands <= {"main", "renamed", "terminal", "command_options", "shared", "predict", "prediction_text"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("words", [["--version"], ["inspect", "BUNDLE", "--json"], ["predict", "BUNDLE", "hello"],
                                   ["predict", "BUNDLE", "--input", "FILE", "--skip-invalid"]])  # fmt: skip
def test_a_full_device_is_reported_in_one_line(words: list[str], text_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\nhello\n")
    places = {"BUNDLE": str(text_bundle), "FILE": str(tmp_path / "x.csv")}
    command = [sys.executable, "-m", "hydrant", *(places.get(word, word) for word in words)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd="/")
    assert done.stderr == "hydrant: error: cannot write to standard output: No space left on device\n"
    assert done.returncode == 2
