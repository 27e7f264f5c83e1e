"""Command-line options, generated from the signatures and docstrings of verbs and option types."""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import LARGEST, InputError, check_choice
from .terminal import progress

Target = Callable[..., Any]


def parts(text: str) -> list[str]:
    """``a,b`` → ``["a", "b"]``."""
    return [part for part in text.split(",") if part]


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    if (number := count(text, 1)) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST}")
    return number


def count(text: str, least: int = 0) -> int:
    """A whole number of 0 or more."""
    number = int(text) if text.isascii() and text.isdigit() else -1
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return number


def numbers(text: str) -> list[int]:
    """``1,8`` → ``[1, 8]``, whole numbers of 1 or more."""
    return [positive(part.strip()) for part in text.split(",")]


def share(text: str) -> float:
    """A number above 0 and below 1."""
    return _number(text, lambda number: 0 < number < 1, "above 0 and below 1")


def seconds(text: str) -> float:
    """A number of 0 or more."""
    return _number(text, lambda number: 0 <= number < math.inf, "of seconds, 0 or more")


def _number(text: str, fits: Callable[[float], bool], which: str) -> float:
    with suppress(ValueError):
        if fits(number := float(text)):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not a number {which}")


READERS: dict[Any, Callable[[str], Any]] = {Path: Path, int: count, float: float}
METAVARS: dict[Any, str] = {Path: "FILE", Any: "FILE", int: "N"}  # of data in a file, or in Python any object


class Command:
    """Options of one subcommand, in three groups."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._groups = {title: parser.add_argument_group(title) for title in ("required", "common", "advanced")}
        self._place: Any = self._groups["required"]
        self.notes: list[str] = []  # printed under the options
        self._taken: dict[tuple[Target, str], argparse.Action] = {}
        parser.set_defaults(taken=self._taken)

    def heading(self, title: Literal["required", "common", "advanced"]) -> None:
        """Add the following options to this group."""
        self._place = self._groups[title]

    def add(self, *flags: str, **settings: Any) -> None:
        """Add an ``argparse`` option that only the command line has."""
        self._place.add_argument(*flags, **settings)

    def take(self, target: Target | tuple[Target, ...], name: str, *flags: str, **settings: Any) -> None:
        """Add an option for a parameter of one or more targets; ``also`` in the settings is appended to the help."""
        targets = target if isinstance(target, tuple) else (target,)
        defaults = _settings(targets, name, flags, settings.pop("also", ""))
        action = self._place.add_argument(*(flags or [f"--{name.replace('_', '-')}"]), **{**defaults, **settings})
        self._taken |= {(one, name): action for one in targets}

    def take_all(self, target: Target, *names: str, **settings: Any) -> None:
        """Add an option for each of several parameters."""
        for name in names:
            self.take(target, name, **settings)

    @contextmanager
    def one_of(self) -> Iterator[None]:
        """Make the options added inside exclude each other."""
        outer, self._place = self._place, self._place.add_mutually_exclusive_group()
        yield
        self._place = outer


def call(target: Target, options: argparse.Namespace, **arguments: Any) -> Any:
    """Call a verb or option type with the user's options and with further arguments."""
    shared = {"seed": options.seed, "progress": progress}
    names = inspect.signature(target).parameters
    return target(**{name: shared[name] for name in shared if name in names} | _options_of(target, options) | arguments)


def value(target: Target, name: str, options: argparse.Namespace) -> Any:
    """Return the user's value of a parameter, or its default."""
    return _options_of(target, options).get(name, inspect.signature(target).parameters[name].default)


def choose(
    flag: str, kinds: Mapping[Any, Target], chosen: Sequence[str], options: argparse.Namespace, **arguments: Any
) -> list[Any]:
    """Create one or more of several option types, and reject options that only the others have."""
    for word in chosen:
        check_choice(flag, word, kinds)
    for word, kind in kinds.items():
        for (target, name), action in options.taken.items():
            useful = any((kinds[one], name) in options.taken for one in chosen)
            if target is kind and not useful and hasattr(options, action.dest):
                option, method = action.option_strings[-1], ",".join(chosen)
                raise InputError(f"{option} does not apply to {flag} {method}; omit it, or use {flag} {word}")
    taken = [(kinds[word], inspect.signature(kinds[word]).parameters.keys() & arguments.keys()) for word in chosen]
    return [call(kind, options, **{name: arguments[name] for name in names}) for kind, names in taken]


def described(target: Target) -> dict[str, str]:
    """Return the docstring of each parameter or field, including those of base classes."""
    descriptions: dict[str, str] = {}
    for part in reversed(inspect.getmro(target)) if inspect.isclass(target) else [target]:
        text = re.split(r"^(?:Args|Attributes):\n", inspect.cleandoc(part.__doc__ or ""), maxsplit=1, flags=re.M)[-1]
        section = re.split(r"^\S", text, maxsplit=1, flags=re.M)[0]
        for names, words in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", section, flags=re.M):
            descriptions |= dict.fromkeys(names.split(", "), re.sub(r"\s+", " ", words))
    return descriptions


def _options_of(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    given = {name: action.dest for (owner, name), action in options.taken.items() if owner is target}
    return {name: getattr(options, place) for name, place in given.items() if hasattr(options, place)}


def _settings(targets: Sequence[Target], name: str, flags: Sequence[str], also: str) -> dict[str, Any]:
    """Return the ``argparse`` settings: type, choices, required or not, help."""
    parameters = [inspect.signature(target).parameters[name] for target in targets]
    default = parameters[0].default
    settings: dict[str, Any] = {"help": _help(targets, name, also), "default": argparse.SUPPRESS}
    hint = get_type_hints(targets[0])[name]
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if bool in kinds:
        return {**settings, "action": "store_false" if default else "store_true"}
    if any(get_origin(kind) in (Sequence, Collection) for kind in kinds):
        settings["action"] = "append"
    if choices:
        settings["choices"] = choices
    else:
        settings["type"] = next((READERS[kind] for kind in kinds if kind in READERS), str)
        settings["metavar"] = next((METAVARS[kind] for kind in kinds if kind in METAVARS), None)
    if inspect.isfunction(targets[0]) and default is inspect.Parameter.empty and "-" in (flags or "-")[0]:
        settings["required"] = True  # positional arguments are required anyway
    return settings


def _help(targets: Sequence[Target], name: str, also: str) -> str:
    """Return the first sentence about a parameter, capitalised, with its default."""
    sentence = re.split(r"\.(?: |$)", described(targets[0])[name].replace("``", ""), maxsplit=1)[0] + also
    defaults = {target.__name__: inspect.signature(target).parameters[name].default for target in targets}
    shown = {of: word for of, word in defaults.items() if isinstance(word, str | int | float) and word is not False}
    if shown and "default" not in sentence and not any(word is True for word in shown.values()):
        alike = len(set(shown.values())) == 1
        words = [str(word) if alike else f"{word} for {of}" for of, word in shown.items()]
        sentence += f" (default: {words[0] if alike else ', '.join(words)})"
    return (sentence[0].upper() + sentence[1:]).replace("%", "%%")
