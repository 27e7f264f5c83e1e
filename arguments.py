"""The command line's words and options; ``cli.py`` holds what they do."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from . import __version__

BACKENDS = "tensorrt, tensorrt-rtx, onnxruntime-tensorrt, onnxruntime-cuda, onnxruntime, openvino, torch"

Run = Callable[[argparse.Namespace], int]


def parse(arguments: Sequence[str] | None, runs: Mapping[str, Run]) -> argparse.Namespace:
    """Parse the command line; inputs of ``predict`` may also stand behind its options.

    Args:
        arguments: words; ``None`` for those of the process.
        runs: subcommand → function that runs it, stored as ``run`` in the result.
    """
    parser = _parser(runs)
    options, rest = parser.parse_known_args(arguments)
    if rest and (options.run is not runs["predict"] or any(item.startswith("-") for item in rest)):
        parser.prog += f" {next(name for name, run in runs.items() if run is options.run)}"  # for where help is
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.inputs = [*options.inputs, *rest]
    return options


def _parser(runs: Mapping[str, Run]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hydrant", description="One transformer classifier as an uncertainty-aware ensemble in one graph."
    )
    parser.add_argument("--version", action="version", version=f"hydrant {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    shared = _Parser(add_help=False)
    shared.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    shared.add_argument("-v", "--verbose", action="store_true", help="log more; show tracebacks")
    shared.add_argument("--seed", type=_count, default=0, help="of everything random (default 0)")
    columns = _Parser(add_help=False)
    columns.add_argument("--text-column", default="text", metavar="NAME", help="column that holds the text")

    def command(name: str, text: str, *parents: _Parser) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[shared, *parents])
        added.set_defaults(run=runs[name])
        return added

    _plan_arguments(command("plan", "choose the attention heads that each member keeps", columns))
    _fuse_arguments(command("fuse", "prune and fuse the members into a bundle", columns))
    _tune_arguments(command("tune", "fine-tune the fused members on labelled data", columns))
    _export_arguments(command("export", "write the bundle's ONNX graph", columns))
    _build_arguments(command("build", "compile a graph into a TensorRT or TensorRT-RTX engine"))
    _verify_arguments(command("verify", "compare the backends with the PyTorch reference", columns))
    _profile_arguments(command("profile", "measure latency and memory, beside the single model and a Deep Ensemble"))
    _calibrate_arguments(command("calibrate", "fit temperature and thresholds on labelled data", columns))
    _evaluate_arguments(command("evaluate", "measure quality and uncertainty on labelled data, with a report", columns))
    _predict_arguments(command("predict", "predict labels and uncertainties", columns))
    _bundle_argument(command("inspect", "show what is in a bundle"))
    sub = command("demo", "run everything end to end on embedded data")
    sub.add_argument("-o", "--output", type=Path, default=Path("hydrant-demo"), help="folder to create")
    sub.add_argument("--force", action="store_true", help="replace an earlier demo there")
    sub.add_argument("--epochs", type=_positive, default=80, help="of training the small ViT (default 80)")
    return parser


def _plan_arguments(sub: argparse.ArgumentParser) -> None:
    from_choices = {
        "method": ("taylor", "circuit", "random"),
        "objective": ("separation", "nll", "both"),
        "masking": ("pruned", "selected"),
        "diversity": ("noise", "bootstrap"),
    }
    sub.add_argument("model", metavar="MODEL", help="Hugging Face checkpoint folder or hub name")
    sub.add_argument(
        "--data", metavar="FILE", help="labelled calibration data: .csv .tsv .jsonl .parquet .npz or image folder"
    )
    _prompt_arguments(sub)
    sub.add_argument("--members", type=_positive, default=3, metavar="M", help="number of members (default 3)")
    sub.add_argument(
        "--keep",
        help="heads kept per layer: 8, a share such as 0.66 (1.0: all), or a JSON list (default 8)",
    )
    sub.add_argument(
        "--budget",
        type=float,
        metavar="RATIO",
        help="instead of --keep: choose fork and heads for at most RATIO × the single model's operations, such as 1.25",
    )
    sub.add_argument(
        "--fork-from",
        type=_count,
        metavar="LAYER",
        help="every member keeps all heads below LAYER: one shared trunk (default 0; with --budget: chosen)",
    )
    sub.add_argument("--method", choices=from_choices["method"], default="taylor", help="how heads are scored")
    sub.add_argument(
        "--ood",
        metavar="FILE",
        help="for circuits: out-of-distribution inputs, in any form of --data; labels are not read",
    )
    sub.add_argument(
        "--objective",
        choices=from_choices["objective"],
        help="what circuits are for: OOD separation, likelihood, or both (default separation)",
    )
    sub.add_argument(
        "--masking",
        choices=from_choices["masking"],
        help="for circuits: heads of earlier layers masked while a layer is scored (default pruned)",
    )
    sub.add_argument(
        "--average", action="store_true", help="for circuits: one member, the average of M circuits (CircAvg)"
    )
    sub.add_argument(
        "--diversity",
        choices=from_choices["diversity"],
        help="how members are made to differ (default noise; for circuits bootstrap)",
    )
    sub.add_argument(
        "--noise",
        type=float,
        default=0.5,
        help="standard deviation for noise: of log scores; of circuits' scores ÷ their spread (default 0.5)",
    )
    sub.add_argument(
        "--examples", type=_count, default=2048, help="calibration examples drawn at random; 0 for all (default 2048)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--batch-size", type=_positive, default=32, help="examples per pass (default 32)")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="PLAN", help="JSON file to write")


def _fuse_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", nargs="+", help="one checkpoint, or one for each member")
    sub.add_argument("--plan", metavar="PLAN", help="head plan; without it every head is kept")
    _prompt_arguments(sub)
    sub.add_argument("--keep-separate", type=_parts, default=(), metavar="PARTS",
                     help="parts not averaged: embeddings,norms,mlp,pooler,classifier or all")  # fmt: skip
    sub.add_argument("--adapter", action="append", default=[], metavar="DIR",
                     help="PEFT LoRA adapter of the one MODEL: a member; once for each")  # fmt: skip
    sub.add_argument(
        "--low-rank",
        choices=("auto", "merge", "keep"),
        default="auto",
        help="adapters' updates of attention: merged, kept, or kept where that is cheaper (default auto)",
    )
    sub.add_argument(
        "--data", metavar="FILE", help="data to measure the drift of averaging on (default: synthetic inputs)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--no-processor", action="store_true", help="leave the tokenizer or image processor out")
    sub.add_argument("--force", action="store_true", help="replace an existing bundle")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to create")


def _prompt_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--classes", metavar="CLASSES", help="for CLIP: names as cat,dog, a .txt file of names, or a .json of prompts"
    )
    sub.add_argument(
        "--template",
        action="append",
        metavar="TEXT",
        help="for CLIP: prompt with {} for the class name (default 'a photo of a {}.'); may be repeated",
    )


def _tune_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("--data", required=True, metavar="FILE",
                     help="labelled data to tune on: a file as of `plan`, or an image folder")  # fmt: skip
    sub.add_argument(
        "--validation", metavar="FILE", help="labelled data to judge on (default: one in ten examples of --data)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--epochs", type=_positive, default=5, help="passes over the data, at most (default 5)")
    sub.add_argument("--batch-size", type=_positive, default=32, help="examples per update (default 32)")
    sub.add_argument("--learning-rate", type=float, default=5e-5, help="the highest one (default 5e-5)")
    sub.add_argument("--weight-decay", type=float, default=0.01, help="of AdamW (default 0.01)")
    sub.add_argument(
        "--warmup", type=float, default=0.1, help="share of updates over which the learning rate rises (default 0.1)"
    )
    sub.add_argument(
        "--patience", type=_positive, default=2, help="epochs without a better validation NLL to stop after (default 2)"
    )
    sub.add_argument("--per-member", action="store_true", help="tune each member alone, merge, and report the drift")
    sub.add_argument("--keep-separate", type=_parts, default=(), metavar="PARTS",
                     help="with --per-member: parts not averaged, as in `fuse`")  # fmt: skip
    sub.add_argument(
        "--device", choices=("auto", "cpu"), default="auto", help="a GPU if there is one (auto), or the CPU"
    )
    sub.add_argument("--force", action="store_true", help="replace another bundle at --output")
    sub.add_argument(
        "-o", "--output", type=Path, metavar="BUNDLE", help="folder to create (default: replace the bundle)"
    )


def _export_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16", "int8"), default="fp32", help="of weights and activations"
    )
    sub.add_argument(
        "--lowering", choices=("auto", "grouped", "unrolled"), default="auto",
        help="of the members (auto: unrolled for fp32 and int8, grouped for fp16 and bf16)",
    )  # fmt: skip
    sub.add_argument(
        "--attention", choices=("auto", "primitive", "onnx"), default="auto", help="operators of attention"
    )
    sub.add_argument("--member-outputs", action="store_true", help="also output each member's probabilities")
    sub.add_argument("--without", action="append", default=[], metavar="REWRITE", help="leave an exact rewrite out")
    sub.add_argument("--data", metavar="FILE", help="inputs to calibrate fp16 and int8 on (fp16 default: synthetic)")
    sub.add_argument("--examples", type=_positive, default=256, help="number of these inputs (default 256)")


def _build_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument(
        "--backend",
        choices=("tensorrt", "tensorrt-rtx"),
        default="tensorrt",
        help="library; tensorrt-rtx builds without a GPU (default tensorrt)",
    )
    sub.add_argument(
        "--precision", choices=("fp16", "bf16", "fp32"), default="fp16", help="of the graph (default fp16)"
    )
    sub.add_argument(
        "--batch",
        action="append",
        default=[],
        metavar="MIN:OPT:MAX",
        help="batch sizes of an optimization profile (default 1:8:32); once for each profile",
    )
    sub.add_argument(
        "--sequence",
        action="append",
        default=[],
        metavar="MIN:OPT:MAX",
        help="tokens per text (default 8:64:128); once for all profiles, or for each",
    )
    sub.add_argument(
        "--compute-capability",
        action="append",
        default=[],
        metavar="CC",
        help="GPU to compile for, such as 8.9; may be repeated (tensorrt-rtx; default 8.0, 8.6, 8.9 and 12.0)",
    )
    sub.add_argument(
        "--hardware-compatibility",
        choices=("none", "ampere+", "same"),
        default="none",
        help="other GPUs that may run the engine: from Ampere on, or of the same compute capability (tensorrt)",
    )
    sub.add_argument(
        "--version-compatible", action="store_true", help="for the lean runtime beside later versions (tensorrt)"
    )
    sub.add_argument("--strip-weights", action="store_true", help="read the weights from the graph when loading")
    sub.add_argument("--refit", action="store_true", help="make the weights replaceable")
    sub.add_argument("--optimization-level", type=_count, metavar="0-5", help="0: fast build, 5: fast engine")
    sub.add_argument("--workspace", type=_positive, metavar="MIB", help="scratch memory that kernels may use")
    sub.add_argument("--timing-cache", type=Path, metavar="FILE", help="kernel timings, read and written (tensorrt)")
    sub.add_argument("--require-fused", action="store_true", help="fail unless all attention blocks are fused")
    sub.add_argument("--log", type=Path, metavar="FILE", help="write everything that the builder says")
    sub.add_argument("--name", help="of the engine (default BACKEND-PRECISION)")


def _verify_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("--backend", default="auto", help=f"backend to test: auto (all that can run), {BACKENDS}")
    _precision_argument(sub)
    sub.add_argument("--against", default="torch", help="reference backend (default torch)")
    sub.add_argument("--data", metavar="FILE", help="real inputs (default: seeded synthetic ones)")
    sub.add_argument("--examples", type=_positive, default=256, help="number of inputs (default 256)")
    sub.add_argument("--bisect", action="store_true", help="when a gate fails, find the first layers that diverge")


def _profile_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("--backend", action="append", metavar="NAME",
                     help=f"auto, {BACKENDS}; may be repeated (default auto)")  # fmt: skip
    sub.add_argument("--precision", choices=("fp32", "fp16", "bf16", "int8"), help="default: the backend's choice")
    sub.add_argument("--batch", type=_numbers, default=[1, 8], metavar="N,N", help="inputs per run (default 1,8)")
    sub.add_argument(
        "--sequence", type=_numbers, metavar="N,N", help="tokens per text (default 128, or what the model reads)"
    )
    sub.add_argument("--baseline", action="append", default=[], metavar="NAME",
                     help="single or deep-ensemble, measured as well; may be repeated")  # fmt: skip
    sub.add_argument("--layers", action="store_true", help="show the time of every operator (onnxruntime)")
    sub.add_argument("--commands", action="store_true", help="show trtexec or polygraphy commands that do the same")
    sub.add_argument("--threads", type=_positive, help="threads within one run")
    sub.add_argument("--seconds", type=_seconds, default=3.0, help="that every case runs at least (default 3)")
    sub.add_argument(
        "--iterations", type=_positive, default=30, metavar="N", help="that every case runs at least (default 30)"
    )
    sub.add_argument("--no-memory", action="store_false", dest="memory", help="leave peak memory out")


def _calibrate_arguments(sub: argparse.ArgumentParser) -> None:
    scores = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information")
    _bundle_argument(sub)
    _labelled_data_arguments(sub, "labelled data that the model was not tuned on")
    sub.add_argument("--ood", metavar="FILE", help="out-of-distribution data, labels not read; brings an OOD threshold")
    target = sub.add_mutually_exclusive_group()
    target.add_argument("--coverage", type=_share, help="share of inputs to answer; others abstain (default 0.95)")
    target.add_argument("--risk", type=_share, help="instead: share of answers that may be wrong, with 95%% confidence")
    sub.add_argument("--score", choices=scores, default="confidence", help="that abstention stands on")
    sub.add_argument(
        "--ood-score", choices=scores, default="predictive_entropy", help="that tells what is out of distribution"
    )
    sub.add_argument("--conformal", type=_share, metavar="ALPHA", help="prediction sets that miss ALPHA of the labels")
    sub.add_argument(
        "--conformal-method", choices=("lac", "aps"), default="lac", help="smallest, or adaptive sets (default lac)"
    )


def _evaluate_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    _labelled_data_arguments(sub, "labelled data, neither tuned nor calibrated on")
    sub.add_argument("--ood", metavar="FILE", help="out-of-distribution data, labels not read")
    sub.add_argument("--compare", action="extend", nargs="+", default=[], metavar="MODEL",
                     help="checkpoints (single models) or bundles to set beside it")  # fmt: skip
    sub.add_argument("--html", type=Path, metavar="FILE", help="write a report with pictures, in one file")
    sub.add_argument("--corruptions", action="store_true", help="also on typos or corrupted images, in five severities")
    sub.add_argument(
        "--corrupted", type=_positive, default=500, metavar="N", help="examples that are corrupted (default 500)"
    )
    sub.add_argument(
        "--bootstrap",
        type=_count,
        default=1000,
        metavar="N",
        help="resamples for 95%% intervals (default 1000; 0: none)",
    )
    sub.add_argument("--latency", action="store_true", help="also time the models, interleaved")
    sub.add_argument(
        "--backend", default="torch", help="that runs the bundles (default torch: it alone gives energies)"
    )
    _precision_argument(sub)


def _labelled_data_arguments(sub: argparse.ArgumentParser, text: str) -> None:
    sub.add_argument("--data", required=True, metavar="FILE", help=f"{text}: a file as of `plan`, or an image folder")
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--examples", type=_count, default=0, help="examples drawn at random; 0 for all (default)")
    sub.add_argument("--batch-size", type=_positive, default=32, help="inputs per run (default 32)")


def _predict_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("inputs", metavar="TEXT|IMAGE", nargs="*", help="texts, or paths of images")
    sub.add_argument("--input", metavar="FILE", help="file or image folder with many inputs; the result is JSON lines")
    sub.add_argument("--output", type=Path, metavar="FILE", help="write JSON lines there instead of standard output")
    sub.add_argument("--probabilities", action="store_true", help="also give every class's probability, in JSON")
    sub.add_argument("--backend", default="auto", help=f"auto, {BACKENDS} (default auto)")
    _precision_argument(sub)
    sub.add_argument("--batch-size", type=_positive, default=32, help="inputs per run (default 32)")
    sub.add_argument("--threads", type=_positive, help="threads within one run")


def _precision_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16", "int8"),
        help="of the graph to run (default: the backend's choice)",
    )


def _bundle_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("bundle", metavar="BUNDLE", type=Path, help="bundle made by `hydrant fuse`")


class _Parser(argparse.ArgumentParser):
    """Usage errors as the one line that every error gets."""

    def error(self, message: str) -> NoReturn:
        print(f"hydrant: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and below 1")
    return value


def _numbers(text: str) -> list[int]:
    return [_positive(part.strip()) for part in text.split(",")]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value
