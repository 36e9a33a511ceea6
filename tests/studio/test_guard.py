"""The studio answers its own pages alone, and no other site or program of this machine."""

import pytest
from studio.conftest import ADDRESS, PORT, ROOT, TOKEN, ask

READING = ("/", "/studies", "/case/people", "/case/people/open", "/case/people/budget", "/case/people/plan", "/look.css")
WRITING = ("/new", "/upload", "/case/people/draft", "/case/people/column", "/case/people/check", "/case/people/settings",
           "/case/people/run", "/case/people/run/1/stop")  # fmt: skip
OTHERS = {
    "a name that points here": {"host": f"evil.example:{PORT}"},
    "another port": {"host": "127.0.0.1:9"},
    "a path behind the port": {"host": f"127.0.0.1:{PORT}/a?"},
    "another site": {"origin": "https://evil.example"},
    "a sandboxed page": {"origin": "null"},
    "another program's page": {"origin": "http://127.0.0.1:9", "sec-fetch-site": "same-site"},
    "a form of another site": {"origin": ADDRESS, "sec-fetch-site": "cross-site"},
    "a wrong secret": {"cookie": f"dpgen-studio-{PORT}=guessed"},
    "the cookie of another studio": {"cookie": f"dpgen-studio-9={TOKEN}"},
    "no cookie": {"cookie": ""},
}


@pytest.mark.parametrize("headers", OTHERS.values(), ids=OTHERS.keys())
def test_nobody_else_reads_or_writes(studio, case, headers):
    before = (studio.root / "studio" / "people" / "case.json").read_bytes()
    for path in READING:
        assert studio.client.get(path).status_code == 200, path
        answer = studio.client.get(path, headers=headers)
        assert (answer.status_code, b"people" in answer.content) == (403, False), path
    for path in WRITING:
        assert studio.client.post(path, headers=headers, data={"name": "other"}).status_code == 403, path
    assert (studio.root / "studio" / "people" / "case.json").read_bytes() == before
    assert not studio.started and [one.name for one in studio.cases] == ["people"]


def test_a_form_without_an_origin_is_refused(studio, case):
    del studio.client.headers["origin"]
    assert studio.client.post("/case/people/check").status_code == 403
    assert studio.client.get("/case/people").status_code == 200


def test_the_address_opens_it_once_its_secret_is_right(studio):
    stranger = ask(studio.app, known=False)
    for query in ("", "?token=", "?token=guessed", f"?tokens={TOKEN}"):
        assert stranger.get(f"{ADDRESS}/{query}").status_code == 403
    # Cookies of other programs, of whatever form, stand before ours.
    stranger.cookies.set("prefs", '{"a":"x y",b}', domain="127.0.0.1", path="/")
    answer = stranger.get(f"{ADDRESS}/?token={TOKEN}")
    assert answer.headers["set-cookie"] == f"dpgen-studio-{PORT}={TOKEN}; HttpOnly; SameSite=Strict; Path={ROOT}/"
    assert stranger.get("/").status_code == 200
    # The secret opens the first page alone, and a foreign page cannot send it from another name.
    assert ask(studio.app, known=False).get(f"/studies?token={TOKEN}").status_code == 403
    assert stranger.get(f"{ADDRESS}/?token={TOKEN}", headers={"host": "evil.example"}).status_code == 403


def test_a_server_on_another_port_gets_no_cookie(studio, case):
    """A browser sends cookies to all ports of a machine, and it knows the path of the pages alone."""
    kept = [cookie for cookie in studio.client.cookies.jar if cookie.name.startswith("dpgen-studio")]
    assert [cookie.path for cookie in kept] == [f"{ROOT}/"]
    assert studio.client.get(f"{ADDRESS}/").status_code == 403


def test_every_answer_is_kept_by_no_cache_and_runs_nothing_from_elsewhere(studio, case):
    paths = (*READING, "/studio.js", "/no-such-page", "/case/none", f"{ADDRESS}/?token={TOKEN}")
    for answer in [*map(studio.client.get, paths), studio.client.get("/", headers={"host": "evil.example"})]:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert b"http://" not in answer.content.replace(ADDRESS.encode(), b"") and b" style=" not in answer.content
