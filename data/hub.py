"""Data sets of the hub, named ``hf:NAME:CONFIG:SPLIT``, through ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, cut, listing, require
from .columns import Columns
from .readers import Row, rows_of_table

PREFIX = "hf:"

FORM = "hf:NAME, hf:NAME:CONFIG, hf:NAME:CONFIG:SPLIT or hf:NAME::SPLIT"


@dataclass(frozen=True)
class HubName:
    """A data set of the hub.

    Attributes:
        name: as on the hub, or a local folder that ``datasets`` reads.
        config: one of its configurations; ``None`` for the only one.
        split: one of its splits; ``None`` for the only one.
    """

    name: str
    config: str | None = None
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubName:
        """From what the user wrote.

        >>> HubName.parse("hf:clinc_oos:plus:test")
        HubName(name='clinc_oos', config='plus', split='test')
        """
        name, *rest = text.removeprefix(PREFIX).split(":")
        if not name or len(rest) > 2:
            raise InputError(f"data {cut(text)} names no data set of the hub; expected {FORM}")
        config, split = (*rest, "", "")[:2]
        return cls(name, config or None, split or None)


def hub_rows(text: str, columns: Columns) -> Iterator[Row]:
    """Rows of a data set of the hub; it is downloaded once, and read from the cache of ``datasets`` afterwards."""
    wanted = HubName.parse(text)
    datasets = require("datasets", "hub", "read data sets of the hub")
    try:
        found = datasets.load_dataset(wanted.name, wanted.config)
    except Exception as error:  # datasets raises many kinds: no such name, no connection, no such configuration
        raise InputError(
            f"cannot read data set {wanted.name} of the hub: {cut(error, 200)}; expected {FORM}, and a connection, or "
            "the data set in the cache of an earlier run"
        ) from error
    split = _split(found, wanted, text)
    return rows_of_table(_undecoded(split.data.table, text), columns, text, split.features)


def _split(found: Any, wanted: HubName, text: str) -> Any:
    if wanted.split is None and len(found) == 1:
        return next(iter(found.values()))
    if wanted.split not in found:
        first = next(iter(found), "train")
        raise InputError(
            f"data {text} has the splits {listing(found)}; expected one of them, as "
            f"hf:{wanted.name}:{wanted.config or ''}:{first}"
        )
    return found[wanted.split]


def _undecoded(table: Any, name: str) -> Any:
    """A table of Arrow as one of ``datasets`` that opens nothing, whatever its metadata say of images and the like.

    By these ``datasets`` would fetch the addresses in such a column, asked for or not, and have programs draw.
    """
    from datasets import Dataset

    return Dataset(table.replace_schema_metadata(None), fingerprint=name)
