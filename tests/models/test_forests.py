"""Forests of columns: the records that are drawn, the probabilities that are told, and what is no forest."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare

from lightning_dpgen.api import schema_of
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.models.forests import StackedForests, forest_order
from lightning_dpgen.models.labelled import LabelledNetwork, added_up
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.outputs import chosen, chosen_in, draw
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import load_release
from lightning_dpgen.release.files import NotARelease

SIZES = (3, 2, 4, 2, 3)
SCHEMA = schema_of({
    "label": "y",
    "columns": {n: {"type": "category", "values": list(range(s))} for n, s in zip("abcdy", SIZES, strict=True)},
})  # fmt: skip
FORESTS = {
    "alone": [-1, -1, -1, -1, -1],
    "a chain": [1, 2, -1, 0, -1],
    "a star": [-1, 0, 0, 0, -1],
    "two": [3, 2, -1, -1, -1],
}
WEIGHTS = torch.tensor([0.2, 0.5, 0.3])


def forests(parents, seed=0):
    random, network = torch.Generator().manual_seed(seed), StackedForests(SCHEMA, 3, parents)
    for table in network.tables:
        table.exponential_(generator=random)
    # There are choices that never are together.
    network.tables[0][:, 0] = 0.0
    network.tilts.exponential_(generator=random)
    return network


def chances(network):
    """Return the probability of each record in each component, (k, records), one factor at a time, and the records."""
    every = np.array(list(itertools.product(*map(range, SIZES))))
    found = np.ones((3, len(every)))
    for c, (row, codes) in itertools.product(range(3), enumerate(every)):
        for group, parent in enumerate(network.parents):
            table = network.tables[group].double().numpy()[codes[parent] if parent >= 0 else 0]
            shares = table * network.tilts.double().numpy()[c, SCHEMA.layout.spans[group]]
            found[c, row] *= shares[codes[group]] / shares.sum()
    return found, Encoded(np.zeros((len(every), 0), np.float32), every.astype(np.uint8))


@pytest.mark.parametrize("parents", FORESTS.values(), ids=FORESTS)
def test_records_are_drawn_as_the_tables_say(parents):
    """Chi squared over all records with a chance, 20,000 draws: a false alarm in 1 of 10,000; without the edges, always."""
    network = forests(parents)
    expected = WEIGHTS.double().numpy() @ chances(network)[0]
    assert expected.sum() == pytest.approx(1.0)
    drawn = Mixture(network, WEIGHTS).sample_independent(20_000, torch.Generator().manual_seed(1)).codes
    seen = np.bincount(np.ravel_multi_index(drawn.T.astype(int), SIZES), minlength=len(expected))
    assert not seen[expected == 0.0].any()
    assert agreement(seen, expected) > 1e-4
    if any(parent >= 0 for parent in parents):
        alone = forests(FORESTS["alone"])
        for group in range(5):
            alone.tables[group].copy_(network.tables[group].mean(dim=0, keepdim=True))
        assert agreement(seen, WEIGHTS.double().numpy() @ chances(alone)[0]) < 1e-9


def agreement(seen, shares):
    """Return the p-value of counts, with rare records together."""
    expected = seen.sum() * shares
    rare = expected < 10
    counts, fits = (np.append(part[~rare], part[rare].sum() + 1.0) for part in (seen, expected))
    return chisquare(counts, fits * counts.sum() / fits.sum()).pvalue


@pytest.mark.parametrize("parents", FORESTS.values(), ids=FORESTS)
def test_the_label_is_told_as_by_the_rule_of_bayes(parents):
    """The oracle adds up all records that have the same other columns."""
    network, labels = forests(parents), SIZES[-1]
    joint, records = chances(network)
    of_labels = (WEIGHTS.double().numpy() @ joint).reshape(-1, labels)
    known = of_labels.sum(axis=1) > 0
    evidence = added_up(records, SCHEMA.layout, network.log_evidence).numpy().reshape(-1, labels, 3)[known, 0]
    others = joint.reshape(3, -1, labels).sum(axis=2)[:, known]
    posterior = WEIGHTS.double().numpy() * np.exp(evidence - evidence.max(axis=1, keepdims=True))
    expected = (WEIGHTS.double().numpy()[:, None] * others / (WEIGHTS.double().numpy() @ others)).T
    np.testing.assert_allclose(posterior / posterior.sum(axis=1, keepdims=True), expected, atol=1e-12)
    labelled = LabelledNetwork(network)
    labelled.label_closeness.fill_(1.0)
    told = labelled.label_shares(records, WEIGHTS).numpy().reshape(-1, labels, labels)[known, 0]
    np.testing.assert_allclose(told, of_labels[known] / of_labels[known].sum(axis=1, keepdims=True), atol=1e-4)


def test_a_forest_is_released_and_read_again(tmp_path):
    network = forests(FORESTS["two"])
    write_model(tmp_path, Mixture(network, WEIGHTS))
    release = load_release(tmp_path)
    assert release.mixture.network.parents == network.parents
    mine = Mixture(network, WEIGHTS).sample(50, torch.Generator().manual_seed(2)).codes
    assert np.array_equal(release.mixture.sample(50, torch.Generator().manual_seed(2)).codes, mine)
    network.tables[3].zero_()
    write_model(tmp_path, Mixture(network, WEIGHTS))
    with pytest.raises(NotARelease, match="numbers that are not finite"):
        load_release(tmp_path).sample(5, 0)


@pytest.mark.parametrize(
    "parents",
    [[-1], [0, -1, -1, -1, -1], [1, 0, -1, -1, -1], [5, -1, -1, -1, -1], [-2] * 5, ["0"] * 5, [True] * 5, [0.0] * 5],
)
def test_what_is_no_forest_is_refused(parents):
    with pytest.raises(ValueError, match="parents: expected"):
        StackedForests(SCHEMA, 2, parents)
    assert forest_order([-1, 0, 1], 3) == [0, 1, 2]


def test_no_group_follows_from_a_label_that_is_drawn_last():
    with pytest.raises(ValueError, match="expected a label from which no other group follows"):
        LabelledNetwork(StackedForests(SCHEMA, 2, [-1, -1, -1, 4, -1]))


@pytest.mark.parametrize("parents", FORESTS.values(), ids=FORESTS)
def test_a_label_drawn_by_sums_has_the_chances_of_its_shares(parents):
    """Both ways of drawing, 40,000 records each, by chi squared: a false alarm in 10,000; without the level, always."""
    network = LabelledNetwork(forests(parents))
    for tensor in (network.label_weights, network.label_level):
        tensor.normal_(generator=torch.Generator().manual_seed(3))
    network.label_closeness.fill_(0.7)
    component, generator = torch.arange(3).repeat_interleave(40_000), torch.Generator().manual_seed(5)
    made = network.generate((0, 40_000, 80_000, 120_000), generator)
    ways = network.draw(component, generator).numpy(), draw(made, SCHEMA.layout, generator).codes.astype(np.int64)
    first, second = (
        np.bincount(np.ravel_multi_index((component.numpy(), *own.T), (3, *SIZES)), minlength=3 * 144) for own in ways
    )
    there = first + second > 20
    statistic = np.square(first - second)[there] / (first + second)[there]
    assert statistic.sum() < chi2.isf(1e-4, there.sum() - 1)


def test_choices_by_sums_are_those_by_shares():
    """Bit for bit, with shares of 0 and numbers on the edges of shares, for each number of choices."""
    generator = torch.Generator().manual_seed(0)
    for choices in range(1, 40):
        shares = torch.rand(5, choices, generator=generator).round(decimals=1)
        shares[:, -1] += 0.1
        rows, uniform = (
            torch.randint(5, (300,), generator=generator),
            torch.rand(300, generator=generator).round(decimals=2),
        )
        expected = chosen(shares[rows], uniform)
        assert torch.equal(chosen_in(shares.cumsum(dim=1), rows, uniform), expected)
