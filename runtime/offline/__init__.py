"""Resumable predictions of data of any size: in shards and chunks, on one machine or many."""

from __future__ import annotations

from .shard_parts import Part, merge_parts

__all__ = ["Part", "merge_parts"]
