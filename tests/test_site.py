"""The site that ``make docs`` builds: no warnings, no broken links, readable offline."""

import os
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote

import hydrant
import pytest

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href"}
"""Elements that a browser loads, and the attribute of their address."""


class Page(HTMLParser):
    """Anchors, links, loaded addresses and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.names |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values:
            self.loads.append(values[LOADED[tag]])

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page of the site, built from a copy of the documents and the installed package."""
    if not (find_spec("zensical") and find_spec("mkdocstrings_handlers")):
        pytest.skip("the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    package = Path(hydrant.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(package)},
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "No issues found" in printed
    assert "griffe" not in printed, "docstrings match their signatures"
    return {path: Page(path) for path in sorted((folder / ".build/site").rglob("*.html"))}


def test_links_of_the_site_have_targets(pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links start at the root
        assert not [place for place in page.loads if "//" in place], f"{path.name} loads from elsewhere"
        for link in [*page.links, *page.loads]:
            if link.startswith(("https:", "mailto:", "data:")):
                continue
            place, _, anchor = unquote(link).partition("#")
            linked = (path.parent / place).resolve() if place else path
            assert linked.is_file(), f"{path.name} links to {link}"
            assert not anchor or linked not in pages or anchor in pages[linked].names, f"{path.name} links to {link}"


def test_every_public_name_has_its_place_on_the_python_page(pages: dict[Path, Page]) -> None:
    (page,) = (page for path, page in pages.items() if path.name == "python.html")
    public = {f"hydrant.{name}" for name in hydrant.__all__ if name != "__version__"}
    assert public <= page.names
    for words in ("Choose the attention heads that each member keeps.", "mutual_information", "GateError"):
        assert words in page.text
