"""The signature of a release: Ed25519 (RFC 8032) over the bytes of its certificate, which holds a hash of every other file.

It is 64 bytes in a file of its own, as OpenSSL writes and reads them, so that anybody can check it without this software:

    openssl pkeyutl -verify -pubin -inkey key.pub -rawin -in privacy.json -sigfile privacy.json.sig

It shows that the holder of a private key has signed these very files. It shows neither who that is, which the reader has to
know of the public key from elsewhere, nor that the run took place as the certificate describes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_public_key,
)

from lightning_dpgen.common.folders import owner_only, sync_files
from lightning_dpgen.common.nearest_word import suggest_file
from lightning_dpgen.common.strict_json import MOST_BYTES
from lightning_dpgen.release.drawing.opened import open_ordinary
from lightning_dpgen.release.files import CERTIFICATE, SIGNATURE

SIZE = 64
PUBLIC = ".pub"
# A key of this kind has some hundred bytes, a name that a person has put beside it included.
_LARGEST_KEY = 1 << 14
# The field and the constant of the curve, -x^2 + y^2 = 1 + d x^2 y^2 (RFC 8032, section 5.1).
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_MAKE = "expected an Ed25519 key, as dpgen sign --new-key or openssl genpkey -algorithm ed25519 makes it"


class BadKey(ValueError):
    """A file that holds no key of the kind that is asked for, or cannot be used."""


def new_key(path: Path, passphrase: bytes | None = None) -> Path:
    """Write a new private key, which its owner alone may read, and its public key beside it; return the path of that.

    Both are PEM: PKCS 8, encrypted if there is a passphrase, and SubjectPublicKeyInfo.

    Raises:
        BadKey: if one of the files is there, or cannot be written; nothing is ever overwritten.

    Example:
        >>> import tempfile
        >>> place = Path(tempfile.mkdtemp()) / "bureau.key"
        >>> new_key(place).name, oct(place.stat().st_mode & 0o777)
        ('bureau.key.pub', '0o600')
    """
    public = path.with_name(path.name + PUBLIC)
    if os.path.lexists(path.parent / CERTIFICATE):
        raise BadKey(f"{path}: its folder is a release, which may be published: choose another place for a private key")
    for own in (path, public):
        if os.path.lexists(own):
            raise BadKey(f"{own}: exists already, and a key is never overwritten; choose another name")
    key = Ed25519PrivateKey.generate()
    protection = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        with open(path, "xb", opener=owner_only) as file:
            file.write(secret)
        with open(public, "xb") as file:
            file.write(public_pem)
    except OSError as error:
        raise BadKey(f"{error.filename or path}: cannot be written ({error.strerror})") from None
    return public


def read_private(path: Path, ask: Callable[[], bytes | None]) -> Ed25519PrivateKey:
    """Return the private key in a PEM file, as this program or OpenSSL writes it.

    Args:
        ask: gives the passphrase of a key that has one; None where it cannot.

    Raises:
        BadKey: for anything else; nothing of the file is in the message.
    """
    text = _read(path)
    if b"PRIVATE KEY-----" not in text:
        is_public = b"PUBLIC KEY-----" in text or text.lstrip().startswith(b"ssh-")
        what = "a public key: expected the private one" if is_public else f"no private key in PEM form: {_MAKE}"
        raise BadKey(f"{path}: holds {what}")
    passphrase = None
    if b"ENCRYPTED" in text:
        passphrase = ask()
        if not passphrase:
            raise BadKey(f"{path}: is protected by a passphrase; give it by --passphrase-file FILE, or at a terminal")
    try:
        key = load_pem_private_key(text, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        told = "the passphrase is wrong, or the file is damaged" if passphrase else f"cannot be read as one: {_MAKE}"
        told = f"in a form of OpenSSH: {_MAKE}" if b"OPENSSH" in text else told
        raise BadKey(f"{path}: a private key, but {told}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey(f"{path}: a private key of another kind than Ed25519: {_MAKE}")
    return key


def read_public(path: Path) -> Ed25519PublicKey:
    """Return the public key in a file: PEM, or the line of OpenSSH that begins with ssh-ed25519.

    Raises:
        BadKey: for anything else.
    """
    text = _read(path)
    if b"PRIVATE KEY" in text:
        raise BadKey(f"{path}: holds a private key, which only its owner has; expected the public one, {path.name}{PUBLIC}")
    expected = "expected the public key of the signer: PEM, or a line that begins with ssh-ed25519"
    try:
        load = load_ssh_public_key if text.lstrip().startswith(b"ssh-") else load_pem_public_key
        key = load(text.strip())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadKey(f"{path}: holds no public key: {expected}") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey(f"{path}: a key of another kind than Ed25519: {expected}")
    if not _has_secret(key.public_bytes(Encoding.Raw, PublicFormat.Raw)):
        raise BadKey(f"{path}: no private key belongs to it, and anyone can sign for it: {expected}")
    return key


def _has_secret(raw: bytes) -> bool:
    """Tell whether the 32 bytes of a public key are a point that a private key may have.

    There are 8 points of an order that divides 8: signatures that hold for one of them are made without a secret. Their y
    is 0, 1, -1, or one whose double is a point with y = 0, which is a root of d y^4 + 2 y^2 - 1. Bytes of no point, or of
    one that is written in another way than RFC 8032 says, are no key of anybody. `cryptography` loads all of them, and
    OpenSSL accepts such signatures, so that this check is left to us; a scalar s of L or more it refuses itself.
    """
    y = int.from_bytes(raw, "little") & (2**255 - 1)
    square = y * y % _P
    small = y * (square - 1) * (_D * square * square + 2 * square - 1) % _P == 0
    # The point has an x, whose square is this quotient, if that is a square.
    root = (square - 1) * pow(_D * square + 1, -1, _P) % _P
    return y < _P and not small and pow(root, (_P - 1) // 2, _P) == 1


def fingerprint(key: Ed25519PublicKey) -> str:
    """Return a name for a public key, by which people compare it: the first 32 digits of the sha256 of its 32 bytes.

    Example:
        >>> fingerprint(Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())
        '139e3940e64b5491722088d9a0d74162'
    """
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:32]


def sign(folder: Path, key: Ed25519PrivateKey) -> Path:
    """Write the signature of a release into it, and return its path. Whether the release is good is the caller's to check.

    Raises:
        FileExistsError: if it is signed already; a signature is never overwritten.
        OSError: if it cannot be written.
        ValueError: if there is no certificate that can be read.
    """
    path = folder / SIGNATURE
    if os.path.lexists(path):
        raise FileExistsError(f"{path}: is signed already, and a signature is never overwritten; remove it first")
    signed = key.sign(_certificate(folder))
    with open(path, "xb") as file:
        file.write(signed)
    sync_files(folder)
    return path


def is_signed_by(folder: Path, signer: Ed25519PublicKey) -> bool:
    """Return True if a release holds a signature of its certificate by this key.

    Raises:
        ValueError: if the certificate or the signature cannot be read, or the signature is none.
    """
    try:
        signer.verify(read_signature(folder), _certificate(folder))
    except InvalidSignature:
        return False
    return True


def read_signature(folder: Path) -> bytes:
    """Return the 64 bytes of the signature of a release, which may come from anybody.

    Raises:
        ValueError: if they are no ordinary file of 64 bytes.
    """
    with open_ordinary(folder / SIGNATURE, SIZE) as file:
        signature = file.read(SIZE + 1)
    if len(signature) != SIZE:
        raise ValueError(f"{SIGNATURE} has {len(signature)} bytes: expected {SIZE}, the signature of {CERTIFICATE}")
    return signature


def _certificate(folder: Path) -> bytes:
    with open_ordinary(folder / CERTIFICATE, MOST_BYTES) as file:
        return file.read()


def _read(path: Path) -> bytes:
    if not os.path.lexists(path):
        raise BadKey(f"{path}: there is no such file{suggest_file(path)}")
    try:
        with open_ordinary(path, _LARGEST_KEY, links=True) as file:
            return file.read()
    except (ValueError, OSError) as error:
        raise BadKey(f"{path}: {error}") from None
