"""`dpgen sign` and `dpgen verify --signer`: a signature of a good release, and none that is not its signer's."""

import re

import pytest
from contracts.sealed import rewrite

from lightning_dpgen import verify
from lightning_dpgen.release.publishing.signature import BadKey, new_key

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Return two keys; the second has a passphrase."""
    folder = tmp_path_factory.mktemp("keys")
    for name, passphrase in (("own", None), ("other", b"open sesame")):
        new_key(folder / name, passphrase)
    return folder


def test_a_signed_release_is_its_signers(dpgen, release, keys):
    assert "not signed" in dpgen("verify", release)[1]
    status, out, err = dpgen("verify", release, "--signer", keys / "own.pub")
    assert status == 2 and "BAD  it is not signed" in out
    status, out, err = dpgen("sign", release, "--key", keys / "own")
    assert status == 0 and not err and (release / "privacy.json.sig").stat().st_size == 64
    status, out, _ = dpgen("verify", release, "--signer", keys / "own.pub")
    assert status == 0 and "ok   the certificate, and so each file, is signed by" in out and "CONSISTENT" in out
    status, out, _ = dpgen("verify", release)
    assert status == 0 and "was not checked against anyone" in out
    assert dpgen("verify", release, "--signer", keys / "other.pub")[0] == 2
    assert verify(release, keys / "own.pub").good and not verify(release, keys / "other.pub").good
    status, _, err = dpgen("sign", release, "--key", keys / "own")
    assert status == 2 and "signed already" in err
    # Its other uses do not mind.
    assert dpgen("sample", release, "-n", 2)[0] == 0


def test_a_certificate_that_was_sealed_again_is_not_signed(dpgen, release, keys):
    """Nothing but the signature tells: all numbers and hashes of the forged release agree."""
    assert dpgen("sign", release, "--key", keys / "own")[0] == 0
    rewrite(release, lambda certificate: certificate["versions"].__setitem__("torch", "1.0"))
    assert dpgen("verify", release)[0] == 0
    status, out, _ = dpgen("verify", release, "--signer", keys / "own.pub")
    assert status == 2 and "the signature is not one of this certificate" in out


def test_a_changed_signature_and_a_foreign_file_of_its_name_are_refused(dpgen, release, keys):
    assert dpgen("sign", release, "--key", keys / "own")[0] == 0
    path = release / "privacy.json.sig"
    good = path.read_bytes()
    path.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    assert dpgen("verify", release, "--signer", keys / "own.pub")[0] == 2
    path.write_bytes(good + good)
    for words in ((), ("--signer", keys / "own.pub")):
        status, out, err = dpgen("verify", release, *words)
        assert status == 2 and "privacy.json.sig" in out and not err


def test_a_key_with_a_passphrase_signs(dpgen, release, keys, tmp_path):
    status, _, err = dpgen("sign", release, "--key", keys / "other")
    assert status == 2 and "protected by a passphrase" in err
    (tmp_path / "word").write_text("open sesame\n")
    assert dpgen("sign", release, "--key", keys / "other", "--passphrase-file", tmp_path / "word")[0] == 0
    assert dpgen("verify", release, "--signer", keys / "other.pub")[0] == 0


def test_a_release_that_is_refused_is_not_signed(dpgen, release, keys):
    (release / "extra").write_text("more")
    status, _, err = dpgen("sign", release, "--key", keys / "own")
    assert status == 2 and "file too many: extra" in err and not (release / "privacy.json.sig").exists()


def test_a_new_key_is_made_and_told(dpgen, tmp_path):
    status, out, _ = dpgen("sign", "--new-key", tmp_path / "k")
    assert status == 0 and "fingerprint" in out and (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    assert dpgen("sign", "--new-key", tmp_path / "k")[0] == 2


def test_a_key_that_others_may_use_gets_a_warning(dpgen, release, tmp_path):
    assert dpgen("sign", "--new-key", tmp_path / "k")[0] == 0
    (tmp_path / "k").chmod(0o644)
    status, _, err = dpgen("sign", release, "--key", tmp_path / "k")
    assert status == 0 and err.startswith("dpgen: warning:") and "chmod 600" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sign"], "expected dpgen sign RELEASE --key KEYFILE"),
        (["sign", "."], "expected dpgen sign RELEASE --key KEYFILE"),
        (["sign", ".", "--new-key", "k"], "signs nothing"),
        (["sign", ".", "--key", "nowhere"], "no such file"),
        (["sign", ".", "--key", "nowhere", "--passphrase-file", "nowhere"], "no such file"),
        (["verify", ".", "--signer", "nowhere"], "--signer .*no such file"),
    ],
)
def test_mistakes_are_told_in_one_line(dpgen, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    status, out, err = dpgen(*words)
    assert status == 2 and not out and re.search(told, err) and len(err.splitlines()) == 1 and not list(tmp_path.iterdir())


def test_a_bad_signer_is_an_error_of_the_caller(release):
    with pytest.raises(BadKey, match="no such file"):
        verify(release, "nowhere.pub")


def test_no_private_key_is_written_into_a_release(dpgen, release):
    status, _, err = dpgen("sign", "--new-key", release / "k", "--passphrase-file", release / "README.md")
    assert status == 2 and "its folder is a release" in err and not (release / "k").exists()
