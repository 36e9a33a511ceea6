"""Files of other programs, with anything in the place of anything, give a draft that can be written, or one line."""

import copy
import json
import random

import pytest
import yaml

from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.importers import read_domain, read_sdv
from lightning_dpgen.data.tables.schema_draft import draft_text

WRONG = (None, True, 0, -1, 1.5, 10**300, "x", "", "%", "%Y", "\x00", "?", [], ["id"], [[]], {}, {"x": 1}, "999999-99-99")
SDV = {
    "METADATA_SPEC_VERSION": "SINGLE_TABLE_V1",
    "primary_key": "id",
    "columns": {
        "id": {"sdtype": "id"},
        "age": {"sdtype": "numerical", "computer_representation": "Int64", "range_min": 0, "range_max": 99},
        "when": {"sdtype": "datetime", "datetime_format": "%Y-%m-%d", "range_min": "2001-01-01"},
        "sex": {"sdtype": "categorical", "range_values": ["F", "M"], "range_is_nullable": True},
        "ok": {"sdtype": "boolean"},
        "mail": {"sdtype": "email"},
    },
}
DOMAIN = {
    "age": {"type": "NumericalAttribute", "min_value": 0, "max_value": 99, "dtype": "int", "clip_to_range": True},
    "sex": {"type": "CategoricalAttribute", "possible_values": ["F", "M"], "out_of_domain_index": 0, "description": "x"},
    "note": {"type": "FreeFormTextAttribute", "max_tokens": 9},
    "size": 5,
}


def _places(value, before=()):
    if before:
        yield before
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from _places(value[key], (*before, key))


@pytest.mark.parametrize(("read", "whole", "ending"), [(read_sdv, SDV, "json"), (read_domain, DOMAIN, "json"),
                                                       (read_domain, DOMAIN, "yaml")])  # fmt: skip
def test_anything_in_the_place_of_anything(tmp_path, read, whole, ending):
    path, random_, refused = tmp_path / f"theirs.{ending}", random.Random(3), 0
    for place in _places(whole):
        for wrong in random_.sample(WRONG, 9) if ending == "yaml" else WRONG:
            edited = copy.deepcopy(whole)
            parent = edited
            for key in place[:-1]:
                parent = parent[key]
            parent[place[-1]] = wrong
            path.write_text(json.dumps(edited) if ending == "json" else yaml.safe_dump(edited))
            try:
                text = draft_text(read(path), str(path))
                assert isinstance(text, str)
            except BadSchema as error:
                refused += 1
                assert "\n" not in str(error)
            except Exception as error:
                raise AssertionError(f"{place} = {wrong!r}") from error
    assert refused > 5


# Keys whose values a program may read off the records, by their paths; no draft has the marks by chance.
READ_OFF = {
    "sdv": (read_sdv, SDV, {
        ("columns", "age", "range_min"): -8642, ("columns", "age", "range_max"): 8642,
        ("columns", "when", "range_min"): "1886-04-02", ("columns", "when", "range_max"): "2086-04-02",
        ("columns", "sex", "range_values"): ["x8642"], ("columns", "mail", "range_values"): ["x8642"],
    }),
    "domain": (read_domain, DOMAIN, {
        ("age", "min_value"): -8642, ("age", "max_value"): 8642, ("sex", "possible_values"): ["x8642"], ("size",): 8643,
    }),
}  # fmt: skip
MARKS = ("8642", "1886-04-02", "2086-04-02")


@pytest.mark.parametrize(("read", "whole", "marked"), READ_OFF.values(), ids=READ_OFF)
def test_what_a_program_may_have_read_off_the_records_is_no_declaration(tmp_path, read, whole, marked):
    """A draft is the same whatever stands there, unless a person declares that the file is public."""
    path, drafts = tmp_path / "theirs.json", {}
    edited = copy.deepcopy(whole)
    for (*above, key), mark in marked.items():
        parent = edited
        for step in above:
            parent = parent[step]
        parent[key] = mark
    for name, content in (("theirs", whole), ("marked", edited)):
        path.write_text(json.dumps(content))
        drafts[name] = {public: draft_text(read(path, declared_public=public), "F") for public in (False, True)}
    assert drafts["theirs"][False] == drafts["marked"][False]
    assert not any(mark in drafts["marked"][False] for mark in MARKS)
    assert "8642" in drafts["marked"][True] and "???" in drafts["marked"][False]


@pytest.mark.parametrize("kind", ["numerical", "categorical", "boolean", "datetime"])
def test_whether_a_value_is_missing_is_asked_and_not_taken(tmp_path, kind):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"columns": {"a": {"sdtype": kind, "range_is_nullable": True}}}))
    assert read_sdv(path)[0].fields["missing"] == "???"
    assert read_sdv(path, declared_public=True)[0].fields["missing"] is True


HOSTILE = {
    "brackets": b"[" * 100_000, "not UTF-8": b"\xff", "a key twice": b'{"a": 1, "a": 1}', "NaN": b'{"a": NaN}',
    "a list": b"[]",
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("read", [read_sdv, read_domain])
def test_json_that_readers_would_read_differently_is_refused(tmp_path, read, content):
    (tmp_path / "theirs.json").write_bytes(content)
    with pytest.raises(BadSchema, match=r"theirs\.json") as said:
        read(tmp_path / "theirs.json")
    assert "\n" not in str(said.value)
