"""libhydrant.so exports only the functions of its header and the types of its errors."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp import ROOT

LISTED = ROOT / "runtime/cpp/tests/exports.txt"
SHORT = [
    (r" (?=>)", ""),
    (r"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char>>", "string"),
    (r"std::map<string, ([\w:]+), std::less<string>, std::allocator<std::pair<string const, \1>>>", r"map<string, \1>"),
    (r"std::filesystem::__cxx11::path", "path"),
    (r"std::vector<([\w:]+), std::allocator<\1>>", r"vector<\1>"),
    (r"\[abi:cxx11\]", ""),
]


def exported(library: Path) -> list[str]:
    """Demangled names that a library exports, once each."""
    command = ["nm", "--dynamic", "--defined-only", "--demangle", "--format=posix", str(library)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [re.sub(r" [A-Za-z] [0-9a-f]+ [0-9a-f]*$", "", line) for line in output.splitlines()]
    for pattern, word in SHORT:
        names = [re.sub(pattern, word, name) for name in names]
    return sorted(set(names))


def test_the_library_exports_what_is_listed(runner: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("nm, of binutils, is not installed")
    actual, listed = exported(runner.parent / "libhydrant.so"), LISTED.read_text().splitlines()
    assert actual == listed, (
        "the interface of the C++ library changed, which breaks programs linked with the last release; "
        f"if intended, change {LISTED.name} and the minor version"
    )
