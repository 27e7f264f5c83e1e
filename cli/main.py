"""Command line; exit status 0 on success, 1 if a check failed, 2 for unusable input or usage, 130 after Ctrl-C."""

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
    "make": "turn a fine-tuned classifier and data into a bundle that is ready to deploy",
    "predict": "predict labels, confidence and uncertainty",
    "evaluate": "measure accuracy, calibration and OOD detection on labelled test data",
    "serve": "serve a bundle over HTTP and gRPC",
    "drift": "check whether logged predictions have drifted from the calibration data",
    "inspect": "show a bundle's contents and check its files",
    "plan": "choose the attention heads that each member keeps",
    "fuse": "build an ensemble bundle from a checkpoint and a head plan",
    "tune": "train a bundle's members on labelled data",
    "export": "write the ONNX graph of a bundle",
    "calibrate": "fit temperature, distance and thresholds on held-out data",
    "verify": "compare the outputs of every backend with PyTorch",
    "profile": "measure latency and memory, compared with one model and a Deep Ensemble",
    "build": "compile an ONNX graph into a TensorRT or TensorRT-RTX engine",
    "triton": "write a Triton model repository",
    "merge": "join the parts that `hydrant predict --shard` wrote",
    "sign": "sign a bundle with a private key",
    "push": "share a bundle on the Hugging Face Hub",
    "demo": "run every stage on a small built-in data set",
}
"""Every subcommand and its summary.

In the module of the same name, ``arguments`` defines the options, and ``run`` does the work, prints the result and
returns the exit status; ``EXAMPLE`` is shown by ``--help``.
"""

FIRST = ("make", "predict", "evaluate", "serve", "drift", "inspect")  # commands that most users need first
SAME = {"--data": "--input", "--input": "--data"}
"""Options with the same meaning in different commands: labelled examples, and unlabelled inputs."""


def _overview() -> str:
    lines = {name: f"  {name:<11}{summary}" for name, summary in COMMANDS.items()}
    first, more = ([lines[name] for name in lines if (name in FIRST) is wanted] for wanted in (True, False))
    help_of = "`hydrant COMMAND --help` shows a command's options and an example."
    return "\n".join(["commands:", *first, "", "more commands:", *more, "", help_of])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; inputs of ``predict`` may follow its options."""
    parser = Parser(
        prog="hydrant", usage="hydrant COMMAND [options]", epilog=_overview(),
        description="Turn a transformer classifier into an uncertainty-aware ensemble in one ONNX graph.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"hydrant {__version__}")
    shown: dict[str, Any] = {"prog": "hydrant", "metavar": "COMMAND", "help": argparse.SUPPRESS}
    commands = parser.add_subparsers(**shown, required=True, parser_class=_Subparser)
    for name, summary in COMMANDS.items():
        commands.add_parser(name, description=f"{summary[0].upper()}{summary[1:]}.", command=name)
    words = current(sys.argv[1:] if arguments is None else arguments)
    if not words:
        parser.print_help(sys.stderr)
        raise SystemExit(2)
    options, rest = parser.parse_known_args(words)
    chosen = options.__dict__.pop("parser")
    if rest and (options.command != "predict" or any(item.startswith("-") for item in rest)):
        chosen.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.inputs = [*options.inputs, *rest]
    return options


class Parser(argparse.ArgumentParser):
    """Argument parser that reports usage errors in one line."""

    words: Sequence[str] = ()
    """Words of the command line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``argparse`` does, and remember the words."""
        self.words = args
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print the message with a correction of a misspelt word, and exit."""
        print(f"hydrant: error: {message}{self._correction()}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(2)

    def _correction(self) -> str:
        from difflib import get_close_matches  # only needed for errors

        options = [name for name in self._option_string_actions if name.startswith("--")]
        flags = [word.partition("=")[0] for word in takewhile("--".__ne__, self.words) if word.startswith("--")]
        wrong = [(flag, options) for flag in flags if not any(name.startswith(flag) for name in options)]
        other = [(flag, SAME[flag]) for flag, _ in wrong if SAME.get(flag) in options]
        if self._subparsers and self.words:
            wrong.append((self.words[0], list(COMMANDS)))
        near = [(word, close) for word, names in wrong for close in get_close_matches(word, names, 1) if close != word]
        return "".join(f" (did you mean {close} instead of {word}?)" for word, close in [*other, *near][:1])

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own ignores errors


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with a short usage: required arguments only."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:  # noqa: ARG002
        rest = argparse.Action([], "options", metavar="[options]")
        super().add_usage(usage, [*(each for each in actions if each.required), rest], (), prefix)


class _Subparser(Parser):
    """Parser of a subcommand, filled from its module when it is chosen."""

    def __init__(self, *, command: str, **settings: Any) -> None:
        super().__init__(**settings, add_help=False, formatter_class=_HelpFormatter)
        self.set_defaults(command=command)
        self._command = command

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        from .command_options import Command
        from .shared import general

        module = import_module(f".{self._command}", __package__)
        self.set_defaults(run=module.run, parser=self)
        command = Command(self)
        module.arguments(command)
        self.epilog = "\n\n".join([*command.notes, f"example: {module.EXAMPLE}"])
        general(command)
        return super().parse_known_args(args, namespace)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    verbose, options = False, argparse.Namespace()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # PyTorch's waiting threads would spin: slow beside other load
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
        discard_output()
        return 0
    except Exception as error:  # any error of a library becomes one line
        return _fail(_unexpected(error), verbose)


def as_typed(message: str, options: argparse.Namespace) -> str:
    """Spell option names as they are typed, except in quotes, paths and assignments."""
    taken = getattr(options, "taken", {})  # see cli.command_options.Command
    flags = {name: action.option_strings for (_, name), action in taken.items() if "_" in name}
    names = "|".join(name for name in flags if flags[name])
    if not names:
        return message
    alone = rf"(?<![\w'\"`./=-])({names})(?![\w'\"`./=(-])"
    return re.sub(alone, lambda match: str(flags[match[0]][-1]), message)


def _unexpected(error: Exception) -> str:
    missing = missing_extra(error) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None:
        return str(missing)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or f"(os error {errno.ENOSPC})" in str(error):  # the latter is from Rust
        return f"the disk is full ({cut(error, 200)}); free space for the output and for temporary files (TMPDIR)"
    cause: BaseException | None = error
    while cause is not None:
        if "No usable temporary directory" in str(cause):
            text = "no writable folder for temporary files"
            return f"{text}; set TMPDIR to one (in a container with a read-only file system: mount a tmpfs at /tmp)"
        cause = cause.__cause__ or cause.__context__
    return f"unexpected {type(error).__name__}: {cut(error, 200)}; run again with -v for details, and please report it"


def _prepare(verbose: bool) -> None:
    """Configure logging, streams and signals of the process."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("hydrant: %(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
    if sys.stderr is None or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # without "│" or "Δ" shows "?"
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
