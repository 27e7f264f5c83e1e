"""Options of the command line, each written once.

An option is a parameter of a verb or a field of an option type: its name, type, default and choices come from the
signature, its help from the first sentence that the docstring says of it. What only the command line has (short flags,
metavars, ways to read a word) stands in the subcommand's file.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import InputError, cut
from .argument_types import count
from .terminal import progress

Target = Callable[..., Any]
"""A verb, or an option type."""

READERS: dict[Any, Callable[[str], Any]] = {Path: Path, int: count, float: float}


class Command:
    """The options of one subcommand.

    Args:
        parser: gets them.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._place: Any = parser
        self._taken: dict[tuple[Target, str], argparse.Action] = {}
        parser.set_defaults(taken=self._taken)

    def heading(self, title: str) -> None:
        """Put what follows under a heading of its own."""
        self._place = self._parser.add_argument_group(title)

    def add(self, *flags: str, **settings: Any) -> None:
        """An option that only the command line has, as of ``argparse``."""
        self._place.add_argument(*flags, **settings)

    def take(self, target: Target | tuple[Target, ...], name: str, *flags: str, **settings: Any) -> None:
        """An option that stands for a parameter of a verb or option type.

        Args:
            target: the verb or type; several for one option that they share.
            name: of the parameter.
            flags: by which it is given, where they are not ``--name``; without a dash, a positional argument.
            settings: what ``argparse`` should know beside the signature; ``also``: words to put behind the help.
        """
        targets = target if isinstance(target, tuple) else (target,)
        known = _settings(targets, name, flags, settings.pop("also", ""))
        action = self._place.add_argument(*(flags or [_flag(name)]), **{**known, **settings})
        self._taken |= {(one, name): action for one in targets}

    @contextmanager
    def one_of(self) -> Iterator[None]:
        """Options that exclude each other."""
        outer, self._place = self._place, self._place.add_mutually_exclusive_group()
        yield
        self._place = outer


def call(target: Target, options: argparse.Namespace, **given: Any) -> Any:
    """Call a verb or make an option type from what the user gave; what was not given keeps its default.

    Args:
        target: what to call.
        options: as parsed.
        given: arguments that the command line made itself.
    """
    shared = {"seed": options.seed, "progress": progress}
    names = inspect.signature(target).parameters
    return target(**{name: shared[name] for name in shared if name in names} | _found(target, options) | given)


def value(target: Target, name: str, options: argparse.Namespace) -> Any:
    """What the user gave for a parameter, or its default."""
    return _found(target, options).get(name, inspect.signature(target).parameters[name].default)


def choose(
    flag: str, kinds: Mapping[Any, Target], chosen: Sequence[str], options: argparse.Namespace, **given: Any
) -> list[Any]:
    """Make one or more of several option types, and refuse options that only the others have."""
    for word in chosen:
        if word not in kinds:
            raise InputError(f"{flag} {cut(word)} is unknown; expected one of {', '.join(kinds)}")
    for word, kind in kinds.items():
        for (target, name), action in options.taken.items():
            useful = any((kinds[one], name) in options.taken for one in chosen)
            if target is kind and not useful and hasattr(options, action.dest):
                raise InputError(
                    f"{action.option_strings[-1]} is given for {flag} {','.join(chosen)}, which has no use for it; "
                    f"leave it out, or use {flag} {word}"
                )
    return [
        call(
            kind,
            options,
            **{name: value for name, value in given.items() if name in inspect.signature(kind).parameters},
        )
        for kind in (kinds[word] for word in chosen)
    ]


def described(target: Target) -> dict[str, str]:
    """What docstrings say of each parameter or field, in words; of a type also what its bases say.

    >>> described(described)
    {'target': 'the function or type.'}
    """
    found: dict[str, str] = {}
    for part in reversed(inspect.getmro(target)) if inspect.isclass(target) else [target]:
        text = re.split(r"^(?:Args|Attributes):\n", inspect.cleandoc(part.__doc__ or ""), maxsplit=1, flags=re.M)[-1]
        section = re.split(r"^\S", text, maxsplit=1, flags=re.M)[0]
        for names, words in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", section, flags=re.M):
            found |= dict.fromkeys(names.split(", "), re.sub(r"\s+", " ", words))
    return found


def _found(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    return {
        name: getattr(options, action.dest)
        for (owner, name), action in options.taken.items()
        if owner is target and hasattr(options, action.dest)
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _settings(targets: Sequence[Target], name: str, flags: Sequence[str], also: str) -> dict[str, Any]:
    """What ``argparse`` should know: what is read, whether it must be given, and the help."""
    parameters = [inspect.signature(target).parameters[name] for target in targets]
    default = parameters[0].default
    settings: dict[str, Any] = {"help": _help(targets, name, also), "default": argparse.SUPPRESS}
    kinds = _kinds(get_type_hints(targets[0])[name])
    choices = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if bool in kinds:
        return {**settings, "action": "store_false" if default else "store_true"}
    if any(get_origin(kind) in (Sequence, Collection) for kind in kinds):
        settings["action"] = "append"
    if choices:
        settings["choices"] = choices
    else:
        settings["type"] = next((READERS[kind] for kind in kinds if kind in READERS), str)
    if inspect.isfunction(targets[0]) and default is inspect.Parameter.empty and "-" in (flags or "-")[0]:
        settings["required"] = True  # but for positional arguments, which argparse asks for by itself
    return settings


def _kinds(hint: Any) -> Sequence[Any]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _help(targets: Sequence[Target], name: str, also: str) -> str:
    """The first sentence about a parameter, capitalised, with its default."""
    sentence = re.split(r"\.(?: |$)", described(targets[0])[name].replace("``", ""), maxsplit=1)[0] + also
    defaults = {target.__name__: inspect.signature(target).parameters[name].default for target in targets}
    shown = {of: word for of, word in defaults.items() if isinstance(word, str | int | float) and word is not False}
    if shown and "default" not in sentence and not any(word is True for word in shown.values()):
        alike = len(set(shown.values())) == 1
        words = [str(word) if alike else f"{word} for {of}" for of, word in shown.items()]
        sentence += f" (default: {words[0] if alike else ', '.join(words)})"
    return (sentence[0].upper() + sentence[1:]).replace("%", "%%")
