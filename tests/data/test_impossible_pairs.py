"""A pair of choices that is said to be impossible is that of no row, and two columns of one constraint have all of them."""

import itertools

import numpy as np
import pytest
from data.constraint_kinds import KINDS, rows_that_keep, schema_of

from lightning_dpgen.data.tables.column import BadSchema


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
