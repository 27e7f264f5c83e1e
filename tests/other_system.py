"""Another system, simulated in this process: what only Linux has is missing, on Windows also what only Unix has.

A program names the libraries to import before, which have code of their own for each system:

    python tests/other_system.py win32 numpy,onnxruntime predict BUNDLE "a text"
"""

import asyncio
import builtins
import importlib
import io
import os
import signal
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ABSENT = ("fcntl", "grp", "pwd", "resource", "termios", "uvloop")
"""Modules that Windows has not."""

LINUX: dict[Any, str] = {
    os: "copy_file_range eventfd memfd_create pidfd_open posix_fallocate sched_getaffinity sched_setaffinity splice"
}
UNIX: dict[Any, str] = {
    asyncio.SelectorEventLoop: "add_signal_handler remove_signal_handler",
    os: "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK chown fchmod fork forkpty getgid getloadavg getuid killpg mkfifo "
    "register_at_fork setsid sysconf statvfs uname wait",
    signal: "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 alarm pause pthread_sigmask setitimer sigwait",
    socket: "SO_REUSEPORT",
}


def hide(system: str) -> None:
    """Become ``darwin`` or ``win32``, as far as hydrant could notice."""
    for module, names in [*LINUX.items(), *(UNIX.items() if system == "win32" else ())]:
        for name in names.split():
            if name in vars(module):
                delattr(module, name)
    for name in ABSENT if system == "win32" else ():
        sys.modules[name] = None  # type: ignore[assignment]
    for module in (builtins, io, os):
        module.open = without_proc(module.open, system == "win32")  # type: ignore[attr-defined]
    from hydrant.bundle import staging
    from hydrant.evaluation import peak_memory

    for part in (staging, peak_memory):
        part.sys = SimpleNamespace(**{**vars(sys), "platform": system})  # type: ignore[attr-defined]


def without_proc(opened: Any, files_only: bool) -> Any:
    """A function that opens files, but none below ``/proc`` and, with ``files_only``, no folders."""

    def other(path: Any, *rest: Any, **named: Any) -> Any:
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", path)
        if files_only and "dir_fd" not in named and Path(path).is_dir():  # rmtree opens folders so, on Linux alone
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *rest, **named)

    return other


if __name__ == "__main__":
    _, system, libraries, *words = sys.argv
    for library in libraries.split(","):
        importlib.import_module(library)
    hide(system)
    from hydrant.cli.main import main

    sys.exit(main(words))
