"""A signature is accepted of the signer, for these very files, and in no other form; keys are their owner's alone."""

import base64
import os
import random
import shutil
import stat
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lightning_dpgen.release.publishing.signature import (
    SIZE,
    BadKey,
    fingerprint,
    is_signed_by,
    new_key,
    read_private,
    read_public,
    read_signature,
    sign,
)

CERTIFICATE = b'{"epsilon": 1.0, "files": {"model.safetensors": "00"}}\n'


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "release"
    made.mkdir()
    (made / "privacy.json").write_bytes(CERTIFICATE)
    return made


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "own.key")
    return tmp_path / "own.key"


def _none():
    return None


def test_the_signature_is_that_of_rfc_8032(folder, tmp_path):
    """Section 7.1, test 2: the one byte 72."""
    secret = "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"
    expected = (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aee"
        "b00d291612bb0c00"
    )
    (folder / "privacy.json").write_bytes(b"\x72")
    path = sign(folder, Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)))
    assert path.read_bytes().hex() == expected


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_checks_and_makes_the_same(folder, key, tmp_path):
    """Another program is the oracle, both ways, with a key that has a passphrase, too."""
    sign(folder, read_private(key, _none))
    check = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", f"{key}.pub", "-rawin", "-in", folder / "privacy.json"]
    check += ["-sigfile", folder / "privacy.json.sig"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    (folder / "privacy.json").write_bytes(CERTIFICATE + b" ")
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0
    theirs = tmp_path / "theirs.pem"
    subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519", "-aes256", "-pass", "pass:a b", "-out", theirs], check=True
    )
    made = read_private(theirs, lambda: b"a b")
    told = subprocess.run(
        ["openssl", "pkey", "-in", theirs, "-passin", "pass:a b", "-pubout"], check=True, capture_output=True
    )
    (tmp_path / "theirs.pub").write_bytes(told.stdout)
    assert fingerprint(read_public(tmp_path / "theirs.pub")) == fingerprint(made.public_key())


def test_no_changed_signature_is_accepted(folder, key):
    """Each of the 512 bits; and the same point of the curve with another scalar, which a lax check takes for the same."""
    path, signer = sign(folder, read_private(key, _none)), read_public(key.with_name("own.key.pub"))
    good = path.read_bytes()
    assert is_signed_by(folder, signer)
    for bit in range(8 * SIZE):
        changed = bytearray(good)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert not is_signed_by(folder, signer), bit
    order = 2**252 + 27742317777372353535851937790883648493
    scalar = int.from_bytes(good[32:], "little") + order
    path.write_bytes(good[:32] + scalar.to_bytes(32, "little"))
    assert not is_signed_by(folder, signer)
    path.write_bytes(good)
    assert is_signed_by(folder, signer)


def test_no_changed_certificate_is_accepted(folder, key):
    sign(folder, read_private(key, _none))
    signer = read_public(key.with_name("own.key.pub"))
    for place in range(len(CERTIFICATE)):
        for changed in (CERTIFICATE[:place], CERTIFICATE[:place] + b" " + CERTIFICATE[place:]):
            (folder / "privacy.json").write_bytes(changed)
            assert not is_signed_by(folder, signer)


def _link(path):
    path.with_name("elsewhere").write_bytes(bytes(SIZE))
    path.symlink_to(path.with_name("elsewhere"))


HOSTILE = {
    "a link": _link,
    "a pipe": os.mkfifo,
    "a folder": os.mkdir,
    "nothing in it": lambda path: path.write_bytes(b""),
    "a byte less": lambda path: path.write_bytes(bytes(SIZE - 1)),
    "a byte more": lambda path: path.write_bytes(bytes(SIZE + 1)),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere"),
}


@pytest.mark.parametrize("put", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_is_no_signature_is_refused(folder, put):
    put(folder / "privacy.json.sig")
    with pytest.raises(ValueError, match=r"privacy\.json\.sig"):
        read_signature(folder)


def test_neither_keys_nor_signatures_are_overwritten(folder, key):
    sign(folder, read_private(key, _none))
    with pytest.raises(FileExistsError, match="signed already"):
        sign(folder, read_private(key, _none))
    secret = key.read_bytes()
    for taken in (key, key.with_name("own.key.pub")):
        with pytest.raises(BadKey, match="exists already"):
            new_key(taken)
    key.rename(key.with_name("moved"))
    with pytest.raises(BadKey, match=r"own\.key\.pub: exists already"):
        new_key(key)
    assert key.with_name("moved").read_bytes() == secret and not key.exists()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_private_key_is_its_owners_alone_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        new_key(tmp_path / "k", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert b"ENCRYPTED" in (tmp_path / "k").read_bytes()


@pytest.mark.parametrize(
    ("passphrase", "told"), [(b"wrong", "passphrase is wrong"), (None, "protected by a passphrase"), (b"", "protected by")]
)
def test_a_wrong_passphrase_is_told_without_the_key(tmp_path, passphrase, told):
    new_key(tmp_path / "k", b"right")
    with pytest.raises(BadKey, match=told) as refused:
        read_private(tmp_path / "k", lambda: passphrase)
    assert "right" not in str(refused.value) and len(str(refused.value).splitlines()) == 1
    assert read_private(tmp_path / "k", lambda: b"right")


def test_keys_of_other_kinds_and_the_wrong_half_are_refused(tmp_path, key):
    others = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())
    for other in others:
        (tmp_path / "k").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        (tmp_path / "p").write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        with pytest.raises(BadKey, match="another kind"):
            read_private(tmp_path / "k", _none)
        with pytest.raises(BadKey, match="another kind"):
            read_public(tmp_path / "p")
    public = key.with_name("own.key.pub")
    with pytest.raises(BadKey, match="a public key: expected the private one"):
        read_private(public, _none)
    with pytest.raises(BadKey, match=r"a private key.*expected the public one, own\.key\.pub"):
        read_public(key)
    with pytest.raises(BadKey, match=r"no such file; did you mean \S+own\.key"):
        read_private(tmp_path / "onw.key", _none)


def test_a_line_of_openssh_is_a_public_key(key, tmp_path):
    own = read_private(key, _none).public_key()
    line = own.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (tmp_path / "id.pub").write_bytes(line + b" bureau@example.org\n")
    assert fingerprint(read_public(tmp_path / "id.pub")) == fingerprint(own)


def test_a_damaged_key_file_is_refused_in_one_line_or_is_another_key(tmp_path):
    """Fixed seed; 300 files with a few bytes changed, cut off or doubled, of all forms."""
    drawn = random.Random(5)
    new_key(tmp_path / "k")
    new_key(tmp_path / "e", b"x")
    ssh = read_public(tmp_path / "k.pub").public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    forms = [(tmp_path / name).read_bytes() for name in ("k", "k.pub")] + [ssh]
    forms.append((tmp_path / "e").read_bytes())
    for number in range(300):
        text = bytearray(forms[number % 4] if number % 40 == 3 else forms[number % 3])
        for _ in range(drawn.randrange(1, 4)):
            place = drawn.randrange(len(text))
            change = drawn.randrange(3)
            text[place : place + change] = bytes([drawn.randrange(256)]) * drawn.randrange(1, 3)
        (tmp_path / "damaged").write_bytes(text)
        for read in (lambda path: read_private(path, lambda: b"x"), read_public):
            try:
                read(tmp_path / "damaged")
            except BadKey as error:
                assert len(str(error).splitlines()) == 1


P, L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def _sum(a, b):
    """Add two points of the curve, as RFC 8032 does."""
    both = D * a[0] * b[0] * a[1] * b[1]
    return (
        (a[0] * b[1] + b[0] * a[1]) * pow(1 + both, -1, P) % P,
        (a[1] * b[1] + a[0] * b[0]) * pow(1 - both, -1, P) % P,
    )


def _times(number, point):
    found = (0, 1)
    for bit in bin(number)[2:]:
        found = _sum(found, found)
        found = _sum(found, point) if bit == "1" else found
    return found


def _point(y):
    """Return a point with this y; None where there is none."""
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    root = pow(square, (P + 3) // 8, P)
    return next(((x, y) for x in (root, root * pow(2, (P - 1) // 4, P) % P) if x * x % P == square), None)


def _as_file(path, raw):
    """Write 32 bytes as a public key in PEM, whatever they are."""
    wrapped = base64.b64encode(bytes.fromhex("302a300506032b6570032100") + raw).decode()
    path.write_text(f"-----BEGIN PUBLIC KEY-----\n{wrapped}\n-----END PUBLIC KEY-----\n")
    return path


def test_a_key_without_a_secret_is_no_signer(tmp_path):
    """The 8 points of small order, by the arithmetic of the curve; each with either sign, and written with p added."""
    points = [point for y in range(2, 30) if (point := _point(y)) is not None]
    small = {_times(L, point) for point in points}
    assert len(small) == 8 and all(_times(8, point) == (0, 1) for point in small)
    written = [y + more for _, y in small for more in (0, P) if y + more < 2**255]
    no_point = next(y for y in range(2, 60) if _point(y) is None)
    for y in [*written, no_point, P + 3]:
        for sign_of_x in (0, 1):
            raw = (y | sign_of_x << 255).to_bytes(32, "little")
            with pytest.raises(BadKey, match="no private key belongs to it, and anyone can sign for it"):
                read_public(_as_file(tmp_path / "k", raw))
    for _ in range(20):
        raw = Ed25519PrivateKey.generate().public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        assert read_public(_as_file(tmp_path / "k", raw)).public_bytes(Encoding.Raw, PublicFormat.Raw) == raw


def test_the_library_alone_would_accept_a_signature_that_anyone_can_make():
    """The neutral point as key, R the neutral point and s = 0: [s] B = R + [h] A for every message."""
    neutral = (1).to_bytes(32, "little")
    Ed25519PublicKey.from_public_bytes(neutral).verify(neutral + bytes(32), b"any certificate")


def test_a_private_key_in_a_form_of_openssh_is_told(tmp_path):
    secret = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "k").write_bytes(secret)
    with pytest.raises(BadKey, match="in a form of OpenSSH: expected an Ed25519 key, as dpgen sign --new-key"):
        read_private(tmp_path / "k", _none)
