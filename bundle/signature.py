"""Signatures of bundles, by the OpenSSF model-signing standard (a Sigstore bundle over an in-toto statement).

Digests in a manifest detect damage; a signature (``hydrant.sig``) detects attackers. It covers every file of the
folder and is made last: each later addition, such as a report or an engine, invalidates it.
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
from .manifest import MANIFEST
from .staging import PURPOSE, flush, locked, owned_folder, sha256_of, stages, telling
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
    """Sign a bundle, so that whoever trusts the key knows its files for yours; the last step before it ships.

    Every file is first compared with the manifest, and a file that the manifest does not list is refused. The
    signature follows the OpenSSF model-signing specification 1.0 (ECDSA over P-256, P-384 or P-521), so that its
    own command line, ``model_signing verify``, checks it, too.

    Args:
        bundle: bundle folder to sign. In Python also an open ``Bundle``.
        key: PEM file of your private key (elliptic curve). The password of an encrypted key is read from the
            environment variable HYDRANT_KEY_PASSWORD.
        certificate: PEM file of the key's certificate, for verifiers who trust its issuer.
        chain: PEM file of the intermediate certificates.

    Returns:
        The path of the signature, ``hydrant.sig`` in the bundle; an earlier one is replaced.

    Raises:
        BundleError: a file is missing, altered, a link or not listed.
        InputError: the key, the certificate or the chain cannot be used, today is outside the certificate's time, or
            the folder cannot be written.
        MissingExtraError: model-signing is not installed.
    """
    signing = _library("signing")
    bundle = resolve(bundle)
    private = _pem(key, "PRIVATE KEY")
    certificate, chain = (None if each is None else _pem(each, "CERTIFICATE") for each in (certificate, chain))
    if chain is not None and certificate is None:
        raise InputError(f"the chain {chain} is given without a certificate; give that of the key, too")
    if certificate is not None:
        _check_time(certificate)
    for name in bundle.manifest["files"]:
        bundle.file(name)
    _check_whole(bundle)
    config = signing.Config()
    with _blaming_key(private):
        if certificate is not None:
            if os.environ.get(PASSWORD):
                raise InputError(f"{PASSWORD} is set, but a key with a certificate is read without; decrypt the key")
            given = {"signing_certificate": certificate, "certificate_chain": [chain or certificate]}  # never none
            config.use_certificate_signer(private_key=private, **given)
        else:
            password = os.environ.get(PASSWORD)
            config.use_elliptic_key_signer(private_key=private, password=password.encode() if password else None)
    place = bundle.path / SIGNATURE
    hashing = _library("hashing").Config()
    unwritable = telling(f"cannot write into bundle {bundle.path}")
    with unwritable, owned_folder(bundle.path, PURPOSE) as stage, locked(bundle.path):
        passing = [each.name for each in stages(bundle.path, PURPOSE)]  # others' too: they will be gone
        hashing.set_ignored_paths(paths=[SIGNATURE, *passing], ignore_git_paths=False)
        config.set_hashing_config(hashing).sign(bundle.path, stage / SIGNATURE)
        flush(stage / SIGNATURE)
        (stage / SIGNATURE).replace(place)
    return place


def check_signature(bundle: Bundle | str | Path, trust: str | Path) -> Bundle:
    """The bundle whose manifest a signature by the trusted key or certificate covers as it is now; refuses others."""
    verifying, pem = _library("verifying"), _pem(trust, "PUBLIC KEY", "CERTIFICATE")
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    place = bundle.path / SIGNATURE
    if not place.is_file() or place.is_symlink():
        raise BundleError(f"bundle {bundle.path} is not signed; expected {SIGNATURE}, which `hydrant sign` writes")
    if place.stat().st_size > MAX_SIGNATURE_BYTES:
        raise BundleError(f"{place} is larger than {MAX_SIGNATURE_BYTES} bytes; this is no signature of a bundle")
    _check_whole(bundle)
    config = verifying.Config()
    with _blaming_key(pem):
        if b"PUBLIC KEY" in pem.read_bytes():
            config.use_elliptic_key_verifier(public_key=pem)
        else:
            config.use_certificate_verifier(certificate_chain=[pem])
    try:
        with contextlib.redirect_stdout(sys.stderr):  # the library prints its warnings
            config.verify(bundle.path, place)
    except Exception as error:  # of several libraries, none of which names its exceptions
        why = _changed(bundle.path, place) or str(error) or type(error).__name__
        wrong = f"bundle {bundle.path} is not what the owner of {pem} signed ({cut(why, 300)})"
        raise BundleError(f"{wrong}; get it again from its maker, or sign it again with `hydrant sign`") from error
    if MANIFEST not in _statement(place) or bundle.now().manifest != bundle.manifest:
        raise BundleError(f"the signature of {bundle.path} does not cover its {MANIFEST}; sign it with `hydrant sign`")
    return bundle


def _statement(place: Path) -> dict[str, str]:
    """The digests that a signature holds: file name → SHA-256, as far as it signs whole files."""
    statement = json.loads(base64.b64decode(json.loads(place.read_bytes())["dsseEnvelope"]["payload"]))
    return {one["name"]: one["digest"] for one in statement["predicate"]["resources"]}


def _changed(folder: Path, place: Path) -> str:
    """Which files differ from what a signature says of them, in words; nothing where it cannot be read."""
    present = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    try:
        signed = _statement(place)
        differ = [name for name in signed if name not in present or sha256_of(folder / name) != signed[name]]
    except Exception:  # whatever a forged signature makes of reading it: the signature was refused already
        return ""
    parts = {"changed or missing": differ, "added": sorted(present - {SIGNATURE} - set(signed))}
    return "; ".join(f"{words}: {listing(names)}" for words, names in parts.items() if names)


def _check_whole(bundle: Bundle) -> None:
    """Refuse files that no manifest speaks of, and links, which lead out of what is signed."""
    listed = {MANIFEST, SIGNATURE, *bundle.manifest["files"]}
    passing = stages(bundle.path, PURPOSE)  # of who writes now; when a signature is checked, the library finds these
    for path in sorted(bundle.path.rglob("*")):
        if any(path == stage or stage in path.parents for stage in passing):
            continue
        name = path.relative_to(bundle.path).as_posix()
        if path.is_symlink() or (path.exists() and not path.is_dir() and not path.is_file()):
            raise BundleError(f"{path} is a link or a special file; a signature covers regular files: replace it")
        if path.is_file() and name not in listed:
            raise BundleError(f"{path} is not listed in {MANIFEST}; a signature covers the whole folder: remove it")


def _pem(path: str | Path, *kinds: str) -> Path:
    path = Path(path)
    if not path.is_file() or path.stat().st_size > MAX_PEM_BYTES:
        raise InputError(f"{path} is not a file of at most {MAX_PEM_BYTES} bytes; expected a PEM file")
    content = path.read_bytes()
    if not any(f"{kind}-----".encode() in content for kind in kinds):
        raise InputError(f"{path} holds no PEM block of a {' or '.join(kinds).lower()}; expected one")
    return path


def _check_time(certificate: Path) -> None:
    """Refuse to sign with a certificate outside its time: that is an oversight, though those who check take it."""
    with _blaming_key(certificate):
        found = require("cryptography.x509", "sign", "sign bundles").load_pem_x509_certificate(certificate.read_bytes())
    begin, end = found.not_valid_before_utc, found.not_valid_after_utc
    if not begin <= datetime.now(UTC) <= end:
        valid = f"from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
        raise InputError(f"the certificate {certificate} is valid {valid}; expected one that is valid now")


@contextlib.contextmanager
def _blaming_key(path: Path) -> Any:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of cryptography, OpenSSL and model-signing, which name no common type
        kind = isinstance(error, AttributeError)  # what model-signing ends with over a key that has no curve, as of RSA
        reason = "its kind is another" if kind else str(error) or type(error).__name__
        wanted = f"a key of the curves P-256, P-384 or P-521 (its password in {PASSWORD}), or a certificate of one"
        raise InputError(f"{path} cannot be used ({cut(reason, 200)}); expected {wanted}") from error


def _library(module: str) -> ModuleType:
    require("OpenSSL", "sign", "sign bundles and check signatures")
    return require(f"model_signing.{module}", "sign", "sign bundles and check signatures")
