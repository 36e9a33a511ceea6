"""The statement's words about persons, and about parts found instead of assumed; a function of the other fields alone."""

import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from release.released import Page, other_problems, released

from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.data.tables.schema_keys import column_of
from lightning_dpgen.release.certificate import statement
from lightning_dpgen.release.pages.report import attacks, write_pages

SCHEMA = TableSchema((column_of("sex", {"type": "category", "values": ["F", "M"]}),))
PERSON = {"unit": "one person with at most 3 records", "person": "id", "max_rows": 3}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return released(tmp_path_factory.mktemp("a") / "r", SCHEMA)


def test_without_persons_a_record_is_protected(certificate):
    said = certificate["statement"]
    assert "for one record of the data set, whether that one record was added to the data" in said
    assert "A person with several records is protected less" in said and "took no part" not in said
    assert "(90), the description of a record, and the settings" in said


def test_a_person_with_all_records_is_protected(tmp_path):
    said = released(tmp_path / "r", SCHEMA, **PERSON)["statement"]
    assert "for one person with at most 3 records, whether that person's records were added to the data or removed" in said
    assert "Of a person with more than 3 records, those beyond that number took no part." in said
    assert "protected less" not in said and "that one record" not in said
    assert other_problems(tmp_path / "r") == []
    page = Page((tmp_path / "r" / "report.html").read_text()).text
    assert "1 person" in page and "with at most 3 records" in page and "a certain person's records were" in page
    assert "one person's records added or removed" in page and "one record" not in page


def test_what_was_found_was_not_assumed(tmp_path):
    found = [f"bounds of column {i}" for i in range(25)]
    said = released(tmp_path / "r", SCHEMA, discovery_share=0.05, discovered=found)["statement"]
    assert "but for what was found in the records" in said and "bounds of column 19 and 5 more)" in said
    assert other_problems(tmp_path / "r") == []
    page = Page((tmp_path / "r" / "report.html").read_text()).text
    assert "were not assumed but found" in page and "All of this description" not in page
    assert "but for what was found" in released(tmp_path / "s", SCHEMA, discovery_share=0.05)["statement"]


def test_a_page_without_privacy_promises_nothing(certificate, tmp_path):
    public = certificate | {"private": False, "epsilon": None, "delta": None, "also": None}
    public["statement"] = statement(public)
    write_pages(tmp_path, public, "weights", architecture="a network", parameters=1)
    page = Page((tmp_path / "report.html").read_text()).text
    assert "THIS IS NOT A PRIVATE RELEASE" in page and "What epsilon means" not in page


def test_another_person_or_fewer_records_are_found_out(certificate, tmp_path):
    changed = copy.deepcopy(certificate)
    changed["declared"]["max_rows"] = 3
    assert statement(changed) != certificate["statement"]


@settings(max_examples=30, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4))
def test_anything_declared_by_strangers_has_a_statement(certificate, anything):
    for name in ("max_rows", "discovered", "discovery_share"):
        changed = certificate | {"declared": certificate["declared"] | {name: anything}}
        assert isinstance(statement(changed), str)


@settings(max_examples=50, deadline=None)
@given(st.floats(0, 20), st.floats(0, 0.01))
def test_no_randomised_response_beats_the_bound_on_attacks(epsilon, delta):
    """(epsilon, delta)-randomised response is the worst there is: its best tests reach the bound and no more."""
    bounds = attacks({"private": True, "relation": "add_or_remove_one", "epsilon": epsilon, "delta": delta})
    odds = math.exp(epsilon)
    # Outcomes: "surely in", "says in", "says out", "surely out", under in and under out.
    inside = [delta, (1 - delta) * odds / (1 + odds), (1 - delta) / (1 + odds), 0.0]
    outside = [0.0, (1 - delta) / (1 + odds), (1 - delta) * odds / (1 + odds), delta]
    for wrongly, most in bounds:
        said = wrong = 0.0
        for i, o in zip(inside, outside, strict=True):
            part = 1.0 if o == 0.0 else min(1.0, max(0.0, (wrongly - wrong) / o))
            said, wrong = said + part * i, wrong + part * o
        assert said == pytest.approx(most, rel=1e-9, abs=1e-12), "it is reached, and so it is no larger than it must be"
