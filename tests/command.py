"""Run ``hydrant`` or a Python program in a process forked from one that has imported the heavy libraries.

The tests run hundreds of commands, and the imports take seconds. The forking process runs nothing itself, so every
command behaves as after a fresh start. Sessions have one thread, as in the tests.
"""

import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from one_thread import use_one_thread

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "torch",
        "transformers.models.auto.modeling_auto",
        "transformers.models.bert.modeling_bert",
        "transformers.models.vit.modeling_vit",
        *(
            f"hydrant.cli.{name}"
            for name in ("main", "plan", "fuse", "tune", "export", "evaluate", "predict", "inspect")
        ),
        "hydrant.fusion",
        # imports of the commands
        "matplotlib.backends.backend_agg",
        "matplotlib.figure",
        "onnx",
        "onnxruntime",
        "openvino",
        "polygraphy.comparator",
        "sklearn.metrics",
    ]
)


def run(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | Path,
    given: str,
    timeout: float,
    program: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run one command in a folder, or the source code ``program`` instead of ``hydrant``."""
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(given)
        process = start(arguments, environment, cwd, streams, program)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        assert process.exitcode is not None
        out, err = (path.read_bytes().decode(errors="surrogateescape") for path in streams[1:])
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out, err)


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    cwd: str | Path,
    streams: Sequence[Path],
    program: str | None = None,
) -> ForkServerProcess:
    """Start a command without waiting; ``streams`` are the files of its input, output and errors."""
    values = (list(arguments), dict(environment), str(cwd), list(streams), program)
    process = CONTEXT.Process(target=_command, args=values)
    process.start()
    return process


def _command(
    arguments: list[str], environment: dict[str, str], cwd: str, streams: list[Path], program: str | None
) -> None:
    """In the forked process: set streams, environment and folder, then run the command or the program."""
    for descriptor, (path, flags) in enumerate(
        zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin = io.TextIOWrapper(open(0, "rb", closefd=False))  # noqa: SIM115 - open until the process ends
    sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False), encoding="utf-8")  # noqa: SIM115
    sys.stderr = io.TextIOWrapper(open(2, "wb", 0, closefd=False), encoding="utf-8", write_through=True)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    use_one_thread()
    sys.argv = ["hydrant" if program is None else "-c", *arguments]
    if program is not None:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
        return
    from hydrant.cli.main import main

    sys.exit(main())
