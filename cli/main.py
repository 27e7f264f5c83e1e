"""The command line: one thin subcommand per stage.

Exit status: 0 on success, 1 when a check failed, 2 for unusable input or usage, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from ..errors import GateError, HydrantError, cut, missing_extra
from ..version import __version__
from .renamed import current
from .terminal import PlainFormatter, discard_output, log, open_streams, plain, standard_output

COMMANDS = {
    "make": "make a bundle that is ready to ship, from a checkpoint and data",
    "plan": "choose the attention heads that each member keeps",
    "fuse": "prune and fuse the members into a bundle",
    "tune": "fine-tune the fused members on labelled data",
    "export": "write the bundle's ONNX graph",
    "build": "compile a graph into a TensorRT or TensorRT-RTX engine",
    "verify": "compare the backends with the PyTorch reference",
    "profile": "measure latency and memory, beside the single model and a Deep Ensemble",
    "calibrate": "fit temperature and thresholds on labelled data",
    "evaluate": "measure quality and uncertainty on labelled data, with a report",
    "predict": "predict labels and uncertainties",
    "drift": "tell whether logged predictions still look as calibration data did",
    "merge": "put the parts of a prediction of several machines together",
    "serve": "answer requests over HTTP, with every uncertainty",
    "triton": "write a Triton model repository",
    "inspect": "show what is in a bundle",
    "sign": "sign a bundle, so that whoever trusts the key knows it for yours",
    "demo": "run everything end to end on embedded data",
}
"""Every subcommand, in a line. What it takes and does is in the file of its name."""

SAME = {"--data": "--input", "--input": "--data"}
"""Options that mean the same to different commands: examples with labels, and inputs without."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; inputs of ``predict`` may also stand behind its options."""
    parser = Parser(
        prog="hydrant", description="One transformer classifier as an uncertainty-aware ensemble in one graph."
    )
    parser.add_argument("--version", action="version", version=f"hydrant {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Subparser)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", command=name)
    options, rest = parser.parse_known_args(current(sys.argv[1:] if arguments is None else arguments))
    chosen = options.__dict__.pop("parser")
    if rest and (options.command != "predict" or any(item.startswith("-") for item in rest)):
        chosen.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.inputs = [*options.inputs, *rest]
    return options


class Parser(argparse.ArgumentParser):
    """Usage errors as the one line that every error gets."""

    given: Sequence[str] = ()
    """The words that are parsed."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it."""
        self.given = args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Say it, and what a misspelt word may have been meant as, and leave."""
        print(f"hydrant: error: {message}{self._meant()}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)

    def _meant(self) -> str:
        from difflib import get_close_matches  # not needed where all is well

        options = [name for name in self._option_string_actions if name.startswith("--")]
        before = takewhile("--".__ne__, self.given)  # what follows it is no option
        flags = [word.partition("=")[0] for word in before if word.startswith("--")]
        wrong = [(flag, options) for flag in flags if not any(name.startswith(flag) for name in options)]
        other = [(flag, SAME[flag]) for flag, _ in wrong if SAME.get(flag) in options]
        if self._subparsers and self.given:
            wrong.append((self.given[0], list(COMMANDS)))
        near = [(word, close) for word, known in wrong for close in get_close_matches(word, known, 1) if close != word]
        return "".join(f" (did you mean {close} instead of {word}?)" for word, close in [*other, *near][:1])

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own says nothing when it cannot write


class _Subparser(Parser):
    """The parser of a subcommand, filled from its file when it is chosen."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(**settings, add_help=False, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.set_defaults(command=command)
        self._command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        from .command_options import Command
        from .shared import general

        module = import_module(f".{self._command}", __package__)
        self.set_defaults(run=module.run, parser=self)
        self.epilog = f"example: {module.EXAMPLE}"
        command = Command(self)
        module.arguments(command)
        general(command)
        return super().parse_known_args(args, namespace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    verbose, options = False, argparse.Namespace()
    open_streams()
    try:
        with standard_output():
            options = parse(arguments)
        verbose = options.verbose
        _prepare(verbose)
        return int(options.run(options))
    except GateError as error:
        _fail(str(error), verbose)
        return 1
    except HydrantError as error:
        return _fail(as_typed(str(error), options), verbose)
    except KeyboardInterrupt:
        print("hydrant: interrupted; nothing was left half-written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        discard_output()  # the reader left; so do we
        return 0
    except Exception as error:  # whatever a library raises, the user gets one line
        return _fail(_told(error), verbose)


def as_typed(message: str, options: argparse.Namespace) -> str:
    """A message with its options as they are typed, but for those in quotes, paths and assignments."""
    taken = getattr(options, "taken", {})  # of cli.command_options.Command
    flags = {name: action.option_strings for (_, name), action in taken.items() if "_" in name}
    names = "|".join(name for name in flags if flags[name])
    if not names:
        return message
    alone = rf"(?<![\w'\"`./=-])({names})(?![\w'\"`./=(-])"
    return re.sub(alone, lambda found: str(flags[found[0]][-1]), message)


def _told(error: Exception) -> str:
    """What a library raised, in words."""
    missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None:
        return str(missing)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or f"(os error {errno.ENOSPC})" in str(error):  # so libraries in Rust say
        return f"the disk is full ({cut(error, 200)}); free space for the output, and for temporary files (TMPDIR)"
    cause: BaseException | None = error
    while cause is not None:
        if "No usable temporary directory" in str(cause):
            return (
                "there is no folder for temporary files that can be written; give one in TMPDIR (in a container with a "
                "read-only file system: mount a tmpfs at /tmp)"
            )
        cause = cause.__cause__ or cause.__context__
    return f"unexpected {type(error).__name__}: {cut(error, 200)}; run again with -v for details, and report it"


def _prepare(verbose: bool) -> None:
    """The process as a command runs in it: what is logged, how streams write, what SIGTERM does."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("hydrant: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    for name in ("HF_DATASETS_DISABLE_PROGRESS_BARS", "HF_HUB_DISABLE_PROGRESS_BARS"):
        os.environ.setdefault(name, "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "│" or "Δ" shows "?" instead of failing
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # ignored under nohup
            signal.signal(signal.SIGHUP, _interrupt)


def _fail(message: str, verbose: bool) -> int:
    if verbose:
        log.exception("traceback")
    print(f"hydrant: error: {plain(' '.join(message.split()))}", file=sys.stderr)
    return 2


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
