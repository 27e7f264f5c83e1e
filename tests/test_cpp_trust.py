"""A download of the Hub in the C++ runner, which follows its links to blobs and no others."""

import shutil
from pathlib import Path

import hydrant
from cpp import lines, refused, run
from cryptography.hazmat.primitives.asymmetric import ec
from test_signature import write_key


def downloaded(bundle: Path, cache: Path, folder: str = "models--user--repo/snapshots") -> Path:
    """A bundle as huggingface_hub stores a download: every file a link to a blob."""
    snapshot, blobs = cache / folder / "0123abcd/hydrant", cache / "models--user--repo/blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(path for path in sorted(bundle.rglob("*")) if path.is_file()):
        shutil.copyfile(file, blobs / f"{number:064x}")
        link = snapshot / file.relative_to(bundle)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(*[".."] * (len(link.relative_to(snapshot).parts) + 2), "blobs", f"{number:064x}"))
    return snapshot


def test_a_download_of_the_hub_is_read_with_links_to_its_own_blobs_only(
    runner: Path, golden: Path, tmp_path: Path
) -> None:
    bundle, inputs = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle"), golden / "bert/inputs.npz"
    public = write_key(tmp_path / "maker.pem", ec.generate_private_key(ec.SECP256R1()))
    hydrant.sign(bundle, tmp_path / "maker.pem")
    trusting = ("--input", inputs, "--trust", public)
    rows = lines(run(runner, bundle, *trusting))
    snapshot = downloaded(bundle, tmp_path / "hub")
    assert lines(run(runner, snapshot, *trusting)) == rows
    assert lines(run(runner, snapshot.parent, *trusting)) == rows, "the repository's folder"
    config = snapshot / "config.json"
    blob = config.resolve()
    for target in (bundle / "config.json", blob.parent.with_name("other") / blob.name):
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(blob, target)
        config.unlink()
        config.symlink_to(target)
        refused(run(runner, snapshot, "--input", inputs), "config.json is listed in hydrant.json but missing")
    config.unlink()
    config.symlink_to(blob)
    (snapshot / "more").symlink_to(blob.parent)
    assert len(lines(run(runner, snapshot, "--input", inputs))) > 0
    refused(run(runner, snapshot, *trusting), "'more' is a link")
    other = downloaded(bundle, tmp_path / "other", "models--user--repo/revisions")
    refused(run(runner, other, "--input", inputs), "is listed in hydrant.json but missing")
