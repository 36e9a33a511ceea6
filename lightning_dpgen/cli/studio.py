"""`dpgen studio`: the way from a file to a release in a browser, on this machine alone."""

from __future__ import annotations

import os
import secrets
import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from lightning_dpgen.cli.arguments import Parser, loading, whole_number
from lightning_dpgen.common import pace
from lightning_dpgen.common.folders import make_private, place_of, write_whole
from lightning_dpgen.privacy.errors import NotInstalled
from lightning_dpgen.specs.usage_error import OK, UsageError
from lightning_dpgen.studio.case import Cases

_HOME, _OPENER = "studio", "open.html"
_MOST_PORT = 65535


def make_parser() -> Parser:
    parser = Parser(
        prog="dpgen studio",
        description="Open the way from a file to a release as pages of a browser. They are served to this machine alone, "
        "load nothing from elsewhere, and run the commands of dpgen, which this terminal prints. Runs go on when it is "
        "closed.",
    )
    parser.add_argument(
        "folders", metavar="FOLDER", nargs="*", default=["."],
        help=f"folders below which pages may open files (.); the first one holds what is made, in {_HOME}/",
    )  # fmt: skip
    parser.add_argument("--port", type=whole_number, default=0, help="of this machine (a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and open no browser")
    return parser


def run(argv: Sequence[str]) -> int:
    arguments = make_parser().parse_args(argv)
    if os.name != "posix":
        raise UsageError("dpgen studio: runs on Linux and macOS; use the other commands here")
    if arguments.port > _MOST_PORT:
        raise UsageError(f"--port {arguments.port}: expected a number up to {_MOST_PORT:,}")
    roots = tuple(_root(folder) for folder in arguments.folders)
    with loading():
        try:
            import uvicorn

            from lightning_dpgen.studio.guard import Guard
            from lightning_dpgen.studio.pages import make_app
        except ModuleNotFoundError as error:
            if error.name not in ("starlette", "uvicorn"):
                raise
            raise NotInstalled(f"dpgen studio needs {error.name}: pip install 'lightning_dpgen[studio]'") from None
    home = roots[0] / _HOME
    make_private(home, _OPENER)
    # Releases and what pages show of records are for one person of this machine.
    os.umask(0o077)
    with _listening(arguments.port) as listening:
        port = listening.getsockname()[1]
        root = f"/{secrets.token_urlsafe(16)}"
        guard = Guard(make_app(Cases(home, roots), root), port, root)
        address = f"http://127.0.0.1:{port}/?token={guard.token}"
        print(f"dpgen studio, on this machine alone: {address}")
        print("Ctrl-C closes it; runs go on. Each command that a page runs stands below.", flush=True)
        if not arguments.no_browser:
            _open(home / _OPENER, address)
        # An access log would hold what is asked for.
        config = uvicorn.Config(
            guard, log_level="error", access_log=False, server_header=False, ws="none", lifespan="off",
            timeout_graceful_shutdown=1,
        )  # fmt: skip
        with pace.hide_progress():
            uvicorn.Server(config).run(sockets=[listening])
    return OK


def _root(folder: str) -> Path:
    place = place_of(folder)
    if not place.is_dir():
        raise UsageError(f"{folder}: expected a folder below which pages may open files")
    return place.resolve()


def _listening(port: int) -> socket.socket:
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        # The address that is printed answers at once.
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise UsageError(f"--port {port}: cannot be listened on ({error.strerror or error}); choose another one") from None
    return listening


def _open(opener: Path, address: str) -> None:
    """Open the address in a browser, by a file of the user's own: all users of a machine see the words of a command."""
    write_whole(opener, f'<!doctype html><title>dpgen studio</title><meta http-equiv="refresh" content="0;url={address}">')
    webbrowser.open(opener.as_uri())
