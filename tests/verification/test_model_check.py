"""Shares and factors of the model of a table that was released are such."""

import pytest
import torch

from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.models.forests import StackedForests
from lightning_dpgen.verification.model_check import _no_shares

SCHEMA = parse_schema("columns: {a: {type: category, values: [x, y]}, b: {type: category, values: [p, q, r]}}")


def problems(change):
    network, weights = StackedForests(SCHEMA, 2, [-1, 0]), torch.tensor([0.25, 0.75])
    change(network, weights)
    return list(_no_shares(weights, network))


def test_a_factor_that_is_too_small_for_a_number_is_no_problem():
    assert problems(lambda network, weights: None) == []
    assert problems(lambda network, weights: network.tilts[0, :1].zero_()) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda network, weights: weights.mul_(2.0), "mixture_weights"),
        (lambda network, weights: network.tables[1][0].mul_(0.9), "table_1"),
        (lambda network, weights: network.tables[0][0].copy_(torch.tensor([1.5, -0.5])), "table_0"),
        (lambda network, weights: network.tilts[0, 1].neg_(), "tilts"),
        (lambda network, weights: network.tilts[1, 2:].zero_(), "tilts"),
    ],
    ids=["weights", "a row", "a share", "a factor", "a group"],
)
def test_whatever_is_no_share_is_told_with_its_name(change, where):
    (said,) = problems(change)
    assert where in said
