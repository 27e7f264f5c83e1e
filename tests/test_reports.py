"""Reports outside the bundle, and of bundles that cannot be written."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydrant import Figures, Reading, Timing, evaluate, profile, verify
from hydrant.bundle import store
from hydrant.bundle.reports import store_reports
from hydrant.errors import InputError
from test_files_and_bundle import tree

SHORT = Timing(batch=[1], sequence=[8], seconds=0.0, iterations=2)
VERBS: dict[str, Callable[[Path, Any, Any], Any]] = {
    "verify": lambda path, data, folder: verify(path, "onnxruntime", reading=Reading(examples=4), report=folder),
    "evaluate": lambda path, data, folder: evaluate(path, data, figures=Figures(bootstrap=0), report=folder),
    "profile": lambda path, data, folder: profile(path, "onnxruntime", timing=SHORT, memory=False, report=folder),
}
STORED = {"verify": "verify.json", "evaluate": "evaluation.json", "profile": "profile.json"}


def test_a_report_on_other_files_is_not_stored(
    text_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A bundle that is recalibrated during a measurement gets no report; other new files do not matter."""
    path = Path(shutil.copytree(text_bundle, tmp_path / "copy"))
    measured = store.Bundle.open(path)
    store.Bundle.open(path).add({"reports/other.json": b"{}", "engines/one.json": b"{}"})
    assert store_reports(measured, {"reports/verify.json": b"{}"}, None) == ["reports/verify.json"]
    store.Bundle.open(path).add({"calibration.json": b'{"temperature": 2}'})
    assert store_reports(measured, {"reports/verify.json": b"[]"}, None) == []
    assert "calibration.json was changed by another process" in caplog.text
    assert store.Bundle.open(path).read("reports/verify.json") == b"{}"


@pytest.mark.parametrize("verb", VERBS)
def test_reports_can_be_written_to_a_folder(verb: str, text_bundle: Path, text_csv: Path, tmp_path: Path) -> None:
    before = tree(text_bundle)
    report = VERBS[verb](text_bundle, text_csv, tmp_path / "deep" / "er")
    assert tree(text_bundle) == before
    stored = json.loads((tmp_path / "deep" / "er" / STORED[verb]).read_text())
    assert stored["hydrant"] == report.to_json()["hydrant"]
    if verb == "evaluate":
        assert {Path(name) for name in report.files} == set((tmp_path / "deep" / "er").iterdir())


def test_unusable_folders_are_refused_before_the_work(text_bundle: Path, text_csv: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot write into .*file.deep: Not a directory; choose another folder"):
        VERBS["verify"](text_bundle, None, tmp_path / "file" / "deep")
    with pytest.raises(InputError, match=r"report folder .*reports is inside the bundle"):
        VERBS["evaluate"](text_bundle, text_csv, text_bundle / "reports")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
