"""`fit` does from Python what `dpgen train data=table` does; a wrong argument gets one line and costs nothing."""

import html
import inspect
import io
import json
import logging
import re
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from lightning_dpgen import BadRecords, Fitted, Records, evaluate, fit, load_release, verify
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.privacy import BudgetTooSmall
from lightning_dpgen.runs import run as training

pytestmark = pytest.mark.filterwarnings("ignore")

SCHEMA = {
    "label": "sex",
    "columns": {
        "sex": {"type": "category", "values": ["F", "M"]},
        "age": {"type": "integer", "low": 0, "high": 99, "bins": 5},
        "job": {"type": "category", "values": ["cook", "vet"], "missing": True},
    },
}
TEXT = json.dumps(SCHEMA)
SHORT = [
    "model.steps=4", "model.rate=0.1", "model.hidden=8", "split.k=2", "split.iterations=2", "split.features=16", "rows=20",
    "trainer.accelerator=cpu",
]  # fmt: skip
QUICK = {"epsilon": 3.0, "n": 300, "overrides": SHORT, "progress": False}
OFF = {"epsilon": None, "overrides": [*SHORT, "privacy=off"]}


def frame_of(rows=300, seed=0):
    random = np.random.default_rng(seed)
    job = np.array(["cook", "vet", None], object)
    return pd.DataFrame({
        "sex": random.choice(["F", "M"], rows),
        "age": random.integers(0, 100, rows),
        "job": job[random.integers(0, 3, rows)],
    })  # fmt: skip


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    return fit(frame_of(), SCHEMA, run_dir=tmp_path_factory.mktemp("fit") / "run", **QUICK)


def test_what_is_fitted(fitted, capfd):
    assert isinstance(fitted, Fitted) and verify(fitted.folder / "release").good
    assert fitted.certificate["private"] and fitted.certificate["epsilon"] <= 3.0
    assert fitted.certificate["declared"]["n"] == 300 and fitted.report.is_file()
    found = fitted.sample(50, seed=1)
    assert list(found.columns) == ["sex", "age", "job"] and found["age"].between(0, 99).all()
    assert found.equals(load_release(fitted.folder / "release").sample(50, seed=1))
    assert (fitted.sample(9, where={"sex": "F", "job": None})["sex"] == "F").all()
    assert "epsilon=" in repr(fitted) and str(fitted.folder) in repr(fitted)
    page = fitted._repr_html_()
    assert "epsilon 2.99" in page and "differentially private" in page and "<script" not in page
    said = [html.unescape(paragraph) for paragraph in re.findall("<p>(.*?)</p>", page)]
    assert len(said) > 3 and " ".join(said) == fitted.certificate["statement"]
    assert capfd.readouterr() == ("", "")


def test_it_is_what_the_command_does(dpgen, tmp_path):
    """One seed gives one release: from a frame, a table of Arrow, a file, and the command line."""
    frame_of().to_parquet(tmp_path / "f.parquet")
    # A file of text columns does not say that a frame had them as objects.
    frame = pd.read_parquet(tmp_path / "f.parquet")
    (tmp_path / "f.schema.yaml").write_text(TEXT)
    seeded = QUICK | {"overrides": [*SHORT, "debug.private_seed=7"]}
    sources = {
        "frame": (frame, parse_schema(TEXT)),
        "arrow": (pa.Table.from_pandas(frame), SCHEMA),
        "file": (tmp_path / "f.parquet", tmp_path / "f.schema.yaml"),
    }
    made = {name: fit(*given, run_dir=tmp_path / name, **seeded).sample(40, seed=3) for name, given in sources.items()}
    words = [f"data.path={tmp_path / 'f.parquet'}", f"data.schema={tmp_path / 'f.schema.yaml'}", "data.n=300"]
    words += ["privacy.epsilon=3", "debug.private_seed=7", f"run_dir={tmp_path / 'command'}"]
    assert dpgen("train", "data=table", *SHORT, *words)[0] == 0
    expected = load_release(tmp_path / "command" / "release").sample(40, seed=3)
    declared = [Fitted(tmp_path / name).certificate["declared"] for name in (*sources, "command")]
    assert all(one == declared[0] for one in declared) and declared[0]["outside"] == "refuse"
    assert all(found.equals(expected) and found.dtypes.equals(frame.dtypes) for found in made.values())


@pytest.fixture
def logged():
    """Return the stream that the package logs to."""
    logger, stream = logging.getLogger("lightning_dpgen"), io.StringIO()
    handler, level = logging.StreamHandler(stream), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.mark.slow
def test_persons_and_a_bought_number(tmp_path, logged):
    frame = frame_of().assign(who=np.arange(300) // 5)
    fitted = fit(
        frame, SCHEMA, epsilon=8.0, n_share=0.1, person="who", max_rows=2, run_dir=tmp_path / "r",
        overrides=[*SHORT, "clipping.per_person=true"], progress=False,
    )  # fmt: skip
    assert "counted, with noise" in logged.getvalue() and "more than max_rows of a person: 180" in logged.getvalue()
    declared = fitted.certificate["declared"]
    assert declared["clipping"]["rule"] == "PerPerson" and declared["clipping"]["of"]["rule"] == "DPNorm"
    assert declared["n_share"] == 0.1 and declared["max_rows"] == 2 and "2 records" in fitted.certificate["unit"]
    assert verify(fitted.folder / "release").good
    assert fitted.evaluate(frame, seconds=0.02).rows["real"] == (120, 120)
    told = json.loads((fitted.folder / "private" / "evaluation.json").read_text())
    assert told["warning"].startswith("PRIVATE") and told["epsilon"] == fitted.certificate["epsilon"]


def test_shares_of_the_budget_buy_what_is_not_declared_and_a_figure(tmp_path):
    columns = SCHEMA["columns"] | {"job": {"type": "category", "values": "private"}}
    fitted = fit(
        frame_of().fillna({"job": "none"}), SCHEMA | {"columns": columns}, outside="clamp", run_dir=tmp_path / "r",
        discovery_share=0.3, fidelity_share=0.05, **QUICK | {"epsilon": 8.0},
    )  # fmt: skip
    declared = fitted.certificate["declared"]
    assert (declared["discovery_share"], declared["fidelity_share"]) == (0.3, 0.05)
    assert "cook" in fitted.release.schema.choices["job"] and (fitted.folder / "release" / "fidelity.json").is_file()


def test_the_twin_without_privacy(tmp_path):
    fitted = fit(
        frame_of(), SCHEMA, epsilon=None, n=300, run_dir=tmp_path / "r", progress=False, overrides=[*SHORT, "privacy=off"]
    )
    assert "NOT PRIVATE" in repr(fitted) and "NOT A PRIVATE" in fitted._repr_html_() and "must NOT" in fitted._repr_html_()


def test_off_the_main_thread_into_a_fresh_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(frame_of(), SCHEMA, **QUICK)))
    thread.start()
    thread.join()
    assert found[0].folder.parent == tmp_path / "runs" and found[0].report.is_file()
    monkeypatch.chdir("/")
    assert len(found[0].sample(3)) == 3


def test_an_interrupted_run_goes_on_with_the_same_records_alone(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(training, "write_release", interrupted)
        with pytest.raises(KeyboardInterrupt, match="call fit again with run_dir="):
            fit(frame_of(), SCHEMA, run_dir=run, **QUICK)
    ledger = (run / "private" / "ledger.jsonl").read_bytes()
    with pytest.raises(ValueError, match="on other records"):
        fit(frame_of(seed=1), SCHEMA, run_dir=run, **QUICK)
    with pytest.raises(ValueError, match="on other records"):
        fit(frame_of().drop(columns="job"), SCHEMA, run_dir=run, **QUICK)
    with pytest.raises(ValueError, match="other settings"):
        fit(frame_of(), SCHEMA, run_dir=run, **QUICK | {"epsilon": 2.0})
    fitted = fit(frame_of(), SCHEMA, run_dir=run, **QUICK)
    assert verify(run / "release").good and len(fitted.sample(5)) == 5
    assert (run / "private" / "ledger.jsonl").read_bytes().startswith(ledger)
    with pytest.raises(ValueError, match="finished release"):
        fit(frame_of(), SCHEMA, run_dir=run, **QUICK)


def test_a_run_of_the_command_goes_on_from_python(dpgen, tmp_path, monkeypatch):
    frame_of().to_parquet(tmp_path / "f.parquet")
    (tmp_path / "f.schema.yaml").write_text(TEXT)
    paths = [
        f"data.path={tmp_path / 'f.parquet'}",
        f"data.schema={tmp_path / 'f.schema.yaml'}",
        f"run_dir={tmp_path / 'r'}",
    ]

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "write_release", interrupted)
        assert dpgen("train", "data=table", *SHORT, *paths, "data.n=300", "privacy.epsilon=3")[0] == 130
    fitted = fit(tmp_path / "f.parquet", tmp_path / "f.schema.yaml", run_dir=tmp_path / "r", **QUICK)
    assert verify(fitted.folder / "release").good


BAD = {
    "no n": ({"n": None}, ValueError, r"never taken from len\(frame\).*n_share"),
    "n and a share": ({"n_share": 0.1}, ValueError, "declare the number of records, or buy it"),
    "n of half": ({"n": 1.5}, ValueError, r"^n=1\.5: expected a whole"),
    "n as text": ({"n": "300"}, ValueError, "n='300': expected a number"),
    "n below 1": ({"n": 0}, ValueError, "^n=0: expected"),
    "no epsilon": ({"epsilon": None}, ValueError, r"^epsilon=None: expected.*overrides=\['privacy=off'\]"),
    "epsilon nan": ({"epsilon": float("nan")}, ValueError, "^epsilon=nan: expected"),
    "epsilon true": ({"epsilon": True}, ValueError, "expected a number"),
    "a small budget": ({"epsilon": 1e-4}, BudgetTooSmall, "would do"),
    "delta 1": ({"delta": 1.0}, ValueError, "^delta=1"),
    "a person alone": ({"person": "who"}, ValueError, "^person=who with max_rows=None"),
    "an odd person": ({"person": 3, "max_rows": 2}, ValueError, "person=3"),
    "no such person": ({"person": "who", "max_rows": 2, **OFF}, BadRecords, "who"),
    "outside": ({"outside": "maybe"}, ValueError, "^outside=maybe: expected one of refuse, clamp"),
    "a setting that is none": ({"overrides": ["model.nosuch=3"]}, ValueError, "nosuch"),
    "overrides as text": ({"overrides": "model.steps=3"}, ValueError, "expected a list"),
    "several devices": ({"overrides": ["trainer.devices=2"]}, ValueError, "fit runs in one process; dpgen"),
    "other data": ({"overrides": ["data=digits"]}, ValueError, "arguments of fit"),
    "other data, hidden": ({"overrides": ["experiment=dpgm_mnist"]}, ValueError, "data.classes"),
    "other data, by its source": ({"overrides": ["data.source=digits"]}, ValueError, "arguments of fit"),
    "memory": ({"overrides": ["data.memory=3"]}, ValueError, "memory"),
    "a number twice": ({"overrides": ["data.n=5"]}, ValueError, "arguments of fit"),
    "no frame": ({"frame": None}, ValueError, "frame=None: expected a DataFrame"),
    "no such schema": ({"schema": "nowhere.yaml"}, FileNotFoundError, "^schema=.*nowhere.yaml: no such file"),
    "a folder for a schema": ({"schema": "."}, FileNotFoundError, r"^schema=.*: is a folder: expected a file"),
    "a folder for a frame": (
        {"frame": ".", **OFF},
        FileNotFoundError,
        r" is a folder without \.parquet files: .* \(frame\)$",
    ),
    "a share for nothing": ({"discovery_share": 0.1}, ValueError, "^discovery_share=0.1.*nothing here"),
    "a share of half": ({"fidelity_share": 0.5}, ValueError, "^fidelity_share=0.5"),
    "a share twice": ({"overrides": ["privacy.fidelity_share=0.1"]}, ValueError, "arguments of fit"),
    "no schema": ({"schema": None}, ValueError, "schema=None"),
    "a schema without columns": ({"schema": {"label": "sex"}}, ValueError, "columns"),
    "a bad column": ({"schema": {"columns": {"sex": {"type": "categories"}}}}, ValueError, "did you mean"),
    "no file": ({"frame": "nowhere.csv"}, FileNotFoundError, "nowhere.csv"),
    "a list": ({"frame": [1, 2]}, ValueError, r"^frame=\[1, 2\]: expected a DataFrame"),
    "no records": ({"frame": frame_of()[:0], **OFF}, BadRecords, "^frame: there are no records.*what frame holds"),
    "a column too few": ({"frame": frame_of().drop(columns="age")}, BadRecords, "lacks age"),
    "a column too many": ({"frame": frame_of().assign(x=1)}, BadRecords, "has x"),
    "a value beyond": ({"frame": frame_of().assign(age=100)}, BadRecords, "above high"),
    "an accelerator": ({"overrides": ["trainer.accelerator=foo"]}, ValueError, "foo"),
}


@pytest.mark.parametrize(("change", "kind", "words"), BAD.values(), ids=BAD.keys())
def test_mistakes_cost_nothing(tmp_path, monkeypatch, change, kind, words):
    monkeypatch.chdir(tmp_path)
    given = {"frame": frame_of(), "schema": SCHEMA, "run_dir": tmp_path / "run", **QUICK} | change
    with pytest.raises(kind, match=words) as error:
        fit(given.pop("frame"), given.pop("schema"), **given)
    assert len(str(error.value).splitlines()) == 1 and not list(tmp_path.iterdir())


WRONG = {
    "frame": 3, "schema": 3, "epsilon": -1.0, "n": -5, "n_share": 2.0, "discovery_share": 2.0, "fidelity_share": 2.0,
    "delta": 5.0, "run_dir": 3, "person": 3, "max_rows": -1, "outside": "foo", "overrides": None, "progress": "x",
}  # fmt: skip


@pytest.mark.parametrize("name", list(inspect.signature(fit).parameters))
def test_a_mistake_names_the_argument(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    needed = {"n_share": {"n": None}, "max_rows": {"person": "who"}}.get(name, {})
    given = {"frame": frame_of(), "schema": SCHEMA, **QUICK, **needed, name: WRONG[name]}
    with pytest.raises(ValueError, match=rf"^{name}=") as error:
        fit(given.pop("frame"), given.pop("schema"), **given)
    assert not re.search(r"(data|privacy)\.\w|null", str(error.value)) and not list(tmp_path.iterdir())


def _encoded(schema):
    return schema.encode(pa.RecordBatch.from_pandas(frame_of(), preserve_index=False))


BAD_EVALUATIONS = {
    "no release": (lambda f: ("nowhere", frame_of()), {}, "nowhere"),
    "not even a path": (lambda f: (5, frame_of()), {}, "release=5"),
    "no records": (lambda f: (f.release, frame_of()[:0]), {}, "no record"),
    "no held-out records": (lambda f: (f.release, frame_of()), {"held_out": frame_of()[:0]}, "held_out hold no record"),
    "other columns": (lambda f: (f.release, frame_of().drop(columns="age")), {}, "lacks age"),
    "beyond": (lambda f: (f.release, frame_of().assign(age=-1)), {}, "below low"),
    "a person alone": (lambda f: (f.release, frame_of()), {"person": "sex"}, "max_rows"),
    "bins": (lambda f: (f.release, _encoded(f.release.schema)), {}, "an Encoded, which holds bins in place of values"),
    "records": (lambda f: (f.release, Records(f.release.schema, _encoded(f.release.schema))), {}, "a Records, which holds"),
    "groups": (lambda f: (f.release, frame_of()), {"by": "nosuch"}, "by='nosuch'"),
    "rows": (lambda f: (f.release, frame_of()), {"rows": 0}, "rows=0"),
    "seconds": (lambda f: (f.release, frame_of()), {"seconds": -1}, "seconds=-1"),
}


@pytest.mark.parametrize(("given", "options", "words"), BAD_EVALUATIONS.values(), ids=BAD_EVALUATIONS.keys())
def test_bad_evaluations(fitted, given, options, words):
    with pytest.raises(ValueError, match=words) as error:
        evaluate(*given(fitted), **options)
    assert len(str(error.value).splitlines()) == 1


def test_evaluations_of_records_in_any_form(fitted):
    frame, release = frame_of(60, seed=4), fitted.release
    by_values = TableValues.of(pa.RecordBatch.from_pandas(frame, preserve_index=False), release.schema)
    forms = [frame, pa.Table.from_pandas(frame), by_values]
    found = [evaluate(release, form, held_out=form, seconds=0.1).scores for form in forms]
    # The number of sections that there was time for depends on the machine.
    assert all(scores["columns"] == found[0]["columns"] for scores in found)
    assert evaluate(release, frame.assign(age=500), outside="clamp", seconds=0.02, rows=7).rows["synthetic"] == (7, 7)
