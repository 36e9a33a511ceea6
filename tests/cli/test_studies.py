"""Runs of a study add up, and one that would pass its total is refused before anything is spent."""

import json
import os
import shutil

import dp_accounting
import numpy as np
import pytest
from contracts.sealed import rewrite

from lightning_dpgen.privacy.errors import LedgerError
from lightning_dpgen.privacy.studies.study import Study, fingerprint_key
from lightning_dpgen.runs.identity import fingerprint
from lightning_dpgen.runs.studies import mark
from lightning_dpgen.specs.privacy import PrivacySpec
from lightning_dpgen.verification.verify import verify

QUICK = ["model.steps=5", "model.hidden=8", "model.latent=2", "split.iterations=2", "split.features=16", "rows=50"]
TOTAL = ["privacy.study_epsilon=5", "privacy.study_delta=1e-5"]


@pytest.fixture
def train(dpgen, tmp_path):
    """Return a function that trains in the study ``census``; it gives status, output, errors and the folder."""

    def call(name, *words):
        run = tmp_path / name
        own = [f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census"]
        return *dpgen("train", *QUICK, *own, *words, f"run_dir={run}"), run

    return call


def _certificate(run):
    return json.loads((run / "release" / "privacy.json").read_text())


def test_runs_add_up_until_the_total(train, dpgen, tmp_path):
    status, out, _, first = train("first", *TOTAL, "privacy.epsilon=2")
    assert status == 0 and "study census: with this run epsilon" in out
    own = _certificate(first)["study"]
    assert own["name"] == "census" and own["runs"] == 1 and 2.0 <= own["epsilon"] <= own["total_epsilon"] == 5.0
    assert "In the study 'census' this was run 1" in _certificate(first)["statement"] and verify(first / "release").good
    status, _, _, second = train("second", "privacy.epsilon=2", "seed=1")
    assert status == 0 and _certificate(second)["study"]["runs"] == 2
    assert own["epsilon"] < _certificate(second)["study"]["epsilon"] <= 5.0
    status, _, err, third = train("third", "privacy.epsilon=4")
    assert status == 3 and "study census: 2 runs have spent epsilon" in err and not third.exists()
    total = Study(tmp_path / "studies" / "census.jsonl").total
    assert total.runs == 2
    words = [f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census", "privacy.epsilon=1"]
    status, out, _ = dpgen("budget", *QUICK, *words)
    assert status == 0 and "spent so far: epsilon" in out and "(2 runs)" in out and "(3 runs)" in out
    assert Study(tmp_path / "studies" / "census.jsonl").total == total


def test_a_run_that_goes_on_is_one_run(train, monkeypatch, tmp_path):
    from lightning_dpgen.runs import run as training

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_release", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        assert train("run", *TOTAL)[0] == 130
    assert Study(tmp_path / "studies" / "census.jsonl").total.runs == 1
    status, _, err, _ = train("run", "privacy.study=other", "privacy.study_epsilon=9", "privacy.study_delta=1e-5")
    assert status == 2 and "study" in err
    status, out, _, run = train("run")
    assert status == 0 and _certificate(run)["study"]["runs"] == 1
    assert "study census: spent so far: epsilon" in out and "(1 run)" in out


def test_without_a_study_that_is_said(trained):
    certificate = _certificate(trained)
    assert certificate["study"] == "unknown" and "Study unknown" in certificate["statement"]


def test_a_projection_enters_with_its_pair(train, dpgen, tmp_path):
    """A run about a record added or removed enters with what it costs when one is replaced."""
    run, total = tmp_path / "rows", ["privacy.study_epsilon=12", "privacy.study_delta=1e-5"]
    words = [f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census", "privacy.epsilon=1", f"run_dir={run}"]
    rows = ["project", "data=blobs", "data.n=300", "data.d=6", "project.radius=3"]
    status, _, err = dpgen(*rows, *words, *total)
    assert status == 0, err
    study = _certificate(run)["study"]
    assert study["relation"] == "replace_one" and study["runs"] == 1 and 1.0 <= study["epsilon"] <= 12.0
    assert verify(run / "release").good
    second = train("second", "privacy.epsilon=0.5", "privacy.delta=1e-6")[-1]
    own = _certificate(second)
    assert own["study"]["relation"] == "replace_one" and verify(second / "release").good
    assert own["study"]["epsilon"] == pytest.approx(study["epsilon"] + own["also"]["replace_one_epsilon"], rel=1e-5)
    train("third", "privacy.study=added", *total, "privacy.epsilon=0.5")
    status, _, err = dpgen(*rows, words[0], "privacy.study=added", words[2], f"run_dir={tmp_path / 'other'}")
    assert status == 2 and "begin another study" in err and not (tmp_path / "other").exists()
    status, _, err = dpgen("budget", *rows, *words[:2], "privacy.epsilon=50")
    assert status == 3 and "study census: 2 runs have spent epsilon" in err
    status, out, _ = dpgen("budget", *rows, "privacy.study=none", "privacy.epsilon=1")
    assert status == 0 and "study none: not begun" in out
    status, out, _ = dpgen("budget", *rows, words[0], "privacy.study=none", "privacy.epsilon=1", *total)
    assert status == 0 and "study none: with this run epsilon " in out and not (tmp_path / "studies/none.jsonl").exists()
    # A study that contains it cannot be about a record added or removed.
    rewrite(run / "release", lambda c: c["study"].update(relation="add_or_remove_one"))
    assert any("this run for one replaced" in problem for problem in verify(run / "release").problems)


MISTAKES = {
    "a new one without a total": ([], r"privacy.study=census: .*begin it with the total"),
    "half a total": (["privacy.study_epsilon=3"], "begin it with the total"),
    "no total": (["privacy.study_epsilon=-3", "privacy.study_delta=1e-5"], "expected a number above 0"),
    "no name": ([*TOTAL, "privacy.study=a/b"], "expected a name of letters"),
    "a total of nothing": (["privacy.study=null", *TOTAL], "to no study"),
    "the twin": (["privacy=off", *TOTAL], "there is no setting|privacy=off"),
    "noise from a seed": (["debug.private_seed=3", *TOTAL], r"debug\.private_seed=3: .* privacy\.study=census"),
    "a selection from a seed": (
        ["debug.private_seed=3", *TOTAL, "privacy.selection=geometric", "model.hidden=4,8", "-m"],
        r"debug\.private_seed=3: .* privacy\.study=census",
    ),
}


@pytest.mark.parametrize(("words", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_study_that_makes_no_sense_costs_nothing(train, tmp_path, words, message):
    import re

    status, _, err, run = train("run", *words)
    assert status == 2 and re.search(message, err) and "Traceback" not in err and not run.exists()


@pytest.mark.parametrize("command", [["train"], ["budget"], ["project", "data=blobs", "data.n=300", "project.radius=3"]])
def test_the_delta_of_a_new_study_is_below_one_in_the_number_of_records(dpgen, tmp_path, command):
    """Digits are 1,797 records here; nothing is begun, and so nothing is spent."""
    words = [f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census", "privacy.study_epsilon=9"]
    words += [] if command == ["budget"] else [f"run_dir={tmp_path / 'run'}"]
    status, _, err = dpgen(*command, *words, "privacy.study_delta=0.01")
    assert status == 2 and "privacy.study_delta=0.01: expected less than 1/n" in err and not [*tmp_path.iterdir()]


def test_a_large_delta_of_a_study_is_warned_of(dpgen, tmp_path, monkeypatch, short_fits):
    """A study that was begun keeps it, and may be about more records than those of this run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text("columns:\n  age: {type: integer, low: 0, high: 99}\n")
    (tmp_path / "t.csv").write_text("\n".join(["age", *map(str, range(90))]) + "\n")
    table = ["data=table", "data.path=t.csv", "data.schema=s.yaml", "data.n=90", "model=measured", "privacy.epsilon=1"]
    for name, delta, said in (
        ("small", "1e-5", None),
        ("large", "0.005", "study large: its delta 0.005 is above 1/(10 n) = 0.00111"),
    ):
        study = [f"privacy.study={name}", "privacy.study_epsilon=9", f"privacy.study_delta={delta}"]
        for command in (["budget"], ["train", f"run_dir={name}"], ["budget"]):
            status, _, err = dpgen(*command, *table, *study)
            assert status == 0 and ("its delta" in err) == (said is not None) and (said or "") in err
    (tmp_path / "studies").mkdir(exist_ok=True)
    Study(tmp_path / "studies" / "old.jsonl", epsilon=9.0, delta=0.1)
    status, _, err = dpgen("train", *table, "privacy.study=old", "run_dir=old")
    assert status == 0 and "study old: its delta 0.1 is 1/n = 0.0111 or more, so its epsilon says little" in err


@pytest.mark.parametrize("command", [["train"], ["budget"], ["project", "data=blobs", "project.radius=3"]])
def test_noise_from_a_seed_leaves_nothing_of_a_study(dpgen, tmp_path, command):
    """Another run would state a total of both, and the noise of this one can be removed."""
    words = [f"privacy.study_folder={tmp_path / 'studies'}", "privacy.study=census", *TOTAL, "debug.private_seed=3"]
    status, _, err = dpgen(*command, *words, *([] if command == ["budget"] else [f"run_dir={tmp_path / 'run'}"]))
    assert status == 2 and "debug.private_seed=3" in err and "privacy.study=census" in err
    assert not [*tmp_path.iterdir()]


def test_a_file_of_another_study_is_warned_of(dpgen, tmp_path, monkeypatch, short_fits):
    """The keyed fingerprint tells, whose key stays beside the studies; a file that differs in one byte is another."""
    monkeypatch.chdir(tmp_path)
    schema = "columns:\n  age: {type: integer, low: 0, high: 99}\n  sex: {type: category, values: [F, M]}\n"
    (tmp_path / "people.schema.yaml").write_text(schema)
    rows = [f"{i % 90},{'FM'[i % 2]}" for i in range(200)]
    for name, lines in (("people.csv", rows), ("others.csv", [*rows[:-1], "91,F"])):
        (tmp_path / name).write_text("\n".join(["age,sex", *lines]) + "\n")

    def run(name, file, *words):
        own = [f"data.path={file}", "data.schema=people.schema.yaml", "data.n=200", "model=measured", f"run_dir={name}"]
        return dpgen("train", "data=table", *own, *words)

    assert run("1", "people.csv", "privacy.study=census", *TOTAL, "privacy.epsilon=1")[0] == 0
    status, _, err = run("2", "people.csv", "privacy.study=other", *TOTAL, "privacy.epsilon=1")
    assert status == 0 and "this file belongs to study census" in err and "adds to study other alone" in err
    status, _, err = run("3", "people.csv")
    assert status == 0 and "this file belongs to study census, other, and is not entered" in err
    status, _, err = run("4", "others.csv")
    assert status == 0 and "belongs to study" not in err
    status, _, err = run("5", "people.csv", "privacy.study=census", "privacy.epsilon=1")
    assert status == 0 and "belongs to study other" in err
    key = tmp_path / "studies" / "fingerprint.key"
    assert key.stat().st_mode & 0o077 == 0 and key.read_text() not in (tmp_path / "studies" / "census.jsonl").read_text()


RECORDS = [np.arange(9)]


def _seen(folder):
    """Return all of a folder that a run might change."""
    seen = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        found = path.lstat()
        plain = path.is_file() and not path.is_symlink()
        seen[path] = (found.st_mode, found.st_mtime_ns, path.read_bytes() if plain else None)
    return seen


def _theirs(folder):
    """Make files that another program may have in a folder of that name."""
    folder.mkdir()
    (folder / "foo.jsonl").write_text('{"mine": 1}\n')
    (folder / "foo.jsonl.heads").write_text("mine")
    (folder / "folder.jsonl").mkdir()
    (folder / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    (folder / "to.jsonl").symlink_to(folder / "foo.jsonl")
    (folder / "none.jsonl").symlink_to(folder / "nowhere")
    for name in ("foo.jsonl", "bytes.jsonl", ""):
        (folder / name).chmod(0o755 if not name else 0o644)
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.jsonl")
    return folder


def _study_knows(folder, name):
    """Make a study of ours that knows the records."""
    study = Study(folder / f"{name}.jsonl", epsilon=9.0, delta=1e-6)
    study.records = fingerprint(RECORDS, fingerprint_key(folder))
    study.enter("run", dp_accounting.GaussianDpEvent(9.0))


def _find_no_key(folder):
    pass


def _find_bytes(folder):
    (folder / "fingerprint.key").write_bytes(b"\xff\xfe\x00")


def _find_a_link(folder):
    (folder / "elsewhere").write_text("0" * 32)
    (folder / "fingerprint.key").symlink_to(folder / "elsewhere")


def _find_a_folder(folder):
    (folder / "fingerprint.key").mkdir()


def _find_a_long_one(folder):
    (folder / "fingerprint.key").write_text("0" * 33)


def _find_a_pipe(folder):
    os.mkfifo(folder / "fingerprint.key")


KEYS = (_find_no_key, _find_bytes, _find_a_link, _find_a_folder, _find_a_long_one, _find_a_pipe)


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.__name__.strip("_"))
def test_a_run_of_no_study_leaves_a_folder_of_that_name_as_it_is(tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    folder = _theirs(tmp_path / "studies")
    key(folder)
    before = _seen(tmp_path)
    assert mark(None, PrivacySpec(), RECORDS) is None
    assert _seen(tmp_path) == before


def test_a_run_of_no_study_reads_ours_and_changes_nothing(tmp_path, monkeypatch):
    """It does so even with files of others beside it; a link to such a folder is not followed."""
    monkeypatch.chdir(tmp_path)
    folder = _theirs(tmp_path / "studies")
    _study_knows(folder, "census")
    _study_knows(folder, "damaged")
    (folder / "damaged.jsonl").write_text((folder / "damaged.jsonl").read_text().replace("run", "nur"))
    (folder / "fingerprint.key").chmod(0o644)
    (folder / "census.jsonl").chmod(0o644)
    before = _seen(tmp_path)
    said = mark(None, PrivacySpec(), RECORDS)
    assert "this file belongs to study census, and is not entered in it" in said and _seen(tmp_path) == before
    assert mark(None, PrivacySpec(), [np.arange(8)]) is None
    shutil.move(folder, tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    before = _seen(tmp_path)
    assert mark(None, PrivacySpec(), RECORDS) is None and _seen(tmp_path) == before


def test_a_whole_run_of_no_study_leaves_the_folder_as_it_is(dpgen, tmp_path, monkeypatch, short_fits):
    monkeypatch.chdir(tmp_path)
    _find_bytes(_theirs(tmp_path / "studies"))
    before = _seen(tmp_path / "studies")
    (tmp_path / "s.yaml").write_text("columns:\n  age: {type: integer, low: 0, high: 99}\n")
    (tmp_path / "t.csv").write_text("\n".join(["age", *map(str, range(90))]) + "\n")
    words = ["data=table", "data.path=t.csv", "data.schema=s.yaml", "data.n=90", "model=measured"]
    status, _, err = dpgen("train", *words, "run_dir=run")
    assert status == 0, err
    assert _seen(tmp_path / "studies") == before


@pytest.mark.parametrize("key", KEYS[1:], ids=lambda key: key.__name__.strip("_"))
def test_a_key_that_is_none_is_refused_in_one_line_where_a_study_needs_it(tmp_path, key):
    key(tmp_path)
    with pytest.raises((LedgerError, OSError), match=r"not a key|symbolic link|plain file") as refused:
        fingerprint_key(tmp_path)
    assert len(str(refused.value).splitlines()) == 1
