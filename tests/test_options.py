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
    Risk,
    Taylor,
    TensorRT,
    TensorRTForRTX,
    Timing,
)
from hydrant.calib.decisions.targets import Targets
from hydrant.cli.main import COMMANDS, main, parse
from hydrant.data.data_options import DataOptions

VERBS = ("plan_heads", "fuse", "tune", "export_onnx", "build_engine", "verify", "profile", "calibrate", "evaluate",
         "load", "save_bundle")  # fmt: skip


def test_verbs_take_few_parameters() -> None:
    for name in VERBS:
        taken = set(inspect.signature(getattr(hydrant, name)).parameters)
        own = taken - {"seed", "progress", "force"}  # which all may have
        assert len(own) <= 12, name


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataOptions(text=""), "a column is named ''; expected the name of a column"),
        (lambda: Reading(label=3), "a column is named '3'"),
        (lambda: Reading(batch_size=0), "batch_size is '0'; expected a whole number, 1 or more"),
        (lambda: Reading(examples=-1), "examples is '-1'; expected a whole number, 0 or more"),
        (lambda: Reading(examples=1.5), "examples is '1.5'; expected a whole number"),
        (lambda: Taylor("luck"), "diversity 'luck' is unknown; expected one of noise, bootstrap"),
        (lambda: Taylor(noise=-0.1), "noise is '-0.1'; expected a finite number, 0 or more"),
        (lambda: Taylor(noise=math.nan), "noise is 'nan'; expected a finite number"),
        (lambda: Taylor(noise=math.inf), "noise is 'inf'; expected a finite number"),
        (lambda: Taylor("bootstrap", noise=0.5), "noise is given for diversity 'bootstrap', which has no use for it"),
        (Circuit, "objective 'separation' needs out-of-distribution data; give it with Circuit(ood=…) (--ood)"),
        (lambda: Circuit(objective="both"), "objective 'both' needs out-of-distribution data"),
        (lambda: Circuit(objective="luck"), "objective 'luck' is unknown; expected one of separation, nll, both"),
        (lambda: Circuit(ood="x", masking="all"), "masking 'all' is unknown; expected one of pruned, selected"),
        (lambda: Circuit(ood="x", diversity="luck"), "diversity 'luck' is unknown"),
        (lambda: Budget(0), "budget is '0'; expected a positive number"),
        (lambda: Budget(-1.0), "budget is '-1.0'; expected a positive number"),
        (lambda: Budget(math.nan), "budget is 'nan'; expected a positive number"),
        (lambda: Budget(math.inf), "budget is 'inf'; expected a positive number"),
        (lambda: Budget("1.25"), "budget is '1.25'; expected a positive number"),
        (lambda: Budget(True), "budget is 'True'; expected a positive number"),
        (lambda: Coverage(1.5), "coverage is 1.5; expected a number above 0 and below 1"),
        (lambda: Coverage("most"), "coverage is 'most'; expected a number above 0 and below 1"),
        (lambda: Coverage(score="luck"), "score 'luck' is unknown; expected auto, confidence, predictive_entropy"),
        (lambda: Risk(0), "risk is 0; expected a number above 0 and below 1"),
        (lambda: Conformal(2.0), "conformal alpha is 2; expected a number above 0 and below 1"),
        (lambda: Conformal(0.1, "raps"), "conformal method 'raps' is unknown; expected lac, aps"),
        (lambda: Targets(0.95), "abstain is '0.95'; expected Coverage(0.95) or Risk(0.02), for example"),
        (lambda: Targets(sets=0.1), "sets is '0.1'; expected Conformal(0.1), for example"),
        (lambda: Targets(flags=0.05), "flags is '0.05'; expected FalseAlarm(0.05), for example"),
        (lambda: FalseAlarm(score="luck"), "score 'luck' is unknown; expected auto, confidence"),
        (lambda: FalseAlarm(0), "false alarm is 0; expected a number above 0 and below 1"),
        (lambda: Jointly(learning_rate=0), "learning_rate is '0'; expected a finite number above 0"),
        (lambda: Jointly(learning_rate=math.nan), "learning_rate is 'nan'; expected a finite"),
        (lambda: Jointly(weight_decay=-1.0), "weight_decay is '-1.0'; expected a finite number, 0 or more"),
        (lambda: Jointly(warmup=1.0), "warmup is '1.0'; expected a share"),
        (lambda: Jointly(epochs=0), "epochs is '0'; expected a whole number of 1 or more"),
        (lambda: Jointly(patience=0), "patience is '0'"),
        (lambda: Jointly(device="tpu"), "device 'tpu' is unknown; expected auto or cpu"),
        (lambda: Jointly(mixed_precision="fp16"), "mixed_precision 'fp16' is unknown; expected no or bf16"),
        (lambda: PerMember(epochs=0), "epochs is '0'"),
        (lambda: Jointly(freeze=-1), "freeze is '-1'; expected a number of layers, 0 or more"),
        (lambda: Jointly(freeze=1, unfreeze=True), "expected one of them: how many layers stay"),
        (lambda: PerMember(keep_separate="heads"), "cannot keep 'heads' separate; expected some of embeddings"),
        (lambda: Figures(bootstrap=-1), "bootstrap is '-1'; expected a whole number, 0 or more"),
        (lambda: Figures(corrupted=0), "corrupted is '0'; expected a whole number, 1 or more"),
        (lambda: Figures(neighbours=0), "neighbours is '0'; expected a whole number, 1 or more"),
        (lambda: Figures(corrupted=7), "corrupted is 7 without corruptions, which alone have use for it; ask for them"),
        (lambda: Figures(neighbours=3), "neighbours is 3 without baselines, which alone have use for it; ask for them"),
        (lambda: Figures(baselines="all"), "baselines is 'all'; expected True or False"),
        (lambda: Figures(fit="train.csv"), "training data are given (fit=…, --fit), but nothing is fitted on them"),
        (lambda: GraphForm(lowering="flat"), "lowering 'flat' is unknown; expected auto, grouped, unrolled"),
        (lambda: GraphForm(without="fast"), "rewrite 'fast' is unknown; expected some of shared-trunk"),
        (lambda: Timing(batch=[0]), "batch is 0; expected 1 to 4096"),
        (lambda: Timing(seconds=-1), "seconds is -1; expected 0 or more"),
        (lambda: TensorRT(hardware_compatibility="all"), "hardware compatibility is 'all'; expected none, ampere+"),
        (lambda: TensorRT(workspace=2**50), "expected 1 to 1048576"),
        (lambda: TensorRTForRTX(workspace=0), "workspace is 0 MiB; expected 1 to"),
        (lambda: TensorRTForRTX(optimization_level=9), "optimization level is '9'; expected 0 to 5"),
        (lambda: TensorRTForRTX(optimization_level=True), "optimization level is 'True'; expected 0 to 5"),
        (lambda: TensorRT(workspace=1.5), "workspace is 1.5 MiB; expected 1 to"),
        (lambda: TensorRT(workspace="100"), "workspace is '100' MiB; expected 1 to"),
        (lambda: TensorRT(strip_weights="no"), "strip_weights is 'no'; expected True or False"),
        (lambda: TensorRT(timing_cache=5), "timing_cache is '5'; expected the path of a file"),
        (lambda: TensorRTForRTX(refit=1), "refit is '1'; expected True or False"),
        (lambda: TensorRTForRTX(compute_capability=8.9), "compute capability is '8.9'; expected a list of texts"),
        (lambda: TensorRTForRTX(compute_capability=[8.9]), "compute capability is '[8.9]'; expected a list of texts"),
        (lambda: Figures(corruptions="no"), "corruptions is 'no'; expected True or False"),
        (lambda: Figures(latency=None), "latency is 'None'; expected True or False"),
        (lambda: Figures(bootstrap=True), "bootstrap is 'True'; expected a whole number, 0 or more"),
        (lambda: GraphForm(member_outputs="no"), "member_outputs is 'no'; expected True or False"),
        (lambda: Circuit(ood="x", average="no"), "average is 'no'; expected True or False"),
        (lambda: Circuit(ood="x", state=5), "state is '5'; expected the path of a file"),
        (lambda: Circuit(ood="x", state=""), "state is ''; expected the path of a file"),
        (lambda: Timing(sequence="128"), "sequence is '128'; expected a list of one or more whole numbers"),
        (lambda: Timing(iterations=10**30), "expected 1 or more"),
        (lambda: Timing(threads="2"), "threads is '2'; expected 1 to"),
        (lambda: hydrant.load("x", threads=1.5), "threads is 1.5; expected 1 to"),
        (lambda: hydrant.load("x", threads=True), "threads is True; expected 1 to"),
    ],
)  # fmt: skip
def test_option_types_check_themselves(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(HydrantError, match=re.escape(message)):
        make()


def test_how_many_examples() -> None:
    assert [Reading().limit(), Reading().limit(9), Reading(examples=0).limit(9), Reading(examples=4).limit(9)] == [
        None, 9, None, 4,
    ]  # fmt: skip


SERVICE = {"where it listens", "how it runs", "who may ask, and how much", "what is watched and recorded"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_whole_phrases_in_groups_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    usage, description, *groups, example = capsys.readouterr().out.strip().split("\n\n")
    assert usage.startswith(f"usage: hydrant {name} ")
    assert description == f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}."
    titles = [group.partition(":\n")[0] for group in groups]
    assert titles[-1] == "general"
    assert set(titles) <= {"input", "members", "method", "explore", "output", "scale", "general", *SERVICE}
    helps = re.findall(r"^  (?! )\S.*?(?:  +|\n +)(\S.*)", "\n".join(groups), flags=re.M)
    assert len(helps) >= 5
    for text in helps:
        assert re.match(r"[A-Z][\w-]+ |Texts,|Checkpoint", text), text
    assert "Seed for all random draws (default: 0)" in groups[-1]
    command = shlex.split(example.removeprefix("example: "))
    assert command[:2] == ["hydrant", name]
    assert parse(command[1:]).command == name


def test_an_option_is_its_parameter() -> None:
    """Name, type, default, choices and help: from the signature and the docstring."""
    given = parse(["calibrate", "out", "--data", "x.csv", "--batch-size", "7", "--risk", "0.25"])
    assert (given.bundle, given.data, given.batch_size, given.risk) == (Path("out"), "x.csv", 7, 0.25)
    assert not hasattr(given, "coverage"), "what was not given keeps the verb's default"


CIRCUIT = ["--method", "circuit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "m", "--ood", "x"], "--ood is given for --method taylor, which has no use for it; leave it out"),
        (["plan", "m", "--method", "random", "--ood", "x"], "--ood is given for --method random, which has no use"),
        (["plan", "m", "--objective", "nll"], "--objective is given for --method taylor"),
        (["plan", "m", "--masking", "pruned"], "--masking is given for --method taylor"),
        (["plan", "m", "--average"], "--average is given for --method taylor"),
        (["plan", "m", "--method", "random", "--noise", "1"], "--noise is given for --method random"),
        (["plan", "m", *CIRCUIT], "objective 'separation' needs out-of-distribution data"),
        (["plan", "m", "--keep", "2", "--budget", "1.5"], "argument --budget: not allowed with argument --keep"),
        (["build", "b", "--backend", "tensorrt-rtx", "--hardware-compatibility", "ampere+"],
         "--hardware-compatibility is given for --backend tensorrt-rtx, which has no use for it"),
        (["build", "b", "--backend", "tensorrt-rtx", "--timing-cache", "x"], "leave it out, or use --backend tensorrt"),
        (["build", "b", "--compute-capability", "8.9"], "leave it out, or use --backend tensorrt-rtx"),
        (["tune", "b", "--data", "x", "--keep-separate", "mlp"], "--keep-separate is given without --per-member"),
        (["calibrate", "b", "--data", "x", "--coverage", "0.9", "--risk", "0.1"], "not allowed with argument"),
        (["calibrate", "b", "--data", "x", "--conformal-method", "aps"], "is given without --conformal; give"),
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
    assert {name for name in found if name.startswith("hydrant.cli.")} <= {
        f"hydrant.cli.{name}"
        for name in ("main", "terminal", "words", "options", "shared", "predict", "prediction_text")
    }


def test_every_subcommand_has_its_file() -> None:
    for name in COMMANDS:
        module = import_module(f"hydrant.cli.{name}")
        assert callable(module.run)
        assert callable(module.arguments)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["inspect", "BARE"], ["inspect", "BARE", "--json"],
                                   ["inspect", "--help"], ["predict", "BUNDLE", "hello"],
                                   ["predict", "BUNDLE", "--input", "FILE"],
                                   ["predict", "BUNDLE", "--input", "FILE", "--skip-invalid"]])  # fmt: skip
def test_a_full_device_is_told_in_one_line(words: list[str], bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\nhello\n")
    places = {"BUNDLE": str(bundle), "BARE": str(bundle.with_name("bare")), "FILE": str(tmp_path / "x.csv")}
    command = [sys.executable, "-m", "hydrant", *(places.get(word, word) for word in words)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd="/")
    assert done.stderr == "hydrant: error: cannot write to standard output: No space left on device\n"
    assert done.returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="closes a stream in a shell")
@pytest.mark.parametrize("stream", ["1", "2"])
@pytest.mark.parametrize("words", [["--version"], ["inspect", "BARE", "--json"], ["inspect", "BARE"]])
def test_a_closed_stream_takes_what_it_is_given(words: list[str], stream: str, bundle: Path) -> None:
    bare = str(bundle.with_name("bare"))
    command = [sys.executable, "-m", "hydrant", *(bare if word == "BARE" else word for word in words)]
    closing = ["sh", "-c", f'exec "$@" {stream}>&-', "sh", *command]
    done = subprocess.run(closing, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "", stream == "2")
