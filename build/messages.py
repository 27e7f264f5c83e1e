"""The builder's messages: kept whole for the log file, and shown once each from warnings up."""

from __future__ import annotations

from ..engines.log import without_place

_NO_DRIVER = "catchCudaError"
"""Said at every turn on a machine without a GPU, where it is harmless."""


class Messages:
    """(severity, text) of everything the library said, in order."""

    def __init__(self, gpu: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self._gpu = gpu

    def add(self, severity: str, text: str) -> None:
        """Keep a message."""
        self.lines.append((severity, text))

    def at(self, *severities: str) -> list[str]:
        """Messages of these severities, each once, without the place in the library's source."""
        kept = [text for severity, text in self.lines if severity in severities]
        shown = [text for text in kept if self._gpu or _NO_DRIVER not in text]
        return list(dict.fromkeys(without_place(text) for text in shown))

    @property
    def warnings(self) -> list[str]:
        """Warnings, each once."""
        return self.at("WARNING")

    @property
    def errors(self) -> list[str]:
        """Errors, each once."""
        return self.at("ERROR", "INTERNAL_ERROR")

    def text(self) -> str:
        """Everything, a line each, as a log file shows it."""
        return "".join(f"[{severity}] {text}\n" for severity, text in self.lines)
