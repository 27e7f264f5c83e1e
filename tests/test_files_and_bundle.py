import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydrant import Bundle, HeadPlan
from hydrant.bundle import store
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.staging import atomic_file, check_replaceable
from hydrant.bundle.store import new_bundle
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.errors import BundleError, HydrantError, InputError

MANIFEST = {"hydrant": "0", "family": "bert", "members": 2, "labels": ["no", "yes"]}


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def make_bundle(target: Path, force: bool = False, **manifest: Any) -> Bundle:
    before = target.exists()
    with new_bundle(target, {**MANIFEST, **manifest}, force=force) as folder:
        assert (target.exists(), folder.parent) == (before, target.parent), "it appears whole"
        (folder / "plan.json").write_bytes(to_json_bytes(HeadPlan.all_heads("bert", 2, 4, 2).to_json()))
        (folder / "calibration.json").write_bytes(to_json_bytes({"temperature": 1.5}))
        (folder / "processor").mkdir()
        (folder / "processor" / "tokenizer.json").write_bytes(b"{}")
    return Bundle.open(target)


def edit_manifest(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "hydrant.json"
    manifest = json.loads(file.read_bytes())
    replaced = edit(manifest)
    file.write_bytes(to_json_bytes(manifest if replaced is None else replaced))


def test_what_replaces_a_file_keeps_its_permissions(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    for name in ("a", "out/hydrant.json"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o640 if name == "a" else 0o600)
    with atomic_file(tmp_path / "a") as handle:
        (part,) = tmp_path.glob(".a.*/*")
        assert part.stat().st_mode & 0o777 == 0o640, "nobody else can read it meanwhile"
        handle.write(b"new")
    bundle.add({"reports/x.json": b"{}"})
    assert (tmp_path / "a").read_bytes() == b"new"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (bundle.path / "hydrant.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("existing", [{}, {"a.bin": b"old"}])
def test_atomic_file_leaves_nothing_behind_when_interrupted(existing: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in existing.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(KeyboardInterrupt), atomic_file(tmp_path / "a.bin") as handle:
        handle.write(b"half")
        raise KeyboardInterrupt
    assert tree(tmp_path) == existing


def test_new_bundle_lists_every_file_with_size_and_digest(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    files = bundle.manifest["files"]
    assert sorted(files) == ["calibration.json", "plan.json", "processor/tokenizer.json"]
    for name, entry in files.items():
        data = (bundle.path / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        assert bundle.file(name) == bundle.path / name
    assert (bundle.family, bundle.members, bundle.labels) == ("bert", 2, ["no", "yes"])
    assert bundle.plan() == HeadPlan.all_heads("bert", 2, 4, 2)
    assert Calibration.of(bundle).temperature == 1.5
    assert bundle.processor_folder() == bundle.path / "processor"
    assert tree(bundle.path) == tree(make_bundle(tmp_path / "again").path), "the same content gives the same bundle"


def test_force_replaces_a_bundle(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    with pytest.raises(InputError, match="--force"):
        make_bundle(tmp_path / "out")
    assert make_bundle(tmp_path / "out", force=True, labels=["a", "b"]).labels == ["a", "b"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_add_updates_files_and_manifest(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    newer = bundle.add({"reports/verify.json": b"{}", "calibration.json": b'{"temperature": 2}'})
    assert newer.manifest == Bundle.open(tmp_path / "out").manifest
    assert Calibration.of(newer).temperature == 2.0
    assert newer.read_json("reports/verify.json") == {}
    assert not bundle.has("reports/verify.json")
    assert newer.has("reports/verify.json")
    with pytest.raises(BundleError, match=r"calibration.json was changed by another process meanwhile"):
        Calibration.of(bundle)  # the older manifest no longer describes the file


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x"])
def test_add_refuses_names_outside_the_folder(name: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    before = tree(tmp_path)
    with pytest.raises(BundleError, match="must stay inside its folder"):
        bundle.add({name: b"x"})
    assert tree(tmp_path) == before


def test_add_does_not_write_through_a_link_that_leaves_the_folder(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (bundle.path / "reports").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(HydrantError):
        bundle.add({"reports/verify.json": b"{}"})
    assert tree(tmp_path / "elsewhere") == {}


@pytest.mark.parametrize(("alter", "words"), [
    (lambda path: path.write_bytes(path.read_bytes().replace(b"1.5", b"9.5")), "was altered"),
    (lambda path: path.write_bytes(b"{"), "has 1 bytes"),
    (Path.unlink, "is not a file there"),
])  # fmt: skip
def test_altered_file_is_refused(alter: Callable[[Path], Any], words: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    alter(bundle.path / "calibration.json")
    with pytest.raises(BundleError, match=rf"calibration\.json {words}|calibration\.json is listed.*{words}"):
        Calibration.of(bundle)


def test_file_slipped_into_the_processor_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "processor" / "tokenizer_config.json").write_bytes(b'{"model_max_length": 4}')
    with pytest.raises(BundleError, match=r"tokenizer_config\.json"):
        bundle.processor_folder()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "..\\x", "C:/x", "", "./a", "a//b"])
def test_hostile_name_in_the_manifest_is_refused(name: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    entry = {"bytes": 0, "sha256": hashlib.sha256(b"").hexdigest()}
    edit_manifest(bundle.path, lambda manifest: manifest["files"].update({name: entry}))
    with pytest.raises(BundleError, match="a bundle's files must stay inside its folder"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("where", ["file", "folder"])
def test_link_that_leaves_the_folder_is_refused(where: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tokenizer.json").write_bytes(b"{}")
    inside = bundle.path / "processor"
    (inside / "tokenizer.json").unlink()
    if where == "file":
        (inside / "tokenizer.json").symlink_to(outside / "tokenizer.json")
    else:
        inside.rmdir()
        inside.symlink_to(outside, target_is_directory=True)
    with pytest.raises(BundleError, match="is not a file there"):
        bundle.processor_folder()


def test_what_is_put_into_a_bundle_that_another_takes_the_place_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, read = make_bundle(tmp_path / "out"), store.entry_of

    def meanwhile(part: Path) -> dict[str, Any]:
        manifest = read(part)
        monkeypatch.undo()
        make_bundle(bundle.path, force=True, members=3)
        return manifest

    monkeypatch.setattr(store, "entry_of", meanwhile)
    with pytest.raises(InputError, match="out was changed by another process meanwhile; run the command again"):
        bundle.add({"reports/x.json": b"{}"})
    opened = Bundle.open(bundle.path)
    assert (opened.members, "reports/x.json" in opened.manifest["files"]) == (3, False)
    assert not [path.name for path in bundle.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(("edit", "named"), [
    (lambda m: m.update(schema=2, hydrant="1.4.0rc1"), "schema '2'.*install hydrant-uq 1.4.0rc1 or newer"),
    (lambda m: m.update(members=0), "members"),
    (lambda m: m.update(labels=["one", "one"]), "labels one, one"),
    (lambda m: m["files"]["plan.json"].update(bytes=-1), "bytes"),
    (lambda m: m["files"]["plan.json"].update(sha256="0" * 63), "sha256"),
    (lambda m: m.update(fusion={"adapted": {"a": {"rank": 0, "low_rank": True}}}), "rank"),
    (lambda m: [m], "schema"),
])  # fmt: skip
def test_malformed_manifest_is_refused(edit: Callable[[dict[str, Any]], Any], named: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    edit_manifest(bundle.path, edit)
    with pytest.raises(BundleError, match=rf"hydrant\.json.*{named}"):
        Bundle.open(bundle.path)


def test_only_what_a_command_made_is_replaced(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "out", target_is_directory=True)
    for name, message in (("out", "--force"), ("mine", "hydrant.json"), ("file", "not a folder"), ("link", "link")):
        with pytest.raises(InputError, match=message):
            check_replaceable(tmp_path / name, "hydrant.json", force=name != "out")
    with pytest.raises(InputError, match="no name of its own"):
        check_replaceable(Path(".."), "hydrant.json", force=True)
    check_replaceable(tmp_path / "out", "hydrant.json", force=True)
    check_replaceable(tmp_path / "new", "hydrant.json", force=False)
