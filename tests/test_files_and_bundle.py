from __future__ import annotations

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydrant import Bundle, HeadPlan
from hydrant.bundle import staging, store
from hydrant.bundle.calibration import Calibration
from hydrant.bundle.graphs import check_all_graphs
from hydrant.bundle.manifest import MAX_MANIFEST_BYTES
from hydrant.bundle.staging import (
    NEW,
    atomic_file,
    check_replaceable,
    copy_folder,
    sha256_of,
    staged_folder,
    write_atomically,
)
from hydrant.bundle.store import new_bundle, resolve
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.errors import BundleError, HydrantError, InputError, PlanError

ABORTS = [ValueError, KeyboardInterrupt, SystemExit]
MARKER = "marker.json"
MANIFEST = {"hydrant": "0", "family": "bert", "members": 2, "labels": ["no", "yes"]}


class StopError(Exception):
    pass


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def make_bundle(target: Path, force: bool = False, **manifest: Any) -> Bundle:
    with new_bundle(target, {**MANIFEST, **manifest}, force=force) as folder:
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


def put(bundle: Bundle, name: str, data: bytes) -> Bundle:
    """Replace a file and its manifest entry."""
    return bundle.add({name: data})


# Files


def test_atomic_file_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, b"one")
    with atomic_file(path) as handle:
        handle.write(b"two")
        handle.flush()
        assert path.read_bytes() == b"one"
    assert tree(tmp_path) == {"a.bin": b"two"}


def test_atomic_file_has_ordinary_permissions(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


@pytest.mark.skipif(sys.platform == "win32", reason="has other permissions")
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
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (bundle.path / "hydrant.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("abort", ABORTS)
@pytest.mark.parametrize("existing", [None, b"old"])
def test_atomic_file_leaves_nothing_behind_when_interrupted(
    abort: type[BaseException], existing: bytes | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.bin"
    if existing is not None:
        path.write_bytes(existing)
    with pytest.raises(abort), atomic_file(path) as handle:
        handle.write(b"half")
        raise abort
    assert tree(tmp_path) == ({} if existing is None else {"a.bin": existing})


def test_atomic_file_names_the_path_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*a\.bin: No such file"):
        write_atomically(tmp_path / "absent" / "a.bin", b"")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=r"cannot write .*folder: Is a directory"):
        write_atomically(tmp_path / "folder", b"")
    assert tree(tmp_path) == {"folder": None}


def test_atomic_file_is_not_blamed_for_other_files(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="another"), atomic_file(tmp_path / "a.bin"):
        raise PermissionError("another file")
    if Path("/dev/full").exists():
        with pytest.raises(InputError, match="cannot write /dev/full: No space left on device"):
            write_atomically(Path("/dev/full"), b"data")


def test_digest_is_sha256_of_the_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(data).hexdigest()


def test_staged_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "out"
    with staged_folder(target, MARKER) as stage:
        (stage / MARKER).write_bytes(b"new")
        assert not target.exists()
        assert stage.parent == target.parent
    (tmp_path / "deep" / "plain").mkdir()
    assert tree(tmp_path) == {"deep": None, "deep/out": None, f"deep/out/{MARKER}": b"new", "deep/plain": None}
    assert target.stat().st_mode == (tmp_path / "deep" / "plain").stat().st_mode


def test_staged_folder_on_a_disk_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, *_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with (
        pytest.raises(InputError, match=r"cannot create .*out: Read-only file system"),
        staged_folder(tmp_path / "out", MARKER),
    ):
        pass


def test_a_copy_for_which_there_is_no_room(tmp_path: Path) -> None:
    """What Python raises then has no words of its own: it lists every file."""

    def full(source: str, target: str, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_text("1")
    copy_folder(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b" / "one").read_text() == "1"
    with pytest.raises(InputError, match=r"cannot copy .*a to .*c: \[Errno 28\] No space left on device"):
        copy_folder(tmp_path / "a", tmp_path / "c", full)


@pytest.mark.parametrize("abort", ABORTS)
@pytest.mark.parametrize("existing", [False, True])
def test_staged_folder_leaves_nothing_behind_when_interrupted(
    abort: type[BaseException], existing: bool, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    if existing:
        target.mkdir()
        (target / MARKER).write_bytes(b"old")
    before = tree(tmp_path)
    with pytest.raises(abort), staged_folder(target, MARKER, force=True) as stage:
        (stage / "sub").mkdir()
        (stage / "sub" / "half").write_bytes(b"half")
        raise abort
    assert tree(tmp_path) == before


def test_failed_swap_keeps_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / MARKER).write_bytes(b"old")
    before = tree(tmp_path)
    replace = Path.replace

    def fail_for_stage(self: Path, other: Path) -> Path:
        if (self / "new").exists():
            raise KeyboardInterrupt
        return replace(self, other)

    monkeypatch.setattr(Path, "replace", fail_for_stage)
    monkeypatch.setattr(staging, "_exchanged", lambda *_: False)  # as on systems that cannot
    with pytest.raises(KeyboardInterrupt), staged_folder(target, MARKER, force=True) as stage:
        (stage / "new").write_bytes(b"new")
    assert tree(tmp_path) == before


def test_force_replaces_the_whole_folder(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / MARKER).write_bytes(b"old")
    (target / "leftover").write_bytes(b"old")
    with staged_folder(target, MARKER, force=True) as stage:
        (stage / MARKER).write_bytes(b"new")
    assert tree(tmp_path) == {"out": None, f"out/{MARKER}": b"new"}


@pytest.mark.parametrize("empty", [True, False])
def test_existing_folder_is_refused_without_force(empty: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    if not empty:
        (target / MARKER).write_bytes(b"old")
    before = tree(tmp_path)
    message = "out exists; choose another output folder, or replace it with --force"
    with pytest.raises(InputError, match=message), staged_folder(target, MARKER):
        pytest.fail("the block must not run")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("force", [True, False])
def test_a_folder_that_is_no_bundle_is_never_replaced(force: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.tex").write_bytes(b"years of work")
    with pytest.raises(
        InputError, match=r"out exists, and holds something else than this command makes \(no hydrant\.json\)"
    ):
        make_bundle(target, force=force)
    assert tree(tmp_path) == {"out": None, "out/thesis.tex": b"years of work"}


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("kind", ["file", "link", "dangling"])
def test_a_file_or_link_is_never_replaced(kind: str, force: bool, tmp_path: Path) -> None:
    target = tmp_path / "out"
    if kind == "file":
        target.write_bytes(b"data")
    elif kind == "link":
        make_bundle(tmp_path / "real")
        target.symlink_to(tmp_path / "real", target_is_directory=True)
    else:
        target.symlink_to(tmp_path / "absent")
    before = tree(tmp_path)
    message = (
        "out exists and is not a folder" if kind == "file" else r"out is a link to .*; name the folder that it leads"
    )
    with pytest.raises(InputError, match=message):
        make_bundle(target, force=force)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("force", [True, False])
def test_a_mount_point_is_refused_before_the_work(force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: path == tmp_path / "out")
    with pytest.raises(InputError, match=r"out is a mount point, .*; name a folder inside it"):
        check_replaceable(tmp_path / "out", MARKER, force)
    with staged_folder(tmp_path / "out" / "inside", MARKER, force) as stage:
        (stage / MARKER).write_bytes(b"new")
    assert tree(tmp_path / "out") == {"inside": None, f"inside/{MARKER}": b"new"}


def test_a_folder_is_named_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that ends in dots cannot be given to another folder, as would show after all the work."""
    make_bundle(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out" / "processor")
    for target in (Path(), Path(".."), tmp_path / "out" / "processor" / ".."):
        with pytest.raises(InputError, match=r"the output folder is '.*', .*; write the name"):
            check_replaceable(target, "hydrant.json", force=True)
    with staged_folder(tmp_path / "out", "hydrant.json", force=True) as stage:  # whoever stands in it asked for that
        (stage / "hydrant.json").write_bytes(b"new")
    assert tree(tmp_path / "out") == {"hydrant.json": b"new"}


def test_a_place_that_the_system_refuses_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that other processes hold, which shows at the end alone."""

    def busy(stage: Path, target: Path) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(stage), None, str(target))

    monkeypatch.setattr(staging, "take_place", busy)
    message = "the result cannot take its place at .*out: Device or resource busy; choose another output folder"
    with pytest.raises(InputError, match=message):
        make_bundle(tmp_path / "out")
    assert tree(tmp_path) == {}


def test_parent_that_is_a_file_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"cannot create .*out"):
        make_bundle(tmp_path / "file" / "out")


# Bundle


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


def test_same_content_gives_the_same_bundle(tmp_path: Path) -> None:
    make_bundle(tmp_path / "a")
    make_bundle(tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_interrupted_bundle_is_absent(tmp_path: Path) -> None:
    with pytest.raises(StopError), new_bundle(tmp_path / "out", MANIFEST) as folder:
        (folder / "plan.json").write_bytes(b"{}")
        raise StopError
    assert tree(tmp_path) == {}


def test_invalid_manifest_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="members"):
        make_bundle(tmp_path / "out", members=0)
    assert tree(tmp_path) == {}


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


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "a\\b"])
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


def test_altered_file_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    path = bundle.path / "calibration.json"
    path.write_bytes(path.read_bytes().replace(b"1.5", b"9.5"))
    with pytest.raises(BundleError, match=r"calibration\.json was altered: its SHA-256 is [0-9a-f]{12}…"):
        Calibration.of(bundle)


@pytest.mark.parametrize("size", [0, 1])
def test_truncated_file_is_refused(size: int, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    path = bundle.path / "plan.json"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BundleError, match=rf"plan\.json has {size} bytes, but the manifest says \d+: it was truncated"):
        bundle.plan()


def test_missing_file_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "plan.json").unlink()
    with pytest.raises(BundleError, match=r"plan\.json is listed in hydrant\.json but is not a file there"):
        bundle.plan()


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "plan.json").unlink()
    (bundle.path / "plan.json").mkdir()
    with pytest.raises(BundleError, match="is not a file there"):
        bundle.plan()


def test_unlisted_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "model.fp32.onnx").write_bytes(b"graph")
    with pytest.raises(BundleError, match=r"has no model\.fp32\.onnx; make it with `hydrant export`"):
        bundle.file("model.fp32.onnx")
    with pytest.raises(BundleError, match=r"has no fused\.safetensors; make the bundle again"):
        bundle.file("fused.safetensors")


def test_altered_processor_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "processor" / "tokenizer.json").write_bytes(b"[]")
    with pytest.raises(BundleError, match=r"tokenizer\.json was altered"):
        bundle.processor_folder()


def test_file_slipped_into_the_processor_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "processor" / "tokenizer_config.json").write_bytes(b'{"model_max_length": 4}')
    with pytest.raises(BundleError, match=r"tokenizer_config\.json"):
        bundle.processor_folder()


def test_a_manifest_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest of .* would have \d+ bytes, of which at most \d+ are read; give"):
        make_bundle(tmp_path / "out", fusion={"zero_shot": {"cat": "a" * MAX_MANIFEST_BYTES, "dog": "b"}})
    assert list(tmp_path.iterdir()) == []


def test_bundle_without_processor_has_none(tmp_path: Path) -> None:
    with new_bundle(tmp_path / "out", MANIFEST):
        pass
    assert Bundle.open(tmp_path / "out").processor_folder() is None


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../../x", "..", "/etc/passwd", "a\\b", "..\\x", "C:x", "C:/x", "", "./a", "a//b", "a/", "//host/share"],
)
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


def test_bundle_reached_through_a_link_opens(tmp_path: Path) -> None:
    make_bundle(tmp_path / "out")
    (tmp_path / "current").symlink_to(tmp_path / "out", target_is_directory=True)
    assert Calibration.of(Bundle.open(tmp_path / "current")).temperature == 1.5


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda m: m.update(schema=2, hydrant="1.4.0rc1"),
            r"schema 1; hydrant 1.4.0rc1 wrote it: install hydrant-uq 1.4.0rc1",
        ),
        (
            lambda m: m.update(schema=2, hydrant="$(rm)"),
            r"has schema '2'; .* 1; a newer hydrant wrote it: install the newest",
        ),
        (lambda m: m.update(schema=0), r"has schema '0'; this hydrant reads schema 1; make it again"),
        (lambda m: m.update(schema=None), "has schema 'None'"),
        (lambda m: m.pop("schema") and None, "has schema 'None'"),
        (lambda m: m.pop("hydrant") and None, "has hydrant = 'None'; expected a JSON str"),
        (lambda m: m.pop("family") and None, "has family = 'None'; expected a JSON str"),
        (lambda m: m.pop("members") and None, "has members = 'None'; expected a JSON int"),
        (lambda m: m.pop("labels") and None, "has labels = 'None'; expected a JSON list"),
        (lambda m: m.pop("files") and None, "has files = 'None'; expected a JSON dict"),
        (lambda m: m.update(files=[]), r"has files = '\[\]'; expected a JSON dict"),
        (lambda m: m.update(members=True), "has members = 'True'; expected a JSON int"),
        (lambda m: m.update(members=0), "has '0' members; expected 1 to 1048576"),
        (lambda m: m.update(members=10**18), "has '1000000000000000000' members; expected 1 to"),
        (lambda m: m.update(labels=[]), "has labels none; expected names, one for each output"),
        (lambda m: m.update(labels=["one", 2]), "has labels one, 2; expected names, one for each output"),
        (
            lambda m: m["files"].update({"plan.json": None}),
            "lists 'plan.json' without its size in bytes and its SHA-256",
        ),
        (lambda m: m["files"]["plan.json"].pop("bytes") and None, "lists 'plan.json' without its size"),
        (lambda m: m["files"]["plan.json"].pop("sha256") and None, "lists 'plan.json' without its size"),
        (lambda m: m["files"]["plan.json"].update(bytes=-1), "lists 'plan.json' without its size"),
        (lambda m: m["files"]["plan.json"].update(bytes=10**400), "lists 'plan.json' without its size"),
        (lambda m: m["files"]["plan.json"].update(sha256="0" * 63), "lists 'plan.json' without its size"),
        (lambda m: [m], "is a JSON list; expected an object"),
        (lambda m: "text", "is a JSON str; expected an object"),
    ],
)
def test_malformed_manifest_is_refused(edit: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    edit_manifest(bundle.path, edit)
    with pytest.raises(BundleError, match=rf"hydrant\.json.*{message}"):
        Bundle.open(bundle.path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_manifest_that_is_no_json_is_refused(content: bytes, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    (bundle.path / "hydrant.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"hydrant\.json is not JSON"):
        Bundle.open(bundle.path)


def test_huge_manifest_is_refused_unread(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    with (bundle.path / "hydrant.json").open("r+b") as handle:
        handle.truncate(17 * 2**20)
    with pytest.raises(BundleError, match="is larger than"):
        Bundle.open(bundle.path)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        BundleError, match="absent does not exist; expected a bundle, which `hydrant make` or `hydrant fuse` makes"
    ):
        Bundle.open(tmp_path / "absent")
    with pytest.raises(BundleError, match=r"holds no hydrant\.json"):
        Bundle.open(tmp_path)
    with pytest.raises(InputError, match="expected a bundle or its path; found int"):
        resolve(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["0", "-1", "NaN", "Infinity", '"1"', "null", "true", "[1]", "1" + "0" * 400])
def test_invalid_temperature_is_refused(value: str, tmp_path: Path) -> None:
    bundle = put(make_bundle(tmp_path / "out"), "calibration.json", f'{{"temperature": {value}}}'.encode())
    with pytest.raises(BundleError, match=r"calibration\.json has temperature .*; expected a positive finite number"):
        Calibration.of(bundle)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"1.5", b"null", b"{", b"\xff", b'"T"'])
def test_malformed_calibration_is_refused(content: bytes, tmp_path: Path) -> None:
    bundle = put(make_bundle(tmp_path / "out"), "calibration.json", content)
    with pytest.raises(BundleError, match=r"calibration\.json"):
        Calibration.of(bundle)


@pytest.mark.parametrize("graphs", [0, 1, 3])
def test_the_calibration_is_read_once(graphs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also to compare it with several graphs; a bundle without any is not asked for one."""
    bundle = make_bundle(tmp_path / "out").add({f"model.{number}.onnx": b"" for number in range(graphs)})
    read, names = Bundle.read, list[str]()
    monkeypatch.setattr(Bundle, "read", lambda bundle, name: names.append(name) or read(bundle, name))
    check_all_graphs(bundle)
    assert names == ["calibration.json"] * (graphs > 0)


@pytest.mark.parametrize("content", [b"{}", b"[]", b"{"])
def test_malformed_plan_of_a_bundle_is_refused(content: bytes, tmp_path: Path) -> None:
    bundle = put(make_bundle(tmp_path / "out"), "plan.json", content)
    with pytest.raises((BundleError, PlanError), match="plan"):
        bundle.plan()


def test_what_is_put_into_a_bundle_that_another_takes_the_place_of_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, read = make_bundle(tmp_path / "out"), store.entry_of

    def meanwhile(part: Path) -> dict[str, Any]:
        found = read(part)
        make_bundle(bundle.path, force=True, members=3)
        return found

    monkeypatch.setattr(store, "entry_of", meanwhile)
    with pytest.raises(InputError, match="out was changed by another process meanwhile; run the command again"):
        bundle.add({"reports/x.json": b"{}"})
    found = Bundle.open(bundle.path)
    assert (found.members, "reports/x.json" in found.manifest["files"]) == (3, False)
    assert not [path.name for path in bundle.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("broken", ["one.txt", "hydrant.json"])
def test_a_failing_add_leaves_everything_as_it_was(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path / "out").add({"one.txt": b"old", "two.txt": b"old"})
    place = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if Path(target).name == broken and self.parent.name == NEW:
            raise OSError(28, "No space left on device")
        return place(self, target)

    before = {path.name: path.read_bytes() for path in bundle.path.iterdir() if path.is_file()}
    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(HydrantError, match="cannot write into bundle"):
        bundle.add({"zero.txt": b"new", "one.txt": b"new", "two.txt": b"new"})
    monkeypatch.undo()
    after = {path.name: path.read_bytes() for path in bundle.path.iterdir() if path.is_file()}
    assert after == before


def test_a_manifest_with_nonsense_about_fusion_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "out")
    updates: list[Any] = [5, {"a": 1}, {"a": {"rank": 0, "low_rank": True}}, {"a": {"rank": 2, "low_rank": 1}}]
    for nonsense in (
        "x",
        {"separate": 5},
        {"separate": ["mlp", {}]},
        {"adapters": 3},
        {"adapters": ["a"]},
        {"checkpoints": 0},
        {"checkpoints": True},
        *({"adapted": u} for u in updates),
    ):
        manifest = {**bundle.manifest, "fusion": nonsense}
        (bundle.path / "hydrant.json").write_text(json.dumps(manifest))
        with pytest.raises(HydrantError, match="expected checkpoints and separate parts"):
            Bundle.open(bundle.path)
