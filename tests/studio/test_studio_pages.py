"""The pages of the studio: they write files, start commands, and lose nothing."""

import contextlib
import errno
import html
import io
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from studio.conftest import ROOT, ask

from lightning_dpgen.cli.main import main
from lightning_dpgen.common import folders
from lightning_dpgen.common.folders import make_private
from lightning_dpgen.data.tables.schema_file import read_yaml
from lightning_dpgen.studio import pages as pages_module
from lightning_dpgen.studio.case import STUDIES, Cases
from lightning_dpgen.studio.guard import Guard
from lightning_dpgen.studio.job import spell
from lightning_dpgen.studio.pages import make_app

SETTINGS = {"data.n": "3000", "privacy.epsilon": "2", "model": "measured"}


def test_a_file_without_a_schema_gets_a_draft(studio):
    studio.client.post("/new", data={"name": "people", "path": str(studio.root / "people.csv")})
    case = studio.cases["people"]
    assert studio.started == [[["schema", str(studio.root / "people.csv"), "-o", str(case.schema)]]]
    assert "Draft it again" in studio.client.get("/case/people").text
    base = {"name": "base", "url": "postgresql://ann@host/db", "query": "select 1", "independent": "1"}
    studio.client.post("/new", data=base)
    assert studio.started[1][0][:4] == ["schema", "postgresql://ann@host/db", "--query", "select 1"]
    words = studio.cases["base"].check_words
    assert words[1] == base["url"] and words[3:] == ['data.query="select 1"', "data.rows_independent=true"]


@pytest.mark.parametrize(
    "url", ["sqlite:////etc/x.db", "duckdb:///x", "/etc/passwd", "--help", "file:///etc/passwd", "://x"]
)
def test_a_url_opens_no_file(studio, url):
    answer = studio.client.post("/new", data={"name": "base", "url": url, "query": "select 1"})
    assert answer.status_code == 422 and "named by its path" in answer.text and not studio.started


def test_a_link_that_leads_out_later_is_not_followed(studio, case, tmp_path):
    (tmp_path / "secret.csv").write_text("very secret")
    (studio.root / "people.csv").unlink()
    (studio.root / "people.csv").symlink_to(tmp_path / "secret.csv")
    for path in ("check", "draft", "run"):
        assert studio.client.post(f"/case/people/{path}").status_code == 422
    assert not studio.started


OUTSIDE = ("", "/etc/passwd", "../secret.csv", "people.csv/../../secret.csv", "link.csv", "\0", "~root/.bashrc", "a" * 5000)


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("field", ["path", "schema"])
def test_files_lie_below_the_folders_that_were_named(studio, tmp_path, monkeypatch, field, path):
    monkeypatch.chdir(studio.root)
    (tmp_path / "secret.csv").write_text("very secret")
    (studio.root / "link.csv").symlink_to(tmp_path / "secret.csv")
    if field == "schema" and not path:
        return
    answer = studio.client.post("/new", data={"name": "people", "path": "people.csv"} | {field: path})
    told = "a sign of value 0" if path == "\0" else "expected a file that is there, below"
    assert answer.status_code == 422 and told in answer.text and "very secret" not in answer.text
    assert not list(studio.cases) and not studio.started


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "a" * 61, ".hidden", "ä", "people\n", "-x"])
def test_names_of_cases_are_no_paths(studio, name):
    answer = studio.client.post("/new", data={"name": name, "path": str(studio.root / "people.csv")})
    # A browser cuts spaces off, as the program does.
    assert (answer.status_code == 303) == (name == "people\n")
    for path in (
        "/case/.hidden",
        "/case/..%2f..",
        "/case/none/run/1",
        "/case/people/run/99999999999",
        "/case/people/job/none",
    ):
        assert studio.client.get(path).status_code == 404


def test_markup_in_names_and_values_is_text(studio, case):
    bad = '"><script>alert(1)</script>'
    text = f"columns:\n  '{bad}': {{type: category, values: ['{bad}', b], description: '{bad}'}}\n"
    case.schema.write_text(text)
    page = studio.client.get("/case/people").text
    assert "&lt;script&gt;" in page and "<script>alert" not in page
    case.keep(settings={"data.person": bad}, more=f"model.x={bad}")
    for path in ("/case/people/budget", "/case/people/plan"):
        assert "<script>alert" not in studio.client.get(path).text


def test_one_column_is_kept_and_two_pages_lose_nothing(studio, case):
    said = {"column": "age", "type": "integer", "low": "18", "high": "120"}
    answer = studio.client.post("/case/people/column?live", data=said)
    assert answer.status_code == 200 and 'value="18"' in answer.text
    other = {"column": "town", "type": "category", "values": "Oslo\r\nBergen\r\nRome"}
    studio.client.post("/case/people/column?live", data=other)
    studio.client.post("/case/people/column?live", data={"column": "", "label": "town"})
    text = case.schema.read_text()
    assert "low: 18" in text and "values: [Oslo, Bergen, Rome]" in text and "label: town" in text
    assert "is no column" in studio.client.post("/case/people/column?live", data={"column": "gone"}).text


def test_ten_tabs_lose_nothing(studio, case):
    names = [f"c{number}" for number in range(10)]
    case.schema.write_text("columns:\n" + "".join(f"  {name}: {{type: integer, low: 0, high: 9}}\n" for name in names))

    def keep(name):
        said = {"column": name, "type": "integer", "low": "1", "high": name[1:] + "9"}
        return ask(studio.app).post("/case/people/column?live", data=said).status_code

    with ThreadPoolExecutor(10) as tabs:
        assert set(tabs.map(keep, names)) == {200}
    columns = read_yaml(case.schema)["columns"]
    assert [columns[name] for name in names] == [{"type": "integer", "low": 1, "high": 10 * n + 9} for n in range(10)]


def test_keys_without_a_value_are_asked_for(studio, case):
    assert 'name="bins"' not in studio.client.get("/case/people").text
    assert 'name="bins"' in studio.client.get("/case/people?whole").text
    assert 'name="bins"' in studio.client.get("/case/people/more", params={"column": "age"}).text
    assert 'name="charset"' in studio.client.get("/case/people/more").text
    assert studio.client.get("/case/people/more", params={"column": "gone"}).status_code == 404


def test_the_plan_is_that_of_dpgen_budget_and_reads_no_record(studio, case):
    (studio.root / "people.csv").unlink()
    page = studio.client.post("/case/people/settings?live", data=SETTINGS).text
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        assert main(["budget", *case.words()]) == 0
    shown = page.replace("&#39;", "'").replace("&lt;", "<")
    lines = [line for line in told.getvalue().splitlines() if line.strip()]
    assert len(lines) > 8 and all(line in shown for line in lines)
    assert "noise of a count" in shown and "Start the run" in page
    # The terminal would be told the same words, and the settings stay for another page.
    assert "privacy.epsilon=2" in page and 'value="3000"' in studio.client.get("/case/people/budget").text


REFUSED = {
    "data.n": ("-5", "data.n"), "privacy.epsilon": ("zero", "privacy.epsilon"), "data.max_rows": ("3", "data."),
    "more": ("data.path=/etc/passwd", "are set at a terminal"), "privacy.study": ("../x", "study"),
    "model": ("own", "expected one of"),
}  # fmt: skip
PLACES = ["data.held_out=/etc/passwd", "run_dir=/tmp/x", "model.target=os.system", "hydra.run.dir=x", "+data.path=/x",
          "data=own", "-m", "privacy.study_folder=/tmp", "model.init=/tmp", "debug.private_seed=1", "nonsense",
          "debug={private_seed: 3}", "privacy=off", "model={name: own, target: os.system}", "~privacy.epsilon",
          "++model.target=x", "experiment=x", "privacy.selection=logarithmic", "trainer.devices=2",
          "model._target_=this.d", "model.Target=x", "split.init=/tmp"]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "told"), [(name, *one) for name, one in REFUSED.items()])
def test_settings_that_a_run_refuses_start_none(studio, case, name, given, told):
    page = studio.client.post("/case/people/settings?live", data=SETTINGS | {name: given}).text
    assert told in page and "Start the run" not in page
    assert studio.client.post("/case/people/run").status_code == 422
    assert not studio.started and not case.runs


@pytest.mark.parametrize("word", PLACES)
def test_further_settings_open_no_place(studio, case, word):
    assert "Start the run" not in studio.client.post("/case/people/settings?live", data=SETTINGS | {"more": word}).text


def mark_of(page):
    return re.search(r'name="mark" value="(\w+)"', page)[1]


def test_a_run_is_what_the_page_has_shown(studio, case):
    study = {"privacy.study": "census", "privacy.study_epsilon": "9", "privacy.study_delta": "1e-6"}
    mark = mark_of(studio.client.post("/case/people/settings?live", data=SETTINGS | study).text)
    # Another page changes a setting, or the schema, meanwhile.
    changes = (("settings", {"privacy.epsilon": "2.7"}), ("column", {"column": "age", "low": "1"}))
    for path, data in changes:
        assert studio.client.post(f"/case/people/{path}?live", data=data).status_code == 200
        answer = studio.client.post("/case/people/run", data={"mark": mark})
        assert answer.status_code == 422 and "have changed" in answer.text and not studio.started
        mark = mark_of(studio.client.get("/case/people/plan").text)
    page = studio.client.get("/case/people/plan").text
    assert studio.client.post("/case/people/run", data={"mark": mark}).headers["location"] == f"{ROOT}/case/people/run/1"
    (train, verify), folder = studio.started[0], case.folder / "runs" / "1"
    schema = case.folder / "runs" / "1.schema.yaml"
    assert train == ["train", *case.words(schema), f"run_dir={folder}"] and verify == ["verify", str(folder)]
    assert all(spell(words) in html.unescape(page) for words in studio.started[0])
    assert f"privacy.study_folder={studio.cases.home / STUDIES}" in train
    # The run reads a copy, so a later change of the case does not reach it.
    assert schema.read_text() == case.schema.read_text() and "low: 1" in schema.read_text()


def test_a_finished_run_is_shown_with_its_files(studio, case, trained):
    (case.folder / "runs").mkdir()
    (case.folder / "runs" / "1").symlink_to(trained)
    job = case.jobs / "run-1"
    make_private(case.private)
    job.mkdir(parents=True)
    (job / "commands.json").write_text('[["train"], ["verify"]]')
    (job / "status").write_text("0")
    page = studio.client.get("/case/people/run/1").text
    assert "Verified" in page and "may be published as it is" in page and "Compare with the real records" in page
    # A file that is edited is not verified any more, and a later verification has the last word.
    os.utime(trained / "release" / "privacy.json")
    assert "not verified" in studio.client.get("/case/people/run/1").text
    again = case.jobs / "verify-1"
    again.mkdir()
    (again / "commands.json").write_text('[["verify"]]')
    for status, trusted in (("2", False), ("0", True)):
        time.sleep(0.02)
        (again / "status").write_text(status)
        page = studio.client.get("/case/people/run/1").text
        assert ("Verified" in page, "may be published as it is" in page, "Not to be trusted" in page) == (
            trusted, trusted, not trusted
        )  # fmt: skip
    report = studio.client.get("/case/people/run/1/page/report")
    assert report.status_code == 200 and "sandbox" in report.headers["content-security-policy"]
    (again / "status").write_text("130")
    assert "not verified" in studio.client.get("/case/people/run/1").text
    assert "nothing to go on with" in studio.client.post("/case/people/run/1/go-on").text
    for name in ("privacy.json", "model.safetensors"):
        file = studio.client.get(f"/case/people/run/1/release/{name}")
        assert file.content == (trained / "release" / name).read_bytes()
        assert file.headers["content-disposition"].startswith("attachment")
    for path in ("page/evaluation", "release/..%2fprivate%2fledger.jsonl", "private/ledger.jsonl", "samples/x"):
        assert studio.client.get(f"/case/people/run/1/{path}").status_code == 404
    assert "Run" not in studio.client.get("/studies").text.partition("<title>")[2].partition("</title>")[0]
    answer = studio.client.post("/case/people/run/1/sample", data={"n": "5", "where": "age>=60\nb=c", "format": ".csv"})
    assert answer.status_code == 303, answer.text
    assert studio.started[-1][0][-3:] == ["-n5", "--where=age>=60", "--where=b=c"]
    studio.client.post("/case/people/run/1/sample", data={"given": str(studio.root / "people.csv"), "n": "5"})
    words = studio.started[-1][0]
    assert words[words.index("-o") + 1].startswith(str(case.private)) and "-n5" not in words
    assert studio.client.post("/case/people/run/1/sample", data={"given": "/etc/passwd"}).status_code == 422
    assert studio.client.post("/case/people/run/1/no-such-act").status_code == 404
    # A release needs no records to be verified.
    (studio.root / "people.csv").unlink()
    assert studio.client.post("/case/people/run/1/verify").status_code == 303
    assert studio.client.post("/case/people/run/1/evaluate").status_code == 422


def test_an_upload_is_for_its_owner_alone(studio):
    headers = {"x-case": "copied", "x-file": "d%C3%A4ten.csv"}
    answer = studio.client.post("/upload", headers=headers, content=b"a,b\n1,2\n")
    case = studio.cases["copied"]
    path = case.private / "upload" / "däten.csv"
    assert answer.text == f"{ROOT}/case/copied" and path.read_bytes() == b"a,b\n1,2\n"
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent, case.private)] == [0o600, 0o700, 0o700]
    assert case.source == {"data.path": str(path)} and studio.started[0][0][1] == str(path)
    for number, name in enumerate(("", ".bashrc", "..%2f..", "a%0Ab", "a" * 300)):
        answer = studio.client.post("/upload", headers={"x-case": f"x{number}", "x-file": name}, content=b"x")
        assert answer.status_code == 422, name
    assert len(list(studio.cases)) == 1


def test_a_full_disk_loses_nothing(studio, case, monkeypatch):
    studio.client.post("/case/people/settings", data=SETTINGS)
    before = {path: path.read_bytes() for path in (case.schema, case.folder / "case.json")}

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folders.os, "fsync", full)
    said = {"column": "age", "type": "integer", "low": "18", "high": "120"}
    for path, data in (("column", said), ("settings", {"data.n": "1"})):
        answer = studio.client.post(f"/case/people/{path}?live", data=data)
        assert answer.status_code == 422 and "No space left" in answer.text
    assert {path: path.read_bytes() for path in before} == before and len(list(case.folder.glob(".*.part"))) == 0
    new = {"name": "other", "path": str(studio.root / "people.csv")}
    assert studio.client.post("/new", data=new).status_code == 422
    assert studio.client.post("/upload", headers={"x-case": "other", "x-file": "a.csv"}, content=b"a").status_code == 422
    monkeypatch.undo()
    # Nothing is left of either, and a name that was of no use is free.
    assert [one.name for one in studio.cases] == ["people"] and not (studio.cases.home / "other").exists()
    for path in ("/", "/studies", "/case/people"):
        assert studio.client.get(path).status_code == 200


def test_a_server_that_is_started_anew_shows_the_same(studio, case):
    studio.client.post("/case/people/settings", data=SETTINGS)
    anew = ask(Guard(make_app(Cases(studio.cases.home, studio.cases.roots), ROOT), 8123, ROOT, "the-secret"))
    for path in ("/", "/case/people", "/case/people/budget"):
        assert anew.get(path).text == studio.client.get(path).text


def test_forms_are_bounded(studio, case, monkeypatch):
    monkeypatch.setattr(pages_module, "_LARGEST_FORM", 1000)
    assert studio.client.post("/case/people/settings", content=b"more=" + b"x" * 2000).status_code == 422
    assert studio.client.post("/case/people/settings", content=b"more=\xff%ff&a").status_code == 422


def test_a_study_begins_with_its_total(studio, case):
    page = studio.client.post("/case/people/settings?live", data=SETTINGS | {"privacy.study": "census"}).text
    assert "give epsilon and delta" in page and "Start the run" not in page


def test_a_wrong_further_setting_closes_no_other_page(studio, case):
    studio.client.post("/case/people/settings?live", data=SETTINGS | {"more": "more=bins=20"})
    for path in ("", "/budget", "/plan"):
        assert studio.client.get(f"/case/people{path}").status_code == 200


def test_an_upload_that_is_cut_off_removes_nothing_of_another(studio, case):
    headers = {"x-case": "people", "x-file": "a.csv"}
    assert studio.client.post("/upload", headers=headers, content=b"a").status_code == 422
    assert case.schema.exists() and case.source["data.path"].endswith("people.csv")
