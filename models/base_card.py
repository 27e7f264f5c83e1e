"""Hub name, licence and data of a checkpoint, for the card of the bundle that is fused from it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ..bundle.manifest import BaseModel, Repository
from ..data.specs import convert
from ..errors import BundleError, require

CARD, CONFIG = "README.md", "config.json"


def base_facts(models: Sequence[Any]) -> dict[str, Any]:
    """The manifest's ``base`` of transformers classifiers; empty if nothing is known of any."""
    base = [msgspec.to_builtins(_base_model(model.config)) for model in models]
    return {"base": base} if any(base) else {}


def _base_model(config: Any) -> BaseModel:
    """Facts about the checkpoint of a configuration; only one in the hub's cache has a name."""
    source = str(config.name_or_path or "")
    hub, folder, name = require("huggingface_hub", "fuse", "read a checkpoint"), Path(source), None
    if source and not folder.is_dir():
        with suppress(ValueError):  # not a name that the hub allows
            cached = hub.try_to_load_from_cache(source, CONFIG)
            folder, name = (Path(cached).parent, source) if isinstance(cached, str) else (folder, None)
    card: dict[str, Any] = {}
    with suppress(Exception):  # a card is written by hand: any error means that it says nothing
        card = (hub.metadata_load(folder / CARD) or {}) if source else {}
    link = _valid(card.get("license_link"), str)
    if link is not None and "://" not in link:  # a file of the checkpoint's repository
        link = f"https://huggingface.co/{name}/blob/{folder.name}/{link}" if name else None
    facts = {kind: _valid(card.get(kind), str) for kind in ("license", "license_name")}
    facts |= {"datasets": _listed(card.get("datasets"), Repository), "language": _listed(card.get("language"), str)}
    return BaseModel(name=name, revision=folder.name if name else None, license_link=link, **facts)


def _valid(value: Any, kind: Any) -> Any:
    """The value if it has this type, else ``None``."""
    with suppress(BundleError):
        return convert(value, kind, CARD)
    return None


def _listed(values: Any, kind: Any) -> list[Any]:
    """The valid entries of one value or a list."""
    return [each for each in (values if isinstance(values, list) else [values]) if _valid(each, kind) is not None]
