"""The parts that the page of an evaluation is made of; texts are escaped here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from ..tasks import Column
from .metric_names import ranged
from .report import Figure


def section(title: str, *body: str) -> str:
    """A card with its heading, or nothing where it would be empty."""
    return f"<section><h2>{escape(title)}</h2>{''.join(body)}</section>" if any(body) else ""


def pair(*sections: str) -> str:
    """Sections side by side; one alone takes the whole width."""
    filled = [section for section in sections if section]
    return f'<div class="pair">{"".join(filled)}</div>' if len(filled) > 1 else "".join(filled)


def prose(text: str) -> str:
    """Escaped text in which no line begins with a percent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def note(text: str) -> str:
    """A remark in small print."""
    return f'<p class="note">{prose(text)}</p>'


def plot(source: str, title: str, caption: str, broad: bool) -> str:
    """A picture; a broad one scrolls on a narrow screen, where it would be too small to read."""
    image = f'<img class="plot{" broad" if broad else ""}" alt="{escape(f"{title}. {caption}")}" src="{source}">'
    return f"<figure>{_scrolling(title, image)}<figcaption>{prose(caption)}</figcaption></figure>"


def table(label: str, headers: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    """A table."""
    head = "".join(f'<th scope="col">{escape(header)}</th>' if header else "<td></td>" for header in headers)
    body = "".join(f"<tbody>{_group(title, len(headers))}{''.join(rows)}</tbody>" for title, rows in groups.items())
    return _scrolling(label, f"<table><thead><tr>{head}</tr></thead>{body}</table>")


def row(name: str, *cells: str, kind: str = "", image: str | None = None) -> str:
    """A row of cells behind its name, and an image before it."""
    mark = f' class="{kind}"' if kind else ""
    picture = f'<img class="thumb" alt="" src="{image}"> ' if image else ""
    return f'<tr><th scope="row"{mark}>{picture}{escape(name)}</th>{"".join(cells)}</tr>'


def cell(text: str, small: str = "", kind: str = "", style: str = "") -> str:
    """A cell, with small print below its text."""
    marks = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
    return f"<td{marks}>{escape(text)}{f'<small>{escape(small)}</small>' if small else ''}</td>"


def figure_cell(figure: Figure | None, told: Column, best: bool = False) -> str:
    """A figure with its interval below."""
    if figure is None:
        return cell("–")
    interval = ranged(figure, told) if math.isfinite(figure.low) else ""
    return cell(told.text(figure.value), interval, "best" if best else "")


def _group(title: str, columns: int) -> str:
    return f'<tr><th scope="rowgroup" colspan="{columns}">{escape(title)}</th></tr>' if title else ""


def _scrolling(label: str, body: str) -> str:
    return f'<div class="wide" role="region" tabindex="0" aria-label="{escape(label)}">{body}</div>'
