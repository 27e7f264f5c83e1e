"""Class prompts: the texts that describe each class of a zero-shot classifier."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bundle.staging import telling
from ..errors import InputError, cut, listing

TEMPLATES = ("a photo of a {}.",)  # Radford et al. 2021

FORMS = (
    'names separated by commas, a .txt file with one name a line, or JSON in a .json file: ["cat", "dog"], '
    '{"classes": ["cat", "dog"], "templates": ["a photo of a {}."]} or {"cat": "a cat", "dog": ["a dog", "a puppy"]}'
)


@dataclass(frozen=True)
class Prompts:
    """Texts for each class, built from templates, or taken unchanged without templates."""

    classes: tuple[str, ...]
    templates: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """JSON for :func:`read_prompts`: classes and templates, or class → texts."""
        if self.templates:
            return {"classes": list(self.classes), "templates": list(self.templates)}
        pairs = zip(self.classes, self.texts, strict=True)
        return {name: list(texts) if len(texts) > 1 else texts[0] for name, texts in pairs}


def read_prompts(classes: Any, templates: str | Sequence[str] | None = None) -> Prompts:
    """Class names and their prompts."""
    if isinstance(classes, Prompts) and templates is None:
        return classes
    source = classes.to_json() if isinstance(classes, Prompts) else classes
    where = "classes"
    if isinstance(source, str | Path):
        is_file = isinstance(source, Path) or source.endswith((".json", ".txt"))
        where = f"classes {source}" if is_file else where
        source = _from_file(Path(source)) if is_file else str(source).split(",")
    if isinstance(source, Mapping) and isinstance(source.get("classes"), list):
        if unknown := sorted(set(source) - {"classes", "templates"}):
            raise InputError(f"{where} have {listing(unknown, 3)} beside classes and templates; remove them")
        if "templates" in source and templates is not None:
            raise InputError(f"{where} contain templates, and templates were passed too; drop one of them")
        source, templates = source["classes"], source.get("templates", templates)
    if isinstance(source, Mapping):
        if templates is not None:
            raise InputError(f"{where} contain a prompt for each class; drop the templates")
        texts = [_texts(f"{where}: {name}", given) for name, given in source.items()]
        return _checked(where, _names(where, list(source)), (), texts)
    if not isinstance(source, list | tuple):
        raise InputError(f"{where} are a {type(source).__name__}; expected {FORMS}")
    names, chosen = _names(where, source), _texts("templates", TEMPLATES if templates is None else templates)
    if lacking := [template for template in chosen if "{}" not in template]:
        raise InputError(f"template {cut(lacking[0])} has no {{}} for the class name; expected one as {TEMPLATES[0]!r}")
    return _checked(where, names, chosen, [tuple(form.replace("{}", name) for form in chosen) for name in names])


def _from_file(path: Path) -> Any:
    try:
        with telling(f"cannot read classes {path}", f"; expected {FORMS}"):
            text = path.read_text(encoding="utf-8-sig")
        if path.suffix.lower() != ".json":
            return [line for line in text.splitlines() if line.strip()]
        return json.loads(text, object_pairs_hook=_unrepeated)
    except (ValueError, RecursionError) as error:  # neither UTF-8 nor JSON
        raise InputError(f"classes {path} cannot be used ({error}); expected {FORMS}") from error


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; Python's reader would silently keep the last of equal keys."""
    if repeated := _repeated([name for name, _ in pairs]):
        raise ValueError(f"{listing(repeated, 3)} occurs twice in one object")
    return dict(pairs)


def _names(where: str, names: Sequence[Any]) -> tuple[str, ...]:
    for name in names:
        if not _is_text(name) or any(letter < " " or letter == "\x7f" for letter in name.strip()):
            raise InputError(f"{where} hold {cut(name)}; expected names: non-empty text on one line")
    stripped = tuple(name.strip() for name in names)
    if repeated := _repeated(stripped):
        raise InputError(f"{where} name {listing(repeated, 3)} more than once; expected each class once")
    if len(stripped) < 2:
        raise InputError(f"{where} name {len(stripped)} class; expected 2 or more: {FORMS}")
    return stripped


def _repeated(names: Sequence[str]) -> list[str]:
    """Names that occur more than once."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _is_text(value: Any) -> bool:
    """Return True if a value is non-empty text that UTF-8 can encode; JSON may escape half a surrogate pair."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)


def _texts(where: str, texts: Any) -> tuple[str, ...]:
    """One text or more."""
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, list | tuple) or not listed or not all(map(_is_text, listed)):
        raise InputError(f"{where} are {cut(texts)}; expected one text or more, such as {TEMPLATES[0]!r}")
    return tuple(listed)


def _checked(
    where: str, names: tuple[str, ...], templates: tuple[str, ...], texts: Sequence[tuple[str, ...]]
) -> Prompts:
    """Reject equal prompts of two classes."""
    seen: dict[frozenset[str], str] = {}
    for name, own in zip(names, texts, strict=True):
        other = seen.setdefault(frozenset(own), name)
        if other != name:
            raise InputError(f"{where} give {cut(other)} and {cut(name)} the same prompts; expected different ones")
    return Prompts(names, templates, tuple(texts))
