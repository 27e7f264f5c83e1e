"""Class prompts: the texts that stand for each class of a zero-shot classifier."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, cut, listing

TEMPLATES = ("a photo of a {}.",)  # Radford et al. 2021

FORMS = (
    'names separated by commas, a .txt file with one name a line, or JSON in a .json file: ["cat", "dog"], '
    '{"classes": ["cat", "dog"], "templates": ["a photo of a {}."]} or {"cat": "a cat", "dog": ["a dog", "a puppy"]}'
)


@dataclass(frozen=True)
class Prompts:
    """What stands for each class: texts, made of templates, or given as they are where there are no templates."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """A form that :func:`read_prompts` reads: classes and templates, or class → texts."""
        if self.templates:
            return {"classes": list(self.classes), "templates": list(self.templates)}
        return {
            name: list(texts) if len(texts) > 1 else texts[0]
            for name, texts in zip(self.classes, self.texts, strict=True)
        }


def read_prompts(classes: Any, templates: str | Sequence[str] | None = None) -> Prompts:
    """Class names and their prompts."""
    if isinstance(classes, Prompts) and templates is None:
        return classes
    found = classes.to_json() if isinstance(classes, Prompts) else classes
    where = "classes"
    if isinstance(found, str | Path):
        is_file = isinstance(found, Path) or found.endswith((".json", ".txt"))
        where = f"classes {found}" if is_file else where
        found = _from_file(Path(found)) if is_file else str(found).split(",")
    if isinstance(found, Mapping) and isinstance(found.get("classes"), list):
        if unknown := sorted(set(found) - {"classes", "templates"}):
            raise InputError(f"{where} have {listing(unknown, 3)} beside classes and templates; expected these alone")
        if "templates" in found and templates is not None:
            raise InputError(f"{where} bring their own templates, and others are given; drop one of them")
        found, templates = found["classes"], found.get("templates", templates)
    if isinstance(found, Mapping):
        if templates is not None:
            raise InputError(f"{where} bring a prompt for each class, and templates are given; drop the templates")
        texts = [_texts(f"{where}: {name}", given) for name, given in found.items()]
        return _checked(where, _names(where, list(found)), (), texts)
    if not isinstance(found, list | tuple):
        raise InputError(f"{where} are a {type(found).__name__}; expected {FORMS}")
    names, chosen = _names(where, found), _texts("templates", TEMPLATES if templates is None else templates)
    if lacking := [template for template in chosen if "{}" not in template]:
        raise InputError(f"template {cut(lacking[0])} has no {{}} for the class name; expected one as {TEMPLATES[0]!r}")
    return _checked(where, names, chosen, [tuple(form.replace("{}", name) for form in chosen) for name in names])


def _from_file(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".json":
            return [line for line in text.splitlines() if line.strip()]
        return json.loads(text, object_pairs_hook=_unrepeated)
    except OSError as error:
        raise InputError(f"cannot read classes {path}: {error.strerror or error}; expected {FORMS}") from error
    except (ValueError, RecursionError) as error:  # no text in UTF-8, or no JSON
        raise InputError(f"classes {path} cannot be used ({error}); expected {FORMS}") from error


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; Python's reader would keep the last of equal keys without a word."""
    if repeated := _repeated([name for name, _ in pairs]):
        raise ValueError(f"{listing(repeated, 3)} occurs twice in one object")
    return dict(pairs)


def _names(where: str, names: Sequence[Any]) -> tuple[str, ...]:
    for name in names:
        if not _is_text(name) or any(letter < " " or letter == "\x7f" for letter in name.strip()):
            raise InputError(f"{where} hold {cut(name)}; expected names, each a line of text that is not empty")
    found = tuple(name.strip() for name in names)
    if repeated := _repeated(found):
        raise InputError(f"{where} name {listing(repeated, 3)} more than once; expected each class once")
    if len(found) < 2:
        raise InputError(f"{where} name {len(found)} class; expected 2 or more: {FORMS}")
    return found


def _repeated(names: Sequence[str]) -> list[str]:
    """Names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _is_text(value: Any) -> bool:
    """Whether a value is text that is not empty and that UTF-8 can hold; JSON may escape half a surrogate pair."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)


def _texts(where: str, texts: Any) -> tuple[str, ...]:
    """One text or more."""
    found = [texts] if isinstance(texts, str) else texts
    if not isinstance(found, list | tuple) or not found or not all(map(_is_text, found)):
        raise InputError(f"{where} are {cut(texts)}; expected one text or more, such as {TEMPLATES[0]!r}")
    return tuple(found)


def _checked(
    where: str, names: tuple[str, ...], templates: tuple[str, ...], texts: Sequence[tuple[str, ...]]
) -> Prompts:
    """Prompts of which no two classes have the same."""
    seen: dict[frozenset[str], str] = {}
    for name, own in zip(names, texts, strict=True):
        other = seen.setdefault(frozenset(own), name)
        if other != name:
            raise InputError(f"{where} give {cut(other)} and {cut(name)} the same prompts; expected different ones")
    return Prompts(names, templates, tuple(texts))
