"""Several records a person: how many take part, which, and that lots and splits refuse more."""

import numpy as np
import pytest
import scipy.sparse
import torch
from contracts.laws.accounts import account_of
from contracts.laws.clustering import no_person_costs_a_split_more_than_its_accesses
from contracts.laws.lots import Owned
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_dpgen.clustering.kmeans import private_split
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.persons import bounded
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import PoissonLots

SPARSE = scipy.sparse.random_array((300, 40), density=0.1, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
NONE = np.zeros((300, 0), np.uint8)
KINDS = {
    "codes": Encoded(np.zeros((300, 0), np.float32), np.random.default_rng(1).integers(0, 5, (300, 4)).astype(np.uint8)),
    "pixels": Encoded(np.random.default_rng(2).integers(0, 256, (300, 6)).astype(np.uint8), NONE),
    "readings": Encoded(np.random.default_rng(3).random((300, 6)).astype(np.float32), NONE),
    "items": Encoded((SPARSE > 0).astype(np.uint8), NONE),
}


def test_no_person_costs_a_split_more_than_its_accesses():
    no_person_costs_a_split_more_than_its_accesses()


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**16), max_rows=st.integers(1, 5))
@settings(max_examples=15, deadline=None)
def test_as_many_as_there_may_be_and_the_same_beside_any_others(kind, seed, max_rows):
    encoded, random = KINDS[kind], np.random.default_rng(seed)
    persons = random.integers(0, 60, 300)
    kept = bounded(encoded, persons, max_rows)
    assert (np.diff(kept) > 0).all()
    counts, before = np.bincount(persons[kept], minlength=60), np.bincount(persons, minlength=60)
    assert (counts == np.minimum(before, max_rows)).all()
    some = np.flatnonzero(persons < 20)
    shuffled = random.permutation(some)
    again = shuffled[bounded(encoded[shuffled], persons[shuffled], max_rows)]
    same = {tuple(_rows(encoded, np.sort(kept[persons[kept] == p])) for p in range(20))}
    assert same == {tuple(_rows(encoded, np.sort(again[persons[again] == p])) for p in range(20))}


def _rows(encoded, positions):
    units = encoded.units[positions]
    units = units.toarray() if scipy.sparse.issparse(units) else units
    return tuple(sorted(tuple(row) for row in np.concatenate([units, encoded.codes[positions]], axis=1).tolist()))


def test_no_record_is_preferred():
    """4,000 persons have the records 0 to 9 each in a column beside one of their own: each is kept about as often.

    Within 5.5 standard deviations: a false alarm of 4e-7.
    """
    codes = np.stack([np.tile(np.arange(10), 4000), np.repeat(np.arange(4000), 10)], axis=1).astype(np.int16)
    kept = bounded(Encoded(np.zeros((40_000, 0), np.float32), codes), np.repeat(np.arange(4000), 10), 3)
    counts = np.bincount(codes[kept, 0], minlength=10)
    assert (np.abs(counts - 1200) < 5.5 * np.sqrt(4000 * 0.3 * 0.7)).all()


def test_more_records_than_the_plan_has_are_refused():
    records, persons = torch.zeros(4, 2), np.array([0, 0, 0, 1])
    with pytest.raises(BadRecords, match="max_rows=2"):
        PoissonLots(records, account_of({"gradient": 1.0}, max_rows=2), persons=persons)
    with pytest.raises(ValueError, match="persons: expected"):
        PoissonLots(records, account_of({"gradient": 1.0}, max_rows=3), persons=persons[:3])
    store = Owned(store_of(records), persons)
    with pytest.raises(BadRecords, match="max_rows=1"):
        private_split(store, torch.ones(2), SplitSettings(k=1), 4, account_of({"x": 1.0}), torch.Generator())


def test_a_plan_about_persons_must_be_told_whose_records_are():
    """Drawn one by one, a person's records would be in nearly every lot."""
    account, records = account_of({"gradient": 1.0}, max_rows=3), torch.zeros(4, 2)
    with pytest.raises(ValueError, match="persons=None: the plan protects a person with up to max_rows=3"):
        PoissonLots(records, account)
    with pytest.raises(ValueError, match="persons=None"):
        private_split(records, torch.ones(2), SplitSettings(k=1), 4, account, torch.Generator())
    assert not account.ledger.accesses


def test_records_beside_other_columns_keep_their_persons():
    persons = np.array([0, 0, 1, 1])
    owned, other = (Owned(store_of(torch.zeros(4, 2)), p) for p in (persons, persons[::-1]))
    both = store_of((owned, torch.arange(4)))
    assert (both.persons == persons).all()
    with pytest.raises(BadRecords, match="max_rows=1"):
        PoissonLots(both, account_of({"gradient": 1.0}))
    with pytest.raises(BadRecords, match="name different persons"):
        PoissonLots(store_of((owned, other)), account_of({"gradient": 1.0}, max_rows=2))


@pytest.mark.parametrize("wrong", [{"max_rows": 0}, {"persons": np.zeros(3, int)}, {"persons": np.zeros(300)}])
def test_bad_arguments(wrong):
    with pytest.raises(ValueError, match=r"max_rows=0|persons"):
        bounded(KINDS["codes"], **{"persons": np.zeros(300, int), "max_rows": 1} | wrong)
