"""Signatures of bundles, by the OpenSSF model-signing standard (a Sigstore bundle over an in-toto statement).

Digests in a manifest detect damage; a signature (``hydrant.sig``) detects attackers. It covers every file of the
folder, so sign last: any later addition, such as a report or an engine, invalidates it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import BundleError, InputError, cut, listing, require
from .hub_download import Snapshot, is_foreign_link
from .manifest import MANIFEST
from .staging import PURPOSE, flush, locked, sha256_of, stage_in, stages
from .store import Bundle, resolve

SIGNATURE = "hydrant.sig"
PASSWORD = "HYDRANT_KEY_PASSWORD"  # environment variable with the private key's password
MAX_SIGNATURE_BYTES = 64 * 2**20
MAX_PEM_BYTES = 2**20


def sign(
    bundle: Bundle | str | Path,
    key: str | Path,
    *,
    certificate: str | Path | None = None,
    chain: str | Path | None = None,
) -> Path:
    """Sign a bundle, the last step before it ships: anyone with the public key can verify your files.

    Every file is first compared with the manifest, and unlisted files are rejected. The
    signature follows the OpenSSF model-signing specification 1.0 (ECDSA over P-256, P-384 or P-521), so its
    own command line, ``model_signing verify``, can check it, too.

    Args:
        bundle: bundle folder to sign. In Python also an open ``Bundle``.
        key: PEM file of your private key (elliptic curve). The password of an encrypted key is read from the
            environment variable HYDRANT_KEY_PASSWORD.
        certificate: PEM file of the key's certificate, for verifiers who trust its issuer.
        chain: PEM file of the intermediate certificates.

    Returns:
        The path of the signature, ``hydrant.sig`` in the bundle, which replaces an earlier one.

    Raises:
        BundleError: a file is missing, altered, a link or not listed.
        InputError: the key, the certificate or the chain is unusable, the certificate is not valid today, or
            the folder cannot be written.
        MissingExtraError: model-signing is not installed.
    """
    signing = _library("signing")
    bundle = resolve(bundle)
    bundle.check_own()
    private = _pem(key, "PRIVATE KEY")
    certificate, chain = (None if each is None else _pem(each, "CERTIFICATE") for each in (certificate, chain))
    if chain is not None and certificate is None:
        raise InputError(f"chain {chain} has no certificate; pass the key's certificate with --certificate, too")
    if certificate is not None:
        _check_time(certificate)
    for name in bundle.manifest["files"]:
        bundle.file(name)
    _check_whole(bundle)
    config = signing.Config()
    with _blaming_key(private):
        if certificate is not None:
            if os.environ.get(PASSWORD):
                raise InputError(f"{PASSWORD} is set, but a key with a certificate must be unencrypted")
            certificates = {"signing_certificate": certificate, "certificate_chain": [chain or certificate]}
            config.use_certificate_signer(private_key=private, **certificates)
        else:
            password = os.environ.get(PASSWORD)
            config.use_elliptic_key_signer(private_key=private, password=password.encode() if password else None)
    place = bundle.path / SIGNATURE
    hashing = _library("hashing").Config()
    with stage_in(bundle.path) as stage, locked(bundle.path):
        passing = [each.name for each in stages(bundle.path, PURPOSE)]  # also those of other processes
        hashing.set_ignored_paths(paths=[SIGNATURE, *passing], ignore_git_paths=False)
        config.set_hashing_config(hashing).sign(bundle.path, stage / SIGNATURE)
        flush(stage / SIGNATURE)
        (stage / SIGNATURE).replace(place)
    return place


def check_signature(bundle: Bundle | str | Path, trust: str | Path) -> Bundle:
    """Return the bundle if the trusted key or certificate signed it as it is now."""
    verifying, pem = _library("verifying"), _pem(trust, "PUBLIC KEY", "CERTIFICATE")
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    place = signature_file(bundle)
    if place is None or is_foreign_link(bundle.path, place):
        raise BundleError(f"bundle {bundle.path} is not signed; expected {SIGNATURE} from `hydrant sign`")
    if place.stat().st_size > MAX_SIGNATURE_BYTES:
        raise BundleError(f"{place} is larger than {MAX_SIGNATURE_BYTES} bytes; this is not a bundle's signature")
    for name in bundle.manifest["files"]:
        bundle.fetch(name)
    _check_whole(bundle)
    config = verifying.Config()
    if Snapshot.of(bundle.path) is not None:  # whose links were checked
        hashing = _library("hashing").Config().set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
        config.set_hashing_config(hashing.set_allow_symlinks(True))
    with _blaming_key(pem):
        if b"PUBLIC KEY" in pem.read_bytes():
            config.use_elliptic_key_verifier(public_key=pem)
        else:
            config.use_certificate_verifier(certificate_chain=[pem])
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints its warnings
            config.verify(bundle.path, place)
    except Exception as error:  # several libraries, without a common type
        why = _changed(bundle.path, place) or str(error) or type(error).__name__
        wrong = f"bundle {bundle.path} is not what the owner of {pem} signed ({cut(why, 300)})"
        raise BundleError(f"{wrong}; download it again, or sign it again with `hydrant sign`") from error
    if MANIFEST not in _statement(place) or bundle.now().manifest != bundle.manifest:
        raise BundleError(f"the signature of {bundle.path} does not cover its {MANIFEST}; sign it with `hydrant sign`")
    return bundle


def signature_file(bundle: Bundle) -> Path | None:
    """The signature of a bundle, downloaded if it is on the Hub; ``None`` without one."""
    snapshot, place = Snapshot.of(bundle.path), bundle.path / SIGNATURE
    return place if place.is_file() or (snapshot is not None and snapshot.has(SIGNATURE)) else None


def whole_bundle(bundle: Bundle) -> dict[str, Path]:
    """Every file of a bundle, checked, with its manifest and signature: name → path."""
    paths = {**{name: bundle.file(name) for name in bundle.manifest["files"]}, MANIFEST: bundle.path / MANIFEST}
    signature = signature_file(bundle)
    return paths if signature is None else {**paths, SIGNATURE: signature}


def _statement(place: Path) -> dict[str, str]:
    """The digests in a signature of whole files: file name → SHA-256."""
    statement = json.loads(base64.b64decode(json.loads(place.read_bytes())["dsseEnvelope"]["payload"]))
    return {one["name"]: one["digest"] for one in statement["predicate"]["resources"]}


def _changed(folder: Path, place: Path) -> str:
    """Names of files that differ from a signature, in words; empty if it cannot be read."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    try:
        signed = _statement(place)
        differ = [name for name in signed if name not in present or sha256_of(folder / name) != signed[name]]
    except Exception:  # a forged signature, which was rejected already
        return ""
    parts = {"changed or missing": differ, "added": sorted(present - {SIGNATURE} - set(signed))}
    return "; ".join(f"{words}: {listing(names)}" for words, names in parts.items() if names)


def _check_whole(bundle: Bundle) -> None:
    """Reject files that the manifest does not list, and links, whose targets are not signed."""
    listed = {MANIFEST, SIGNATURE, *bundle.manifest["files"]}
    passing = stages(bundle.path, PURPOSE)  # of running writers; the library checks them against a signature
    for path in sorted(bundle.path.rglob("*")):
        if any(path == stage or stage in path.parents for stage in passing):
            continue
        name = path.relative_to(bundle.path).as_posix()
        if is_foreign_link(bundle.path, path) or (path.exists() and not path.is_dir() and not path.is_file()):
            raise BundleError(f"{path} is a link or a special file; signatures cover regular files only: replace it")
        if path.is_file() and name not in listed:
            raise BundleError(f"{path} is not listed in {MANIFEST}, but signatures cover the whole folder: remove it")


def _pem(path: str | Path, *kinds: str) -> Path:
    path = Path(path)
    if not path.is_file() or path.stat().st_size > MAX_PEM_BYTES:
        raise InputError(f"{path} is not a file of at most {MAX_PEM_BYTES} bytes; expected a PEM file")
    if not any(f"{kind}-----".encode() in path.read_bytes() for kind in kinds):
        raise InputError(f"{path} holds no PEM block of a {' or '.join(kinds).lower()}; expected one")
    return path


def _check_time(certificate: Path) -> None:
    """Reject an expired or future certificate for signing, although checks of signatures accept it."""
    with _blaming_key(certificate):
        x509 = require("cryptography.x509", "sign", "sign bundles").load_pem_x509_certificate(certificate.read_bytes())
    begin, end = x509.not_valid_before_utc, x509.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        valid = f"from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
        raise InputError(f"the certificate {certificate} is valid {valid}; expected one that is valid now")


@contextlib.contextmanager
def _blaming_key(path: Path) -> Any:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # cryptography, OpenSSL and model-signing, without a common type
        reason = "it has no elliptic curve" if isinstance(error, AttributeError) else str(error) or type(error).__name__
        wanted = f"a key of curve P-256, P-384 or P-521 (its password in {PASSWORD}), or its certificate"
        raise InputError(f"{path} cannot be used ({cut(reason, 200)}); expected {wanted}") from error


def _library(module: str) -> ModuleType:
    require("OpenSSL", "sign", "sign bundles and check signatures")
    return require(f"model_signing.{module}", "sign", "sign bundles and check signatures")
