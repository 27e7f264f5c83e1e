"""``hydrant-run --trust`` checks every file of a bundle, also unused ones."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpp import lines, refused, run
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from test_signature import certificate

KIND = "application/vnd.in-toto+json"
KEY = ec.generate_private_key(ec.SECP256R1())


def sign(bundle: Path, public: Path, key: ec.EllipticCurvePrivateKey = KEY, certified: bool = False) -> None:
    """Sign a bundle by the OpenSSF's specification; write the public key, or its certificate."""
    names = sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*")
                   if path.is_file() and path.name != "hydrant.sig")  # fmt: skip
    digests = {name: hashlib.sha256((bundle / name).read_bytes()).hexdigest() for name in names}
    resources = [{"name": name, "algorithm": "sha256", "digest": digest} for name, digest in digests.items()]
    payload = json.dumps(
        {"predicateType": "https://model_signing/signature/v1.0", "predicate": {"resources": resources}}
    ).encode()
    message = b" ".join([b"DSSEv1", str(len(KIND)).encode(), KIND.encode(), str(len(payload)).encode(), payload])
    signature = key.sign(message, ec.ECDSA(hashes.SHA384() if key.key_size == 384 else hashes.SHA256()))
    envelope: dict[str, Any] = {"payload": base64.b64encode(payload).decode(), "payloadType": KIND,
                                "signatures": [{"sig": base64.b64encode(signature).decode()}]}  # fmt: skip
    issued = certificate("maker", key)
    raw = base64.b64encode(issued.public_bytes(serialization.Encoding.DER)).decode()
    material = {"x509CertificateChain": {"certificates": [{"rawBytes": raw}]}}
    (bundle / "hydrant.sig").write_text(json.dumps({"dsseEnvelope": envelope, "verificationMaterial": material}))
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    by_key = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    public.write_bytes(issued.public_bytes(serialization.Encoding.PEM) if certified else by_key)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(("name", "alter"), [("fused.safetensors", flip), ("plan.json", Path.unlink)])
def test_no_listed_file_may_be_altered_or_removed(
    alter: Callable[[Path], None], name: str, runner: Path, golden: Path, tmp_path: Path
) -> None:
    bundle, inputs = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle"), golden / "bert/inputs.npz"
    words = (runner, bundle, "--input", inputs, "--trust", tmp_path / "trusted.pem")
    (bundle / "extra.txt").write_text("more")
    sign(bundle, tmp_path / "trusted.pem")
    refused(run(*words), "'extra.txt' is not listed in hydrant.json")
    (bundle / "extra.txt").unlink()
    sign(bundle, tmp_path / "trusted.pem")
    assert len(lines(run(*words))) > 0
    alter(bundle / name)
    refused(run(*words), f"'{name}'")


@pytest.mark.parametrize(
    ("curve", "certified"), [(ec.SECP384R1, True), (ec.SECP256K1, False), (ec.BrainpoolP384R1, True)]
)
def test_keys_of_other_curves_are_not_trusted(
    curve: type[ec.EllipticCurve], certified: bool, runner: Path, golden: Path, tmp_path: Path
) -> None:
    """Only the three curves of the standard, as in Python's library."""
    bundle, inputs = shutil.copytree(golden / "bert/bundle", tmp_path / "bundle"), golden / "bert/inputs.npz"
    sign(bundle, tmp_path / "trusted.pem", ec.generate_private_key(curve()), certified)
    done = run(runner, bundle, "--input", inputs, "--trust", tmp_path / "trusted.pem")
    if curve is ec.SECP384R1:
        assert len(lines(done)) > 0
    else:
        refused(done, "P-256")


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
    sign(bundle, tmp_path / "trusted.pem")
    trusting = ("--input", inputs, "--trust", tmp_path / "trusted.pem")
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
