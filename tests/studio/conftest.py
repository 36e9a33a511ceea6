"""A studio over a folder with one small table, asked without a browser."""

from types import SimpleNamespace

import pytest
from cli.conftest import trained  # noqa: F401
from starlette.testclient import TestClient

from lightning_dpgen.studio import case as cases_module
from lightning_dpgen.studio.case import Cases
from lightning_dpgen.studio.guard import Guard
from lightning_dpgen.studio.job import Job
from lightning_dpgen.studio.pages import make_app

PORT, TOKEN, ROOT = 8123, "the-secret", "/place"
ADDRESS = f"http://127.0.0.1:{PORT}"
SCHEMA = """label: smoker
columns:
  age: {type: integer, low: 0, high: 110}
  town: {type: category, values: [Oslo, Bergen]}
  smoker: {type: boolean, words: ["no", "yes"]}
"""


def ask(app, *, known=True):
    """Return a client of an application, as a browser that has opened the address at the terminal, or has not."""
    client = TestClient(app, base_url=ADDRESS + ROOT, follow_redirects=False)
    client.headers["origin"] = ADDRESS
    if known:
        assert client.get(f"{ADDRESS}/?token={TOKEN}").status_code == 200
    return client


@pytest.fixture
def studio(tmp_path, monkeypatch):
    """Return a client, the cases, and the commands that were started; none of them runs."""
    root = tmp_path / "data"
    root.mkdir()
    (root / "people.csv").write_text("age,town,smoker\n31,Oslo,yes\n77,Bergen,no\n")
    (root / "people.schema.yaml").write_text(SCHEMA)
    started = []

    def start(folder, commands):
        started.append([list(words) for words in commands])
        return Job(folder)

    monkeypatch.setattr(cases_module, "start_job", start)
    cases = Cases(root / "studio", (root.resolve(),))
    app = Guard(make_app(cases, ROOT), PORT, ROOT, TOKEN)
    return SimpleNamespace(client=ask(app), app=app, cases=cases, root=root, started=started)


@pytest.fixture
def case(studio):
    """Return a case whose schema is whole."""
    said = {"name": "people", "path": str(studio.root / "people.csv"), "schema": str(studio.root / "people.schema.yaml")}
    assert studio.client.post("/new", data=said).headers["location"] == f"{ROOT}/case/people"
    return studio.cases["people"]
