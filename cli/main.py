"""The command line: one thin subcommand per stage.

Exit status: 0 on success, 1 when a check failed (a verification gate), 2 for unusable input or
usage (one line ``hydrant: error: …``), 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import GateError, HydrantError, cut
from ..version import __version__
from .build import _build_arguments, build
from .calibrate import _calibrate_arguments, calibrate
from .demo import demo
from .evaluate import _evaluate_arguments, evaluate
from .export import _export_arguments, export
from .fuse import _fuse_arguments, fuse
from .inspect import inspect
from .options import _bundle_argument, _count, _positive
from .plan import _plan_arguments, plan
from .predict import _predict_arguments, predict
from .profile import _profile_arguments, profile
from .terminal import log
from .tune import _tune_arguments, tune
from .verify import _verify_arguments, verify

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
    columns.add_argument(
        "--text-pair-column", metavar="NAME", help="column that holds the second text, for a model that reads pairs"
    )

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


class _Parser(argparse.ArgumentParser):
    """Usage errors as the one line that every error gets."""

    def error(self, message: str) -> NoReturn:
        print(f"hydrant: error: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    options = parse(arguments, COMMANDS)
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
    except GateError as error:
        _fail(str(error), options.verbose)
        return 1
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


COMMANDS = {
    "plan": plan,
    "fuse": fuse,
    "tune": tune,
    "export": export,
    "build": build,
    "verify": verify,
    "profile": profile,
    "calibrate": calibrate,
    "evaluate": evaluate,
    "predict": predict,
    "inspect": inspect,
    "demo": demo,
}
"""Every subcommand and the function that runs it."""


def _fail(message: str, verbose: bool) -> int:
    if verbose:
        log.exception("traceback")
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
