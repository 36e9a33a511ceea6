"""The guard of the studio: who may ask for a page, and what a browser may do with the answer.

A page of another site can send requests to this machine, and so can another user's program. Three things keep them out. A
secret that is drawn when the server starts is in the address that the program prints, and then in a cookie that no other
site's request carries. All pages lie below a second secret, since a browser sends the cookies of one port to all ports of
a machine, where other users may listen, but only below the path that they belong to. The name that a request is for must
be this machine's own, since another site may let its name point here (DNS rebinding). A request that changes anything must
be from a page of the studio itself.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Callable[[], Awaitable[Message]], Send], Awaitable[None]]

# Nothing from elsewhere, no script or style in a page, no frame of another site around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# A report has its style within, and is shown in a frame: there it runs nothing and has no origin.
REPORT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # With no-referrer a form of our own would have no origin.
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_SAFE = ("GET", "HEAD")
# A request of another site, or of another program's page on this machine.
_FOREIGN = ("cross-site", "same-site")
# A page that a link of another program opens sends no strict cookie on when it is redirected; one that goes on itself does.
_WELCOME = (
    '<!doctype html><html lang="en"><title>dpgen studio</title><link rel="icon" href="data:,">'
    '<meta http-equiv="refresh" content="0;url={0}/"><a href="{0}/">Open the studio</a>'
)


class Guard:
    """Lets through to an ASGI application what its own pages ask for, and tells browsers what to keep from others.

    Args:
        app: the application behind it, whose pages lie below `root`.
        port: the port that it is served on.
        root: the path of all pages, which is secret.
        token: the secret of the address; drawn if None.
    """

    def __init__(self, app: App, port: int, root: str, token: str | None = None) -> None:
        self._app, self._root = app, root
        self._hosts = tuple(f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost"))
        # Cookies belong to a machine and not to a port, so that two studios need two names.
        self._cookie = f"dpgen-studio-{port}"
        self.token = secrets.token_urlsafe(32) if token is None else token

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] == "http":
            if (refusal := self._refusal(scope)) is not None:
                await _answer(send, 403, f"dpgen studio: {refusal}\n".encode(), b"text/plain; charset=utf-8")
            elif self._is_welcome(scope):
                cookie = f"{self._cookie}={self.token}; HttpOnly; SameSite=Strict; Path={self._root}/".encode()
                welcome = _WELCOME.format(self._root).encode()
                await _answer(send, 200, welcome, b"text/html; charset=utf-8", (b"set-cookie", cookie))
            else:
                await self._app(scope, receive, _with_headers(send))
        # A websocket is not accepted, and so it is closed.

    def _refusal(self, scope: Message) -> str | None:
        """Return why a request is refused, in words; None where it is let through."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"")
        if host not in self._hosts:
            return "expected this machine's own name, 127.0.0.1 or localhost, and its port in the address"
        origin = headers.get(b"origin")
        safe = scope["method"] in _SAFE
        if (origin is None and not safe) or (origin is not None and origin != b"http://" + host):
            return "expected a request of its own page"
        if self._is_welcome(scope):
            return None
        if headers.get(b"sec-fetch-site", b"").decode("latin-1") in _FOREIGN:
            return "expected a request of its own page"
        if not self._knows(headers.get(b"cookie", b"").decode("latin-1")):
            return "open the address that dpgen studio has printed at the terminal; it is a new one each time it starts"
        return None

    def _knows(self, cookies: str) -> bool:
        # Other programs of this machine may have set cookies of any form.
        return any(
            hmac.compare_digest(cookie.strip().encode(), f"{self._cookie}={self.token}".encode())
            for cookie in cookies.split(";")
        )

    def _is_welcome(self, scope: Message) -> bool:
        """Return True for the address that the program prints, which holds the secret."""
        if scope["path"] != "/" or scope["method"] not in _SAFE:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), self.token.encode())


def _with_headers(send: Send) -> Send:
    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            named = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in named]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_with


async def _answer(send: Send, status: int, body: bytes, kind: bytes, *more: tuple[bytes, bytes]) -> None:
    send = _with_headers(send)
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
