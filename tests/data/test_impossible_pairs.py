"""A pair of choices that is said to be impossible is that of no row, and two columns of one constraint have all of them."""

import itertools

import numpy as np
import pytest
from data.constraint_kinds import KINDS, rows_that_keep, schema_of

from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.narrowing import Narrower
from lightning_dpgen.data.tables.schema_file import parse_schema


def check(constraints, schema):
    codes, groups = rows_that_keep(schema), schema.layout.groups
    said = {(first, second): table for first, second, table in schema.impossible_pairs()}
    missed = 0
    for first, second in itertools.combinations(range(len(groups)), 2):
        there = np.zeros((groups[first], groups[second]), bool)
        there[codes[:, first], codes[:, second]] = True
        proved = said.get((first, second), np.zeros_like(there))
        assert not (proved & there).any(), (constraints, first, second)
        # A choice that no row has at all may have to do with other columns alone.
        missed += int((~there & ~proved & there.any(axis=1)[:, None] & there.any(axis=0)).sum())
    return missed, sum(int(table.sum()) for table in said.values())


@pytest.mark.parametrize("text", itertools.chain(*KINDS.values()), ids=str)
def test_one_constraint_has_all_its_impossible_pairs(text):
    """All of them, whatever the columns of whole numbers: plain, missing, relative, computed, or with special values."""
    missed, proved = check([text], schema_of([text]))
    assert missed == 0 and (proved or text in KINDS["several"])


def test_no_pair_of_a_row_is_impossible_by_any_constraints():
    """Sets of two to four constraints of all kinds; most of what no row has is proved."""
    random, kinds, missed, proved = np.random.default_rng(0), list(KINDS.values()), 0, 0
    for _ in range(25):
        chosen = random.choice(len(kinds), random.integers(2, 5), replace=False)
        texts = [kinds[kind][random.integers(len(kinds[kind]))] for kind in chosen]
        try:
            schema = schema_of(texts)
        except BadSchema:
            continue
        more = check(texts, schema)
        missed, proved = missed + more[0], proved + more[1]
    assert proved > 300 and missed < 0.05 * proved, (missed, proved)


def test_what_a_choice_changes_is_all_that_is_to_be_looked_at(monkeypatch):
    """The same pairs are proved where all constraints are looked at again for each choice: sets of all kinds."""
    random, kinds, whole, compared = np.random.default_rng(5), list(KINDS.values()), Narrower.narrowed, 0
    for _ in range(22):
        chosen = random.choice(len(kinds), random.integers(1, 5), replace=False)
        texts = [kinds[kind][random.integers(len(kinds[kind]))] for kind in chosen]
        try:
            schema, again = schema_of(texts), schema_of(texts)
        except BadSchema:
            continue
        found = {pair[:2]: pair[2].tolist() for pair in schema.impossible_pairs()}
        with monkeypatch.context() as patch:
            patch.setattr(Narrower, "narrowed", lambda self, values, changed=None: whole(self, values))
            assert found == {pair[:2]: pair[2].tolist() for pair in again.impossible_pairs()}
        compared += len(found)
    assert compared > 50


def test_columns_that_are_missing_together_take_few_rounds(monkeypatch):
    """In a chain of m columns each choice is narrowed a few times, and not once for each other column."""
    m, whole, calls = 12, Narrower.narrowed, []
    columns = "".join(f"  q{i}: {{type: integer, low: 1, high: 5, bins: 5, missing: true}}\n" for i in range(m))
    told = "".join(f"  - q{i} is missing if and only if q{i - 1} is missing\n" for i in range(1, m))
    schema = parse_schema(f"columns:\n{columns}constraints:\n{told}")
    monkeypatch.setattr(Narrower, "narrowed", lambda *args: calls.append(1) or whole(*args))
    pairs = schema.impossible_pairs()
    apart = np.zeros((6, 6), bool)
    apart[5, :5] = apart[:5, 5] = True
    assert len(pairs) == m * (m - 1) // 2 and all(np.array_equal(table, apart) for *_, table in pairs)
    assert len(calls) < 3 * 6 * m
