"""The command line: one thin subcommand per stage.

Exit status: 0 on success, 1 when a check failed (a verification gate), 2 for unusable input or
usage (one line ``hydrant: error: …``), 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .errors import HydrantError, InputError, cut


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    options = _parse(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="hydrant: %(levelname)s: %(message)s"
    )
    _quiet_libraries()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "│" or "Δ" shows "?" instead of failing
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(options.run(options))
    except HydrantError as error:
        return _fail(str(error), options.verbose)
    except KeyboardInterrupt:
        print("hydrant: interrupted; nothing was left half-written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; so do we
        return 0
    except Exception as error:  # whatever a library raises, the user gets one line
        text = f"{type(error).__name__}: {cut(error, 200)}"
        return _fail(f"unexpected {text}; run again with -v for details, and report it", options.verbose)


def plan(options: argparse.Namespace) -> int:
    """``hydrant plan``: choose each member's heads."""
    from .calib.planning import plan_heads
    from .render import plan_text

    _check_parent(options.output)
    made = plan_heads(
        options.model,
        options.data,
        members=options.members,
        keep=_keep(options.keep),
        method=options.method,
        diversity=options.diversity,
        noise=options.noise,
        examples=options.examples or None,
        seed=options.seed,
        text_column=options.text_column,
        label_column=options.label_column,
        batch_size=options.batch_size,
        progress=progress,
    )
    made.save(options.output)
    _show(options, {"plan": str(options.output), **made.to_json()}, f"{plan_text(made)}\nwrote {options.output}")
    return 0


def fuse(options: argparse.Namespace) -> int:
    """``hydrant fuse``: prune, group and merge members into a bundle."""
    from .bundle import MANIFEST
    from .drift_report import drift_report, drift_text
    from .families.checkpoint import load_model, load_processor
    from .files import check_replaceable
    from .fusion import fuse as fuse_models
    from .fusion import save_bundle
    from .plan import HeadPlan

    check_replaceable(options.output, MANIFEST, options.force)
    chosen = HeadPlan.load(options.plan) if options.plan else None
    separate = [part for part in options.keep_separate.split(",") if part]
    models = [load_model(source) for source in progress(options.model, len(options.model), "loading checkpoints")]
    ensemble = fuse_models(models, chosen, keep_separate=separate)
    processor = None if options.no_processor else load_processor(options.model[0], ensemble.architecture.modality)
    provenance: dict[str, Any] = {"sources": [Path(str(source)).name for source in options.model]}
    drift = drift_report(options, models, ensemble, processor, progress) if len(models) > 1 else None
    if drift is not None:
        provenance["drift"] = drift
    bundle = save_bundle(ensemble, options.output, processor, force=options.force, provenance=provenance)
    parameters = sum(tensor.numel() for tensor in ensemble.state_dict().values())
    lines = [f"wrote {bundle.path}: {ensemble.members} members of {bundle.family}, {parameters:,} parameters"]
    if drift is not None:
        lines.append(drift_text(drift))
    facts = {"bundle": str(bundle.path), "members": ensemble.members, "parameters": parameters, "drift": drift}
    _show(options, facts, "\n".join(lines))
    return 0


def export(options: argparse.Namespace) -> int:
    """``hydrant export``: write the ONNX graph into the bundle."""
    from .export import export_onnx

    path = export_onnx(options.bundle, options.precision, member_outputs=options.member_outputs)
    size = sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))
    _show(options, {"onnx": str(path), "bytes": size}, f"wrote {path} ({size / 1e6:.1f} MB)")
    return 0


def verify(options: argparse.Namespace) -> int:
    """``hydrant verify``: compare backends with the reference; status 1 when a gate fails."""
    from .render import verify_text
    from .runtime import verify as verify_bundle

    report = verify_bundle(
        options.bundle,
        options.backend,
        against=options.against,
        data=options.data,
        examples=options.examples,
        seed=options.seed,
        text_column=options.text_column,
        progress=progress,
    )
    _show(options, report.to_json(), verify_text(report))
    return 0 if report.passed else 1


def predict(options: argparse.Namespace) -> int:
    """``hydrant predict``: label, confidence and uncertainty of texts or images."""
    from .prediction_io import predict_file, predict_items
    from .runtime import load

    if options.output:
        _check_parent(options.output)
    if bool(options.inputs) == bool(options.input):
        raise InputError("give texts or images as arguments, or a file or folder with --input, and not both")
    with load(options.bundle, options.backend, threads=options.threads) as predictor:
        for name, reason in predictor.fallbacks:
            logging.getLogger("hydrant").warning("backend %s was skipped: %s", name, reason)
        if options.input:
            return predict_file(predictor, options, progress)
        return predict_items(predictor, options)


def inspect(options: argparse.Namespace) -> int:
    """``hydrant inspect``: what is in a bundle; status 1 when a file was altered."""
    from .inspection import inspect_bundle
    from .render import inspect_text

    facts = inspect_bundle(options.bundle)
    _show(options, facts, inspect_text(facts))
    return 0 if all(entry["state"] == "ok" for entry in facts["files"].values()) else 1


def demo(options: argparse.Namespace) -> int:
    """``hydrant demo``: everything end to end on embedded data."""
    from .demo import run_demo
    from .render import demo_text

    report = run_demo(
        options.output,
        seed=options.seed,
        epochs=options.epochs,
        force=options.force,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        progress=progress,
    )
    _show(options, report.to_json(), demo_text(report.to_json()))
    return 0 if report.verified.passed else 1


def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """A progress bar on standard error, for work over two seconds on a terminal."""
    from tqdm import tqdm

    return tqdm(steps, total=total or None, desc=title, delay=2, disable=None, leave=False, file=sys.stderr)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; inputs of ``predict`` may also stand behind its options."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (options.run is not predict or any(item.startswith("-") for item in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.inputs = [*options.inputs, *rest]
    return options


def _parser() -> argparse.ArgumentParser:
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

    def command(name: str, run: Any, text: str, *parents: _Parser) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text, parents=[shared, *parents])
        added.set_defaults(run=run)
        return added

    _plan_arguments(command("plan", plan, "choose the attention heads that each member keeps", columns))
    _fuse_arguments(command("fuse", fuse, "prune and fuse the members into a bundle", columns))
    sub = command("export", export, "write the bundle's ONNX graph")
    _bundle_argument(sub)
    sub.add_argument("--precision", choices=("fp32",), default="fp32", help="of weights and activations")
    sub.add_argument("--lowering", choices=("auto", "grouped"), default="auto", help="of the members (auto: grouped)")
    sub.add_argument("--attention", choices=("auto", "primitive"), default="auto", help="operators (auto: primitive)")
    sub.add_argument("--member-outputs", action="store_true", help="also output each member's probabilities")
    _verify_arguments(command("verify", verify, "compare the backends with the PyTorch reference", columns))
    _predict_arguments(command("predict", predict, "predict labels and uncertainties", columns))
    _bundle_argument(command("inspect", inspect, "show what is in a bundle"))
    sub = command("demo", demo, "run everything end to end on embedded data")
    sub.add_argument("-o", "--output", type=Path, default=Path("hydrant-demo"), help="folder to create")
    sub.add_argument("--force", action="store_true", help="replace an earlier demo there")
    sub.add_argument("--epochs", type=_positive, default=80, help="of training the small ViT (default 80)")
    return parser


def _plan_arguments(sub: argparse.ArgumentParser) -> None:
    from_choices = {"method": ("taylor", "random"), "diversity": ("noise", "bootstrap")}
    sub.add_argument("model", metavar="MODEL", help="Hugging Face checkpoint folder or hub name")
    sub.add_argument(
        "--data", metavar="FILE", help="labelled calibration data: .csv .tsv .jsonl .parquet .npz or image folder"
    )
    sub.add_argument("--members", type=_positive, default=3, metavar="M", help="number of members (default 3)")
    sub.add_argument(
        "--keep",
        default="8",
        help="heads kept per layer: 8, a share such as 0.66 (1.0: all), or a JSON list (default 8)",
    )
    sub.add_argument("--method", choices=from_choices["method"], default="taylor", help="how heads are scored")
    sub.add_argument(
        "--diversity", choices=from_choices["diversity"], default="noise", help="how members are made to differ"
    )
    sub.add_argument(
        "--noise", type=float, default=0.5, help="standard deviation of log scores, for noise (default 0.5)"
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
    sub.add_argument("--keep-separate", default="", metavar="PARTS",
                     help="parts not averaged: embeddings,norms,mlp,pooler,classifier or all")  # fmt: skip
    sub.add_argument(
        "--data", metavar="FILE", help="data to measure the drift of averaging on (default: synthetic inputs)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--no-processor", action="store_true", help="leave the tokenizer or image processor out")
    sub.add_argument("--force", action="store_true", help="replace an existing bundle")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to create")


def _verify_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("--backend", default="auto", help="backend to test: auto (all that can run), onnxruntime, torch")
    sub.add_argument("--against", default="torch", help="reference backend (default torch)")
    sub.add_argument("--data", metavar="FILE", help="real inputs (default: seeded synthetic ones)")
    sub.add_argument("--examples", type=_positive, default=256, help="number of inputs (default 256)")


def _predict_arguments(sub: argparse.ArgumentParser) -> None:
    _bundle_argument(sub)
    sub.add_argument("inputs", metavar="TEXT|IMAGE", nargs="*", help="texts, or paths of images")
    sub.add_argument("--input", metavar="FILE", help="file or image folder with many inputs; the result is JSON lines")
    sub.add_argument("--output", type=Path, metavar="FILE", help="write JSON lines there instead of standard output")
    sub.add_argument("--probabilities", action="store_true", help="also give every class's probability, in JSON")
    sub.add_argument("--backend", default="auto", help="auto, onnxruntime or torch (default auto)")
    sub.add_argument("--batch-size", type=_positive, default=32, help="inputs per run (default 32)")
    sub.add_argument("--threads", type=_positive, help="threads within one run")


def _bundle_argument(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("bundle", metavar="BUNDLE", type=Path, help="bundle made by `hydrant fuse`")


class _Parser(argparse.ArgumentParser):
    """Usage errors as the one line that every error gets."""

    def error(self, message: str) -> NoReturn:
        print(f"hydrant: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def _keep(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--keep is {cut(text)}; expected a number of heads, a share such as 0.66, or a JSON list"
        ) from error


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise InputError(f"folder {path.parent} does not exist; create it, or choose another output")


def _show(options: argparse.Namespace, facts: Any, text: str) -> None:
    from .prediction_io import print_json

    if options.json:
        print_json(facts)
    else:
        print(text, flush=True)


def _fail(message: str, verbose: bool) -> int:
    if verbose:
        logging.getLogger("hydrant").exception("traceback")
    print(f"hydrant: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _quiet_libraries() -> None:
    """Libraries report through our own messages; their bars and advice stay off the terminal."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


if __name__ == "__main__":
    sys.exit(main())
