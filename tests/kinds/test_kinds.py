"""No module outside of a kind's own rooms names the class of its schema; and kinds are what their schemas say."""

import ast
from pathlib import Path

import pytest

import lightning_dpgen
from lightning_dpgen.data.schema import kind_named, kinds

PACKAGE = Path(lightning_dpgen.__file__).parent
# The rooms of all kinds; and what is for one kind alone: public sets, each with its schema, two functions that encode
# pictures and tables, `fit` of a table, and the command that drafts the schema of one.
ROOMS = (
    "kinds/", "data/tables/", "data/baskets/", "data/series/", "data/pictures/", "data/histories/",
    "data/sets_in_files.py", "data/simulated/", "data/records.py", "api.py", "cli/schema.py",
)  # fmt: skip


def _names(source: str) -> set[str]:
    """Return all names and attributes of a module, but for those in its texts."""
    nodes = list(ast.walk(ast.parse(source)))
    found = {node.id for node in nodes if isinstance(node, ast.Name)}
    found |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return found | {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}


def test_only_its_own_rooms_name_the_schema_of_a_kind():
    schemas = {kind.schema.__name__ for kind in kinds().values()}
    assert {"TableSchema", "BasketSchema", "SeriesSchema", "ImageSchema", "HistorySchema"} <= schemas
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(ROOMS):
            named = sorted(_names(path.read_text(encoding="utf-8")) & schemas)
            assert not named, f"{place} names {named}: ask its Schema or kind_of(schema) in place of its class"


def test_a_module_that_asks_for_a_class_is_found():
    source = "def is_table(schema):\n    return isinstance(schema, TableSchema)\n"
    assert "TableSchema" in _names(source) and "TableSchema" not in _names("'TableSchema'")


@pytest.mark.parametrize("name", ["table", "baskets", "series", "images", "histories"])
def test_a_kind_has_the_name_of_its_schemas(name):
    kind = kind_named(name)
    assert kind.name == kind.schema.kind == name and kind.word and kind.parts and kind.measured_networks


@pytest.mark.parametrize("name", [None, 3, "sounds", ""])
def test_an_unknown_kind_is_refused_with_those_that_there_are(name):
    with pytest.raises(ValueError, match="expected one of baskets, histories, images, series"):
        kind_named(name)
