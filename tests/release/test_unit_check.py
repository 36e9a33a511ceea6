"""The unit of a certificate says of persons what is declared of them, also after a forger has sealed it again."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from contracts.sealed import rewrite
from keep_releases import KEPT

from lightning_dpgen.cli.main import main
from lightning_dpgen.release.certificate import FORMAT_VERSION
from lightning_dpgen.release.unit_check import check_unit, promises_records, unit_of_persons
from lightning_dpgen.specs.run import load_settings
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification.declared_settings import declared_unit
from lightning_dpgen.verification.verify import verify

TABLE = Path(__file__).parents[2] / "docs/start/visits.schema.yaml"
SEVERAL = [
    "one person with at most 40 records", "one person, with up to 40 records", "one\u00a0person with at most 40 records",
    "one person with all their records", "ONE PERSON  with at most 1 record",
    "one person\u200b with at most 40 rec\u00adords",
    "one person with at most \uff14\uff10 records", "one person with at most 40 rec\u043erds", "one patient and every stay",
    "one customer with forty orders", "one person (1,000 visits)", "one user with any number of sessions",
    "one pupil's rows",
    "all data of one person", "one person with no more than 12 visits", "one person \u2264 40 visits",
]  # fmt: skip
ONE = [
    "one record", "one person", "one household", "one patient's stay", "one patient\u2019s stay of 2 days",
    "one town", "2024_11",
    "one basket of the data set", "one series of the data set", "one pupil of 12 schools", "one child aged 3 to 6 years",
    "one person in 2024", "one class of 30 pupils", "one mother and child", "ein Patient", "one census tract", "me",
]  # fmt: skip
FORGED = [
    "one person with at most 40 records", "one person with at most 2 records", "one person with at most 3 record",
    "one person", "one record of the data set", "one household", "One person with at most 3 records",
]  # fmt: skip


def _kept(kind, folder):
    with zipfile.ZipFile(KEPT / f"format_{FORMAT_VERSION}" / f"{kind}.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.parametrize("unit", FORGED)
def test_the_unit_of_a_run_is_that_of_its_settings(tmp_path, unit):
    folder = _kept("persons", tmp_path)
    assert verify(folder).problems == []
    rewrite(folder, lambda c: c.update(unit=unit))
    assert any(problem.startswith("unit: ") and "'one person with at most 3 records'" in problem
               for problem in verify(folder).problems)  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "declared", "good"),
    [
        ("one record", {}, True),
        ("one household", {}, True),
        ("one person with at most 3 records", {}, True),
        ("one person with at most 3 records", {"max_rows": 3}, True),
        ("one person with at most 40 records", {"max_rows": 3}, False),
        ("one person", {"max_rows": 3}, True),
        ("one pupil", {"max_rows": 3, "person": "pupil"}, True),
        ("one person, with up to 3 records", {"max_rows": 3}, True),
        ("one person, with up to 40 records", {"max_rows": 3}, False),
        ("one person with all their records", {"max_rows": 3}, False),
    ],
)
def test_words_of_ones_own_are_free_where_they_contradict_nothing(unit, declared, good):
    assert (check_unit({"unit": unit, "declared": declared}, by_settings=False) == []) == good


@pytest.mark.parametrize("left_out", ["person", "max_rows"])
def test_a_part_of_what_is_declared_of_persons_is_not_left_out(tmp_path, left_out):
    folder = _kept("persons", tmp_path)
    rewrite(folder, lambda c: c["declared"].pop(left_out))
    assert any("settings have both or neither" in problem for problem in verify(folder).problems)


def test_the_unit_of_records_cannot_become_that_of_persons(tmp_path):
    folder = _kept("pictures", tmp_path)
    declared = json.loads((folder / "privacy.json").read_text())["declared"]
    for unit in SEVERAL:
        said = check_unit({"unit": unit, "declared": declared}, by_settings=True)
        assert "nothing bounds a person's records" in said[0], unit
        with pytest.raises(UsageError, match=r"^privacy\.unit=.*expected data\.person and data\.max_rows"):
            load_complete_settings(
                ["data=digits", f"privacy.unit='{unit}'" if "'" not in unit else f'privacy.unit="{unit}"']
            )
    rewrite(folder, lambda c: c.update(unit=SEVERAL[1]))
    assert any("nothing bounds a person's records" in problem for problem in verify(folder).problems)
    for unit in ONE:
        assert not promises_records(unit) and check_unit({"unit": unit, "declared": declared}, by_settings=True) == []


def test_a_unit_that_says_what_rows_make_a_record_is_that_of_these_settings_alone():
    words = [
        "data=series",
        "data.path=s.csv",
        "data.n=4000",
        "data.length=24",
        "data.low=0",
        "data.high=1",
        "model=measured",
    ]
    declared = load_complete_settings([*words, "data.form=long", "data.by=home", "data.columns=[kwh]"])
    unit, default = declared.unit, declared_unit(declared.dump_public())
    assert unit == "one series (all rows of one home) of the data set" == default and promises_records(unit)
    certificate = {"unit": unit, "declared": declared.dump_public()}
    assert check_unit(certificate, by_settings=True, default=default) == []
    assert check_unit(certificate | {"unit": unit.replace("home", "person")}, by_settings=True, default=default)
    assert declared_unit({"data": "table", "max_rows": "many"}) is None and declared_unit({"data": []}) is None


@pytest.mark.parametrize("most", [1, 2, 10_000])
def test_every_number_of_records_has_a_unit_that_agrees(most):
    words = ["data=table", "data.path=x.csv", f"data.schema={TABLE}", "data.n=20000", "data.person=patient"]
    settings = load_complete_settings([*words, f"data.max_rows={most}", "model=measured"])
    certificate = {"unit": settings.unit, "declared": settings.dump_public()}
    assert settings.unit == unit_of_persons(most) and check_unit(certificate, by_settings=True) == []


def test_a_unit_of_ones_own_is_read_as_it_is_written():
    assert load_settings(["data=digits", "privacy.unit=one household"]).privacy.unit == "one household"


def test_a_release_of_one_record_a_person_is_consistent(tmp_path, capsys):
    rows = pd.DataFrame({"who": np.arange(300) % 250, "size": np.arange(300) % 7})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    schema = {"columns": {"who": {"type": "fake", "fake": "row_number"}, "size": {"type": "integer", "low": 0, "high": 6}}}
    (tmp_path / "rows.schema.yaml").write_text(json.dumps(schema))
    words = ["data=table", f"data.path={tmp_path}/rows.csv", f"data.schema={tmp_path}/rows.schema.yaml", "data.n=250"]
    words += ["data.person=who", "data.max_rows=1", "model=measured", f"run_dir={tmp_path}/run"]
    assert main(["train", *words]) == 0
    assert verify(tmp_path / "run" / "release").problems == []
    capsys.readouterr()
