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
from lightning_dpgen.release.unit_check import check_unit, unit_of_persons
from lightning_dpgen.specs.run import read_run
from lightning_dpgen.specs.settings import read_settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.verification.verify import verify

TABLE = Path(__file__).parents[2] / "docs/start/visits.schema.yaml"
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
    rewrite(folder, lambda c: c.update(unit="one person with at most 40 records"))
    assert any("nothing bounds a person's records" in problem for problem in verify(folder).problems)


@pytest.mark.parametrize("most", [1, 2, 10_000])
def test_every_number_of_records_has_a_unit_that_agrees(most):
    words = ["data=table", "data.path=x.csv", f"data.schema={TABLE}", "data.n=20000", "data.person=patient"]
    settings = read_settings([*words, f"data.max_rows={most}", "model=measured"])
    certificate = {"unit": settings.unit, "declared": settings.declared()}
    assert settings.unit == unit_of_persons(most) and check_unit(certificate, by_settings=True) == []


def test_words_that_would_contradict_the_settings_are_refused_at_the_start():
    with pytest.raises(UsageError, match=r"^privacy\.unit=.*expected data\.person and data\.max_rows"):
        read_settings(["data=digits", "privacy.unit=one person with at most 3 records"])
    assert read_run(["data=digits", "privacy.unit=one household"]).privacy.unit == "one household"


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
