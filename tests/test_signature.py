"""Signatures of bundles: what they cover, whom they trust, and what model-signing itself says of them."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hydrant.bundle.signature import PASSWORD, SIGNATURE, check_signature
from hydrant.bundle.staging import sha256_of
from hydrant.errors import BundleError, InputError
from support import feeds, make_model, predicted, random_plan, run_cli, stdout_of

PEM, BRAINPOOL = serialization.Encoding.PEM, ec.BrainpoolP384R1()


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, password: bytes | None = None) -> Path:
    """A private key as PEM, and beside it the public one, whose path is returned."""
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, hidden))
    public = path.with_suffix(".pub")
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return public


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
    signs: bool = True,
    leads: bool = False,
    days: tuple[int, int] = (-1, 9),
) -> x509.Certificate:
    """A certificate of a key, by an issuer or by itself; one that ``leads`` may issue others; valid from and to."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*others, "encipher_only", "decipher_only"), False) | {"key_encipherment": not signs}
    leads = leads or issuer is None
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(leads, None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=signs, key_cert_sign=leads, crl_sign=leads, **usage), critical=True
        )
    )
    return built.sign(issuer[1] if issuer else key, hashes.SHA256())


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a maker's key, one of somebody else, and an issuer who vouches for the maker's."""
    folder = tmp_path_factory.mktemp("keys")
    maker, other, authority, office = (ec.generate_private_key(ec.SECP256R1()) for _ in range(4))
    write_key(folder / "maker.pem", maker)
    write_key(folder / "other.pem", other)
    root = certificate("authority", authority)
    between = certificate("office", office, (root, authority), leads=True)
    made = {
        "root": root,
        "between": between,
        "far-certificate": certificate("maker", maker, (between, office)),
        "maker-certificate": certificate("maker", maker, (root, authority)),
        "mute-certificate": certificate("maker", maker, (root, authority), signs=False),
        "other-root": certificate("other", other),
        "ended-certificate": certificate("maker", maker, (root, authority), days=(-60, -20)),
    }
    for name, each in made.items():
        (folder / f"{name}.pem").write_bytes(each.public_bytes(PEM))
    return folder


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    folder = tmp_path_factory.mktemp("signed") / "out"
    hydrant.save_bundle(hydrant.fuse(make_model("bert"), random_plan("bert", 2)), folder)
    hydrant.export_onnx(folder)
    assert hydrant.sign(folder, keys / "maker.pem") == folder / SIGNATURE
    return folder


@pytest.fixture
def copy(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "moved"))


def test_a_signed_bundle_predicts_as_before_wherever_it_stands(copy: Path, keys: Path) -> None:
    inputs = feeds("bert")
    trusted = predicted(copy, inputs, "onnxruntime", trust=keys / "maker.pub")
    with hydrant.load(copy, "onnxruntime") as plain:
        np.testing.assert_array_equal(trusted.probabilities, plain.predict(inputs).probabilities)
    with pytest.raises(BundleError, match=r"is not what the owner of .*other.pub signed"):
        hydrant.load(copy, "onnxruntime", trust=keys / "other.pub")


def test_the_signature_is_ecdsa_over_the_digest_of_every_file(signed: Path, keys: Path) -> None:
    envelope = json.loads((signed / SIGNATURE).read_bytes())["dsseEnvelope"]
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    public = serialization.load_pem_public_key((keys / "maker.pub").read_bytes())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    # DSSE: what is signed names its type and lengths
    message = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload])
    public.verify(base64.b64decode(envelope["signatures"][0]["sig"]), message, ec.ECDSA(hashes.SHA256()))
    document = {one["name"]: one["digest"] for one in json.loads(payload)["predicate"]["resources"]}
    files = {path.relative_to(signed).as_posix(): path for path in signed.rglob("*") if path.is_file()}
    del files[SIGNATURE]
    assert document == {name: sha256_of(path) for name, path in files.items()}


def test_model_signing_itself_agrees(signed: Path, keys: Path) -> None:
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed)]
    for key, status in (("maker.pub", 0), ("other.pub", 1)):
        words = [*command, "--signature", str(signed / SIGNATURE), "--public_key", str(keys / key)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr


def forge(folder: Path) -> None:
    """An attacker's temperature, with the digest that fits, and without the graph that would contradict it."""
    manifest = json.loads((folder / "hydrant.json").read_bytes())
    calibration = folder / "calibration.json"
    calibration.write_text(json.dumps({**json.loads(calibration.read_bytes()), "temperature": 9.0}))
    manifest["files"]["calibration.json"] = {"bytes": calibration.stat().st_size, "sha256": sha256_of(calibration)}
    del manifest["files"]["model.fp32.onnx"]
    (folder / "model.fp32.onnx").unlink()
    (folder / "hydrant.json").write_text(json.dumps(manifest))


def relabel(folder: Path) -> None:
    manifest = json.loads((folder / "hydrant.json").read_bytes())
    manifest["labels"].reverse()
    (folder / "hydrant.json").write_text(json.dumps(manifest))


def strip(folder: Path) -> None:
    (folder / SIGNATURE).unlink()


def leave_more(folder: Path) -> None:
    (folder / "libevil.so").write_bytes(b"more")


def flip(folder: Path) -> None:
    """Change a file that the C++ runner does not use."""
    content = (folder / "fused.safetensors").read_bytes()
    (folder / "fused.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def link(folder: Path) -> None:
    (folder / "plan.json").rename(folder.parent / "plan.json")
    (folder / "plan.json").symlink_to(folder.parent / "plan.json")


def cut_payload(folder: Path) -> None:
    """A signature whose statement says nothing of the manifest any more."""
    document = json.loads((folder / SIGNATURE).read_bytes())
    statement = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
    statement["predicate"]["resources"].pop()
    document["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (folder / SIGNATURE).write_text(json.dumps(document))


ALTERATIONS: list[tuple[Callable[[Path], None], str]] = [
    (forge, "changed or missing: calibration.json, hydrant.json, model.fp32.onnx"),
    (relabel, "changed or missing: hydrant.json"),
    (strip, "is not signed; expected hydrant.sig"),
    (leave_more, r"libevil.so is not listed in hydrant.json"),
    (lambda folder: os.mkfifo(folder / "pipe"), "pipe is a link or a special file"),
    (flip, "changed or missing: fused.safetensors"),
    (link, "plan.json is a link or a special file"),
    (cut_payload, "is not what the owner of"),
]


@pytest.mark.parametrize(("alter", "words"), ALTERATIONS)
def test_what_was_altered_since_is_refused(copy: Path, keys: Path, alter: Callable[[Path], None], words: str) -> None:
    check_signature(copy, keys / "maker.pub")
    alter(copy)
    for opening in (hydrant.load, hydrant.pipeline):
        with pytest.raises(BundleError, match=words):
            opening(copy, backend="onnxruntime", trust=keys / "maker.pub")


def test_a_report_ends_the_signature_and_signing_again_renews_it(copy: Path, keys: Path) -> None:
    hydrant.Bundle.open(copy).add({"reports/more.json": b"{}"})
    with pytest.raises(BundleError, match="sign it again with `hydrant sign`"):
        check_signature(copy, keys / "maker.pub")
    stage = copy / ".hydrant.0123456789ab.stage"  # of a command that was killed
    (stage / "new").mkdir(parents=True)
    (stage / "new" / "plan.json").write_bytes(b"{}")
    hydrant.sign(copy, keys / "maker.pem")
    check_signature(copy, keys / "maker.pub")
    assert not stage.exists()


def test_another_curve_and_a_password(copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = write_key(tmp_path / "hidden.pem", ec.generate_private_key(ec.SECP521R1()), b"open sesame")
    with pytest.raises(InputError, match=f"hidden.pem cannot be used .*its password in {PASSWORD}"):
        hydrant.sign(copy, tmp_path / "hidden.pem")
    monkeypatch.setenv(PASSWORD, "open sesame")
    hydrant.sign(copy, tmp_path / "hidden.pem")
    check_signature(copy, public)


def test_a_certificate_is_trusted_through_its_issuer(copy: Path, keys: Path) -> None:
    hydrant.sign(copy, keys / "maker.pem", certificate=keys / "maker-certificate.pem")
    check_signature(copy, keys / "root.pem")
    with pytest.raises(BundleError, match=r"is not what the owner of .*other-root.pem signed"):
        check_signature(copy, keys / "other-root.pem")
    forge(copy)
    with pytest.raises(BundleError, match=r"hydrant.json"):
        check_signature(copy, keys / "root.pem")
    with pytest.raises(InputError, match=r"ended-certificate.pem is valid from .*"):
        hydrant.sign(copy, keys / "maker.pem", certificate=keys / "ended-certificate.pem")


def test_keys_that_cannot_be_used(copy: Path, keys: Path, tmp_path: Path) -> None:
    write_key(tmp_path / "rsa.pem", rsa.generate_private_key(65537, 2048))
    before = (copy / SIGNATURE).read_bytes()
    for key, words in (
        (tmp_path / "none.pem", r"none\.pem is not a file"),
        (keys / "maker.pub", "maker.pub holds no PEM block of a private key"),
        (tmp_path / "rsa.pem", "rsa.pem cannot be used .*P-256"),
    ):
        with pytest.raises(InputError, match=words):
            hydrant.sign(copy, key)
    with pytest.raises(InputError, match=r"other.pem cannot be used .*does not match"):
        hydrant.sign(copy, keys / "other.pem", certificate=keys / "maker-certificate.pem")
    with pytest.raises(InputError, match=r"root.pem has no certificate"):
        hydrant.sign(copy, keys / "maker.pem", chain=keys / "root.pem")
    with pytest.raises(InputError, match=r"maker.pem holds no PEM block of a public key or certificate"):
        hydrant.load(copy, trust=keys / "maker.pem")
    assert (copy / SIGNATURE).read_bytes() == before


def test_command_line(copy: Path, keys: Path, inputs: Path) -> None:
    strip(copy)
    done = stdout_of("sign", copy, "--key", keys / "maker.pem", "--json")
    assert json.loads(done) == {"signature": str(copy / SIGNATURE)}
    shown = run_cli("inspect", copy, "--trust", keys / "maker.pub")
    assert f"the owner of {keys / 'maker.pub'} signed these files" in shown.stdout
    assert "not checked; give --trust" in run_cli("inspect", copy).stdout
    words = ["predict", copy, "--input", inputs, "--backend", "onnxruntime", "--trust"]
    assert run_cli(*words, keys / "maker.pub").returncode == 0
    refused = run_cli(*words, keys / "other.pub")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stdout == ""


def cpp(runner: Path, folder: Path, inputs: Path, trust: Path) -> subprocess.CompletedProcess[str]:
    words = [str(runner), str(folder), "--input", str(inputs), "--backend", "onnxruntime", "--trust", str(trust)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.savez(tmp_path / "inputs.npz", **feeds("bert"))
    return tmp_path / "inputs.npz"


def test_cpp_trusts_whom_python_trusts(runner: Path, copy: Path, keys: Path, inputs: Path, tmp_path: Path) -> None:
    assert len(cpp(runner, copy, inputs, keys / "maker.pub").stdout.splitlines()) == 4
    other = cpp(runner, copy, inputs, keys / "other.pub")
    assert (other.returncode, other.stdout) == (2, "")
    assert "other.pub signed (the signature is another's)" in other.stderr
    for curve in (ec.SECP384R1(), ec.SECP521R1()):
        public = write_key(tmp_path / "more.pem", ec.generate_private_key(curve))
        hydrant.sign(copy, tmp_path / "more.pem")
        assert cpp(runner, copy, inputs, public).returncode == 0
    hydrant.sign(copy, keys / "maker.pem", certificate=keys / "maker-certificate.pem")
    assert cpp(runner, copy, inputs, keys / "root.pem").returncode == 0
    assert "issuer certificate" in cpp(runner, copy, inputs, keys / "other-root.pem").stderr
    far = {"certificate": keys / "far-certificate.pem"}
    hydrant.sign(copy, keys / "maker.pem", **far, chain=keys / "between.pem")
    assert cpp(runner, copy, inputs, keys / "root.pem").returncode == 0
    hydrant.sign(copy, keys / "maker.pem", **far)
    assert "issuer certificate" in cpp(runner, copy, inputs, keys / "root.pem").stderr
    hydrant.sign(copy, keys / "maker.pem", certificate=keys / "mute-certificate.pem")
    assert "its certificate cannot be used for signing" in cpp(runner, copy, inputs, keys / "root.pem").stderr
    refused = cpp(runner, copy, inputs, keys / "maker.pem")
    assert (refused.returncode, "holds no PEM block of a public key" in refused.stderr) == (2, True)
    for key in (rsa.generate_private_key(65537, 2048), *map(ec.generate_private_key, (ec.SECP256K1(), BRAINPOOL))):
        public = write_key(tmp_path / "other.pem", key)
        assert "expected a key of the curves P-256" in cpp(runner, copy, inputs, public).stderr


def sign_again(folder: Path, key: ec.EllipticCurvePrivateKey, kind: str, digest: hashes.HashAlgorithm) -> None:
    """Sign the same statement as another kind of document, or with a key whose certificate is put beside it."""
    document = json.loads((folder / SIGNATURE).read_bytes())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    message = b" ".join([b"DSSEv1", str(len(kind)).encode(), kind.encode(), str(len(payload)).encode(), payload])
    signature = base64.b64encode(key.sign(message, ec.ECDSA(digest))).decode()
    document["dsseEnvelope"] |= {"payloadType": kind, "signatures": [{"sig": signature}]}
    issued = certificate("maker", key).public_bytes(serialization.Encoding.DER)
    chain = {"certificates": [{"rawBytes": base64.b64encode(issued).decode()}]}
    document["verificationMaterial"] = {"x509CertificateChain": chain}
    (folder / SIGNATURE).write_text(json.dumps(document))
    (folder.parent / "issued.pem").write_bytes(x509.load_der_x509_certificate(issued).public_bytes(PEM))


def test_what_the_maker_signed_as_something_else_is_no_signature(
    runner: Path, copy: Path, keys: Path, inputs: Path
) -> None:
    maker: Any = serialization.load_pem_private_key((keys / "maker.pem").read_bytes(), None)
    sign_again(copy, maker, "application/json", hashes.SHA256())
    assert "it signs 'application/json', not application/vnd" in cpp(runner, copy, inputs, keys / "maker.pub").stderr
    with pytest.raises(BundleError, match="is not what the owner of"):
        check_signature(copy, keys / "maker.pub")
    sign_again(copy, ec.generate_private_key(BRAINPOOL), "application/vnd.in-toto+json", hashes.SHA384())
    assert "P-256" in cpp(runner, copy, inputs, copy.parent / "issued.pem").stderr


@pytest.mark.parametrize("alter", [alter for alter, _ in ALTERATIONS])
def test_cpp_refuses_what_was_altered_since(
    runner: Path, copy: Path, keys: Path, inputs: Path, alter: Callable[[Path], None]
) -> None:
    alter(copy)
    refused = cpp(runner, copy, inputs, keys / "maker.pub")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1
    assert "signed" in refused.stderr
