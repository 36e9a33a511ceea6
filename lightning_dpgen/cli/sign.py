"""`dpgen sign`: a signature of a release by its publisher, and the keys for it."""

from __future__ import annotations

import getpass
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser
from lightning_dpgen.common.folders import place_of
from lightning_dpgen.release.files import read_certificate, release_folder
from lightning_dpgen.release.publishing.signature import BadKey, fingerprint, new_key, read_private, read_public, sign
from lightning_dpgen.runs.interrupts import leaving_at_once
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error

# A passphrase is one line.
_LONGEST = 1000


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen sign",
        description="Sign a release with your private key (Ed25519). By 'dpgen verify --signer' others check that it is "
        "yours and unchanged. A signature shows nothing else: not that the run took place as described.",
    )
    parser.add_argument("release", nargs="?", help="the folder of a release, or of the run that made it")
    parser.add_argument("--key", metavar="KEYFILE", help="your private key, in PEM form (of dpgen or openssl)")
    parser.add_argument(
        "--new-key",
        metavar="KEYFILE",
        help="write a new private key, which you alone may read, and the public one beside it (KEYFILE.pub)",
    )
    parser.add_argument(
        "--passphrase-file",
        metavar="FILE",
        help="a file whose first line is the passphrase of the key; without it you are asked at the terminal",
    )
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.new_key is not None:
        if arguments.release is not None or arguments.key is not None:
            raise UsageError("--new-key: makes a key and signs nothing; leave the release and --key out")
        return _make(place_of(arguments.new_key), arguments.passphrase_file)
    if arguments.release is None or arguments.key is None:
        raise UsageError("expected dpgen sign RELEASE --key KEYFILE, or dpgen sign --new-key KEYFILE")
    return _sign(release_folder(arguments.release), place_of(arguments.key), arguments.passphrase_file)


def _make(path: Path, passphrase_file: str | None) -> int:
    passphrase = _in_file(passphrase_file) if passphrase_file is not None else _new_passphrase()
    try:
        public = new_key(path, passphrase)
    except BadKey as error:
        raise UsageError(f"--new-key {error}") from None
    print(f"private key (yours alone{', no passphrase' if passphrase is None else ''}):  {path}")
    print(f"public key (give it to those who verify):  {public}")
    print(f"  fingerprint {fingerprint(read_public(public))}: tell it where people know that it is you, such as your site")
    print(f"next:\n  {shlex.join(['dpgen', 'sign', 'RELEASE', '--key', str(path)])}")
    return 0


def _sign(folder: Path, key_file: Path, passphrase_file: str | None) -> int:
    def ask() -> bytes | None:
        return _ask(f"passphrase of {key_file}: ") if passphrase_file is None else _in_file(passphrase_file)

    try:
        key = read_private(key_file, ask)
    except BadKey as error:
        raise UsageError(f"--key {error}") from None
    if stat.S_IMODE(key_file.stat().st_mode) & 0o077:
        print(f"dpgen: warning: {key_file}: others than its owner may use it; chmod 600 it", file=sys.stderr)
    # Mistakes are reported before the import of what recomputes epsilon.
    read_certificate(folder)
    with leaving_at_once():
        from lightning_dpgen.verification.verify import verify
    verdict = verify(folder)
    if not verdict.good:
        raise UsageError(f"{folder}: is not signed, since dpgen verify refuses it: {verdict.reason[:300]}")
    try:
        path = sign(folder, key)
    except (OSError, ValueError) as error:
        raise UsageError(describe_os_error(error) if isinstance(error, OSError) else str(error)) from None
    print(f"signed: {path}, by the key with fingerprint {fingerprint(key.public_key())}")
    print(f"others check it with the public key:\n  dpgen verify {shlex.quote(str(folder))} --signer {key_file.name}.pub")
    return 0


def _new_passphrase() -> bytes | None:
    first = _ask("passphrase of the new key (empty for none): ")
    if first and first != _ask("once more: "):
        raise UsageError("--new-key: the two passphrases differ; nothing was written")
    return first or None


def _ask(prompt: str) -> bytes | None:
    """Return what is typed at a terminal, unseen; None where there is none."""
    return getpass.getpass(prompt).encode() if sys.stdin is not None and sys.stdin.isatty() else None


def _in_file(name: str) -> bytes:
    try:
        with open(place_of(name), "rb") as file:
            first = file.readline(_LONGEST).rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"--passphrase-file {name}: {error.strerror}") from None
    if not first:
        raise UsageError(f"--passphrase-file {name}: its first line is empty; expected the passphrase")
    return first
