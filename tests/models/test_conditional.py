"""Records of which some choices are given have exactly the conditional distribution that all records tell by Bayes."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from marks import but

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.models import conditional
from lightning_dpgen.models.conditional import ConditionalSampler, is_conditional
from lightning_dpgen.models.forests import StackedProducts
from lightning_dpgen.models.labelled import Crossing, LabelledNetwork, added_up
from lightning_dpgen.models.mixture import Diverged
from tests.models.test_forests import FORESTS, SCHEMA, SIZES, WEIGHTS, agreement, chances, forests

LAYOUT = SCHEMA.layout
N = 2_000
SAME = torch.zeros(N, dtype=torch.int64)


def products():
    network, random = StackedProducts(SCHEMA, 3), np.random.default_rng(3)
    network.means = torch.from_numpy(np.concatenate([random.dirichlet(np.ones(s), 3) for s in SIZES], axis=1)).float()
    return network


def labelled(network, level, crossings=()):
    """Put a label on top, which the columns and the component tell; `level` makes its last value rare."""
    found = LabelledNetwork(network, crossings)
    random = torch.Generator().manual_seed(4)
    found.label_weights.normal_(generator=random)
    found.label_closeness.fill_(0.7)
    found.label_level.copy_(torch.tensor([0.5, 0.0, level]))
    return found


CROSSINGS = [
    Crossing((0, 1), tuple(tuple(range(SIZES[group])) for group in (0, 1))),
    Crossing((1, 2), ((0, 1), (0, 1, 0, 2))),
]
NETWORKS = {
    "products": products,
    **{name: lambda parents=parents: forests(parents) for name, parents in FORESTS.items()},
    "a label of its own": lambda: labelled(products(), -1.0),
    "a label on a star": lambda: labelled(forests([-1, 0, 0, 0, 2]), -1.0),
    "a label of crossings": lambda: labelled(forests([-1, 0, 0, 0, 2]), -1.0, CROSSINGS),
    "a rare label": lambda: labelled(forests([1, 2, -1, 0, -1]), -6.0),
}


def joint(network):
    """Return the probability of every record, (records,), one factor at a time, and the records."""
    plain = network.network if isinstance(network, LabelledNetwork) else network
    if isinstance(plain, StackedProducts):
        tables = [torch.ones(1, size) for size in SIZES]
        plain = SimpleNamespace(parents=FORESTS["alone"], tables=tables, tilts=plain.means)
    found, every = chances(plain)
    if isinstance(network, LabelledNetwork):
        # The wrapped network's shares of labels, the last group, are one of the things that tell of the label.
        apart = found.reshape(3, -1, SIZES[-1])
        others = apart.sum(axis=2, keepdims=True)
        followed = np.divide(apart, others, out=np.zeros_like(apart), where=others > 0.0).clip(min=1e-4)
        wide = network.crossed(every[:: SIZES[-1]])
        told = network.label_level.double() + added_up(wide, network.crossed.wide, network.label_weights.double())
        logits = told.numpy() + float(network.label_closeness) * np.log(followed)
        found = (others * torch.softmax(torch.from_numpy(logits), dim=2).numpy()).reshape(3, -1)
    return WEIGHTS.double().numpy() @ found, every.codes


def allowed_of(rows, known):
    """Return what records (n, width) may have that are known (groups,) in part to be as rows (n, groups)."""
    allowed = torch.ones(len(rows), LAYOUT.width)
    for group, span in enumerate(LAYOUT.spans):
        if known[group]:
            allowed[:, span] = torch.eye(SIZES[group])[torch.from_numpy(rows[:, group].astype(int))]
    return allowed


def places(codes):
    return np.ravel_multi_index(codes.T.astype(int), SIZES)


@pytest.mark.parametrize(
    "make", but(NETWORKS, "a label of its own", "a label on a star", "a label of crossings", *list(FORESTS)[1:])
)
def test_every_subset_of_columns_may_be_given(make):
    """Where records of the model are completed from a part of them, the complete ones are records of the model again.

    Chi squared over all records for each of 32 subsets: a false alarm in 1 of 3,000 of all of them together.
    """
    network = make()
    expected, every = joint(network)
    assert expected.sum() == pytest.approx(1.0)
    random, sampler = np.random.default_rng(1), ConditionalSampler(network, WEIGHTS)
    generator = torch.Generator().manual_seed(2)
    for known in itertools.product([True, False], repeat=len(SIZES)):
        rows = every[random.choice(len(every), N, p=expected)]
        drawn = sampler.draw(allowed_of(rows, known), torch.arange(N), generator).codes
        assert (drawn == rows)[:, np.array(known)].all()
        if not all(known):
            assert agreement(np.bincount(places(drawn), minlength=len(every)), expected) > 1e-5, known


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
def test_each_record_is_drawn_by_its_own_condition(make):
    """Chi squared for single conditions, rare ones and sets of choices too: a false alarm in 1 of 1,000 in all."""
    network = make()
    expected, every = joint(network)
    sampler, generator = ConditionalSampler(network, WEIGHTS), torch.Generator().manual_seed(5)
    for case in range(8):
        may = [np.random.default_rng([case, group]).random(size) < 0.5 for group, size in enumerate(SIZES)]
        may = [choices if choices.any() else ~choices for choices in may]
        allowed = torch.from_numpy(np.concatenate(may)).float()[None]
        fits = np.all([choices[every[:, group]] for group, choices in enumerate(may)], axis=0)
        drawn = sampler.draw(allowed, SAME, generator).codes
        assert fits[places(drawn)].all()
        seen = np.bincount(places(drawn), minlength=len(every))
        assert agreement(seen, expected * fits / (expected * fits).sum()) > 1e-5
        if not isinstance(network, LabelledNetwork):
            assert float(sampler.log_chances(allowed).exp()) == pytest.approx((expected * fits).sum(), rel=1e-5)


def test_a_label_that_hardly_ever_is_has_its_own_records():
    """One of 5,000 records has it: all are drawn, and by their weights."""
    network = labelled(forests(FORESTS["a star"]), -8.0)
    expected, every = joint(network)
    assert 1e-5 < expected[every[:, 4] == 2].sum() < 1e-3
    allowed = allowed_of(np.array([[0, 0, 0, 0, 2]]), [False] * 4 + [True])
    drawn = ConditionalSampler(network, WEIGHTS).draw(allowed, SAME, torch.Generator().manual_seed(6)).codes
    fits = (every[:, 4] == 2) * expected
    assert agreement(np.bincount(places(drawn), minlength=len(every)), fits / fits.sum()) > 1e-5


def test_records_that_are_tried_often_enough_are_taken_by_their_weight(monkeypatch):
    """Two of three labels are rare, and most records are taken among 150 tries: nearly exact, and not without weights."""
    network = labelled(forests(FORESTS["a star"]), 0.0)
    network.label_weights.mul_(0.5)
    network.label_level.copy_(torch.tensor([10.0, 0.0, 0.0]))
    expected, every = joint(network)
    fits = (every[:, 4] > 0) * expected
    assert fits.sum() < 2e-3
    monkeypatch.setattr(conditional, "TRIES", 150)
    allowed = torch.ones(1, LAYOUT.width)
    allowed[:, LAYOUT.spans[4].start] = 0.0
    drawn = ConditionalSampler(network, WEIGHTS).draw(allowed, SAME[:500], torch.Generator().manual_seed(6)).codes
    assert (drawn[:, 4] > 0).all()
    assert agreement(np.bincount(places(drawn), minlength=len(every)), fits / fits.sum()) > 1e-4
    apart = fits.reshape(-1, 3)
    alike = expected.reshape(-1, 3).sum(axis=1, keepdims=True) * apart / apart.sum(axis=1, keepdims=True).clip(1e-300)
    assert agreement(np.bincount(places(drawn), minlength=len(every)), alike.ravel() / alike.sum()) < 1e-9


def test_what_the_model_never_makes_is_completed_all_the_same():
    """The first choice of the first column never is: a record that has it has the other columns by what they say."""
    network = forests(FORESTS["a chain"])
    sampler, generator = ConditionalSampler(network, WEIGHTS), torch.Generator().manual_seed(7)
    allowed = allowed_of(np.array([[0, 1, 0, 0, 0]]), [True, True, False, False, False])
    assert (sampler.draw(allowed, SAME, generator).codes[:, :2] == [0, 1]).all()
    assert float(sampler.log_chances(allowed)) < np.log(1e-20)


def test_only_components_with_a_weight_count():
    network = forests(FORESTS["two"])
    alone, every = ConditionalSampler(network, torch.tensor([0.0, 1.0, 0.0])), chances(network)[1].codes
    expected = chances(network)[0][1] * (every[:, 1] == 1)
    allowed = allowed_of(np.array([[0, 1, 0, 0, 0]]), [False, True, False, False, False])
    seen = np.bincount(places(alone.draw(allowed, SAME, torch.Generator().manual_seed(8)).codes), minlength=len(every))
    assert agreement(seen, expected / expected.sum()) > 1e-5


def test_a_network_without_shares_is_refused():
    network = labelled(products(), 0.0)
    network.label_weights.fill_(torch.inf)
    allowed = allowed_of(np.array([[0, 1, 0, 0, 2]]), [True] * 2 + [False] * 2 + [True])
    with pytest.raises(Diverged, match="not finite"):
        ConditionalSampler(network, WEIGHTS).draw(allowed, SAME, torch.Generator().manual_seed(9))


def test_networks_of_other_kinds_are_not_conditional():
    assert is_conditional(products()) and is_conditional(labelled(products(), 0.0))
    assert not is_conditional(StackedProducts(ImageSchema(1, 2, levels=1, classes=2), k=2))
