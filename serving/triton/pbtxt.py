"""Messages → protocol-buffer text, the form of Triton's ``config.pbtxt``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""Field → text, number, flag, :class:`Word`, another message, or a list of these, which is a repeated field."""


class Word(str):
    """A name of an enumeration, which stands without quotes, such as ``TYPE_FP32``."""

    __slots__ = ()


def to_pbtxt(message: Message) -> str:
    """A message as text: one field a line, messages indented by two spaces, lists of numbers in brackets.

    >>> print(to_pbtxt({"name": "a", "input": [{"dims": [-1]}], "kind": Word("KIND_CPU"), "all": {}}), end="")
    name: "a"
    input {
      dims: [ -1 ]
    }
    kind: KIND_CPU
    all {
    }
    """
    return "".join(f"{line}\n" for line in _lines(message, ""))


def entries(values: Mapping[str, Any]) -> list[Message]:
    """A map as protocol buffers write it: a list of keys with their values."""
    return [{"key": key, "value": value} for key, value in values.items()]


def _lines(message: Message, margin: str) -> Iterator[str]:
    for name, value in message.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            if any(isinstance(item, Mapping) for item in value):
                for item in value:
                    yield from _block(name, item, margin)
            else:
                yield f"{margin}{name}: [ {', '.join(map(_plain, value))} ]" if value else f"{margin}{name}: [ ]"
        elif isinstance(value, Mapping):
            yield from _block(name, value, margin)
        else:
            yield f"{margin}{name}: {_plain(value)}"


def _block(name: str, message: Message, margin: str) -> Iterator[str]:
    yield f"{margin}{name} {{"
    yield from _lines(message, f"{margin}  ")
    yield f"{margin}}}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Word | int | float):
        return str(value)
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    """A character inside quotes; what is no plain ASCII as the octal numbers of its UTF-8 bytes."""
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else "".join(f"\\{byte:03o}" for byte in character.encode())
