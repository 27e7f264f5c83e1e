"""The model card."""

from __future__ import annotations

from ..bundle.store import Bundle


def model_card(bundle: Bundle, repository: str | None) -> str:
    """README.md of a repository."""
    return f"---\nlibrary_name: hydrant\n---\n# {repository or 'hydrant bundle'} ({bundle.members} members)\n"
