"""Laws of clipping rules: what one record can change in a step, and what else a step depends on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from contracts.door import Door, others_learn_the_same, overspent, parts_add_up
from contracts.drawn import draw_of, handed
from contracts.laws.accounts import account_of
from torch import nn

from lightning_dpgen.gradients.clipping import (
    Decay,
    DPNorm,
    Fixed,
    Normalised,
    PerComponent,
    PerLayer,
    PerPerson,
    Quantile,
    Schedule,
    Smoothed,
)
from lightning_dpgen.gradients.component_factors import OneComponent
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, materialised
from lightning_dpgen.gradients.scopes import LotNorms
from lightning_dpgen.gradients.terms import PerGroup
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.sampling.lots import PoissonLots

RULES = {
    "fixed": Fixed(0.5),
    "dpnorm": DPNorm(c_max=2.0, bins=10, share=0.2),
    "decay": Decay(0.5, factor=0.5, least=0.25),
    "schedule": Schedule(lambda lot: 0.5 / (1 + lot)),
    "quantile": Quantile(0.5, share=0.2),
    "normalised": Normalised(0.5),
    "smoothed": Smoothed(DPNorm(c_max=2.0, bins=10, share=0.2), keep=0.8),
}


def bound_of(rule, access, norms: torch.Tensor, before: float | None = None, expected_rows: float = 5.0) -> float:
    """Return the one bound that a rule chooses for whole gradients."""
    return rule.bounds(access, LotNorms((norms,), expected_rows=expected_rows), None if before is None else (before,))[0]


ROWS = torch.randn(9, 3, 4, generator=torch.Generator().manual_seed(0))


def step_of(rule):
    """Return a step of the optimizer from 0 on the gradients it is handed; it gives the new weights and the bound."""

    def run(gradients):
        weight = nn.Parameter(torch.zeros(3, 4))
        account = account_of({**dict.fromkeys(rule.noise_shares, 4.0), "gradient": 1.0})
        optimizer = PrivateOptimizer(
            torch.optim.SGD([weight], lr=1.0), account=account, clipping=rule, expected_batch_size=5.0
        )
        optimizer.set_gradients(handed(account, {weight: gradients}))
        optimizer.step()
        return weight.detach(), optimizer.last_bound

    return run


def no_record_costs_more_than_the_access(rule=RULES["fixed"], extra=None, place=0) -> None:
    extra = 100 * ROWS[:1] if extra is None else extra
    more = torch.cat([ROWS[:place], extra, ROWS[place:]])
    assert max(overspent(step_of(rule), ROWS, more)) <= 1.0
    # The first record of an empty lot, and the last one that leaves.
    assert max(overspent(step_of(rule), extra, ROWS[:0])) <= 1.0


def a_large_record_costs_all_that_was_paid(rule=RULES["fixed"]) -> None:
    """Check that the bound is met, so that noise for half of it would be noticed."""
    assert max(overspent(step_of(rule), ROWS, torch.cat([100 * ROWS[:1], ROWS]))) > 0.999


def step_with(rules, multiplier=1.0):
    """Return a step of the optimizer on gradients that `make(weights, data)` makes, one set for each rule."""

    def of(make):
        def run(data):
            weights = [nn.Parameter(torch.zeros(3, 4)), nn.Parameter(torch.zeros(3, 2))]
            noises = {name: multiplier for rule in rules for name in rule.noise_shares} | {"gradient": multiplier}
            account = account_of(noises)
            optimizer = PrivateOptimizer(
                torch.optim.SGD(weights, lr=1.0), account=account, clipping=rules, expected_batch_size=5.0
            )
            terms = make(weights, data)
            draw = draw_of(account, max(len(own) for own in terms))
            for own in terms:
                own.draw = draw
            optimizer.set_gradients(*terms)
            optimizer.step()
            return torch.cat([w.detach().flatten() for w in weights]), optimizer.last_bound

        return run

    return of


def _two_layers(rows: torch.Tensor) -> list[torch.Tensor]:
    """Return gradients of two layers from one tensor a record."""
    return [rows, 0.3 * rows[:, :, :2]]


def _grouped(weights, data):
    rows, index = data
    groups = Groups(index, 3)
    forms = {p: Dense(g) for p, g in zip(weights, _two_layers(rows), strict=True)}
    return [PerSampleGradients(forms, [[p] for p in weights], 3, groups=3, partition=groups)]


def no_record_costs_its_group_more_than_the_access(rule=RULES["dpnorm"]) -> None:
    """Check records that turn their group's gradient round or move it to another bin, and the first of a group."""
    index = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 0])
    run = step_with([rule])(_grouped)
    longest = 0.0
    for rows in (ROWS, 0.01 * ROWS):
        for extra in (-100 * ROWS[[1, 4, 7]].sum(dim=0, keepdim=True), 100 * ROWS[:1], -0.3 * ROWS[:1]):
            for group in range(3):
                more = torch.cat([rows, extra]), torch.cat([index, torch.tensor([group])])
                longest = max([longest, *overspent(run, (rows, index), more)])
    assert longest <= 1.0
    alone = overspent(run, (ROWS[:1], index[:1]), (ROWS[:0], index[:0]))
    assert max(alone) <= 1.0


def no_record_costs_layers_more_than_the_access(rule=RULES["fixed"]) -> None:
    run = step_with([PerLayer(rule)])(
        lambda weights, rows: [materialised(dict(zip(weights, _two_layers(rows), strict=True)))]
    )
    for extra in (100 * ROWS[:1], 0.01 * ROWS[:1]):
        assert max(overspent(run, ROWS, torch.cat([extra, ROWS]))) <= 1.0


def no_record_costs_a_mixture_more_than_the_access(rule=RULES["fixed"]) -> None:
    """Check three components: the first has long gradients, the last short ones."""
    sizes = torch.tensor([2.0, 0.5, 0.02])

    def gradients(weights, counts):
        offsets = [0, *itertools.accumulate(counts)]
        rows = torch.cat([100 * s * ROWS[:1].expand(n, -1, -1)[:, 0] for s, n in zip(sizes, counts, strict=True)])
        forms = {p: OneComponent(Dense(rows[:, : p.shape[1]].clone()), offsets) for p in weights}
        return [PerSampleGradients(forms, [[p] for p in weights], offsets[-1], offsets=offsets)]

    run = step_with([PerComponent(rule)])(gradients)
    for more in ((4, 3, 2), (3, 4, 2), (3, 3, 3)):
        assert max(overspent(run, (3, 3, 2), more)) <= 1.0
    assert max(overspent(run, (0, 0, 0), (0, 0, 1))) <= 1.0


def no_record_costs_several_terms_more_than_the_access() -> None:
    """Check one term of records and one of groups that move in one direction."""
    rules = [Fixed(0.5), Fixed(0.2)]

    def gradients(weights, data):
        return [materialised(dict(zip(weights, _two_layers(data[0]), strict=True))), *_grouped(weights, data)]

    index = torch.zeros(9, dtype=torch.long)
    spent = overspent(step_with(rules)(gradients), (ROWS, index), (torch.cat([ROWS, 100 * ROWS[:1]]), F.pad(index, (0, 1))))
    assert max(spent) <= 1.0
    rows, index = -100 * ROWS[:1], index[:1]
    turned = overspent(
        step_with(rules)(gradients), (rows, index), (torch.cat([rows, 1e4 * ROWS[:1]]), F.pad(index, (0, 1)))
    )
    assert 0.99 < max(turned) <= 1.0, "both terms move to their bounds"


def step_of_persons(rule, max_rows=3):
    """Return a step on the gradients (B, 3, 4) of records of persons, in two components with a block of weights each."""

    def run(data):
        rows, persons, components = data
        weights = [nn.Parameter(torch.zeros(2, 3, 4)), nn.Parameter(torch.zeros(2, 3, 2))]
        noises = {**dict.fromkeys(rule.noise_shares, 4.0), "gradient": 1.0}
        account = account_of(noises, max_rows=max_rows)
        optimizer = PrivateOptimizer(
            torch.optim.SGD(weights, lr=1.0), account=account, clipping=rule, expected_batch_size=5.0
        )
        lot = PoissonLots(rows, account, clusters=components, k=2, persons=persons.numpy()).draw()
        forms = {
            p: OneComponent(Dense(g.contiguous()), lot.offsets)
            for p, g in zip(weights, _two_layers(lot.records), strict=True)
        }
        found = PerSampleGradients(
            forms, [[p] for p in weights], len(lot), lot.draw, offsets=lot.offsets, persons=lot.persons
        )
        optimizer.set_gradients(found)
        optimizer.step()
        return torch.cat([w.detach().flatten() for w in weights]), optimizer.last_bound

    return run


OF_PERSONS = PerPerson(RULES["fixed"])
# Nine records of four persons; the first has three, in both components.
PERSONS, COMPONENTS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3]), torch.tensor([0, 1, 1, 0, 0, 1, 0, 1, 1])


def no_person_costs_more_than_the_access(rule=OF_PERSONS) -> None:
    """Check a person of three records that are alike, of long or short ones, within a component or over both."""
    run, data = step_of_persons(rule), (ROWS, PERSONS, COMPONENTS)
    for scale in (100.0, 0.15, 0.01):
        for components in ([0, 0, 0], [0, 1, 1]):
            extra = scale * ROWS[:1].expand(3, -1, -1), torch.full((3,), 7), torch.tensor(components)
            more = tuple(torch.cat([own, other]) for own, other in zip(data, extra, strict=True))
            none = tuple(own[:0] for own in data)
            assert max(overspent(run, data, more) + overspent(run, extra, none)) <= 1.0
    # Records of opposite directions: their sum is short, and each of them is long.
    rows = torch.cat([100 * ROWS[:1], -100 * ROWS[:1], ROWS[:1]])
    extra = rows, torch.full((3,), 7), torch.zeros(3, dtype=torch.long)
    assert max(overspent(run, data, tuple(torch.cat(pair) for pair in zip(data, extra, strict=True)))) <= 1.0


def a_large_person_costs_all_that_was_paid(rule=OF_PERSONS) -> None:
    """Check that the bound is met, so that noise for each of three records would be noticed."""
    extra = 100 * ROWS[:1].expand(3, -1, -1), torch.full((3,), 7), torch.zeros(3, dtype=torch.long)
    data = (ROWS, PERSONS, COMPONENTS)
    more = tuple(torch.cat(pair) for pair in zip(data, extra, strict=True))
    assert max(overspent(step_of_persons(rule), data, more)) > 0.999


def no_person_costs_a_group_more_than_the_access() -> None:
    """Check a person of three records who turns the gradient of one of two groups round, of one person each before."""
    network = nn.Linear(3, 1, bias=False)
    term = PerGroup(
        None, 2, forms=lambda lot, noise, groups: ({network.weight: Dense(lot.records[:, None])}, lambda: torch.zeros(2))
    )

    def run(data):
        rows, persons = data
        account = account_of({"gradient": 1.0}, max_rows=3)
        lot = PoissonLots(rows, account, persons=persons).draw()
        # Persons are drawn into groups in their order, so that those who were there stay where they are.
        account.stream.integers = lambda size, most: np.arange(size) % most
        with torch.no_grad():
            network.weight.zero_()
        optimizer = PrivateOptimizer(
            torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=Fixed(0.5), expected_batch_size=5.0
        )
        optimizer.set_gradients(term_gradients(network, term, lot, account.stream))
        optimizer.step()
        return network.weight.detach().clone(), optimizer.last_bound

    rows = 10.0 * ROWS[:1, 0, :3].expand(2, -1)
    more = torch.cat([rows, -100.0 * rows, -100.0 * rows[:1]])
    spent = overspent(run, (rows, np.array([0, 1])), (more, np.array([0, 1, 2, 2, 2])))
    assert 0.99 < max(spent) <= 1.0


def what_a_lot_noises_is_a_sum_over_its_records(rule=RULES["fixed"]) -> None:
    """Check that, given the answers so far, each record adds the same beside any others: two parts add up to the lot."""
    parts_add_up(step_of(rule), ROWS, ROWS[:3], ROWS[3:])


def step_given_an_embedding(rows):
    """Return the noisy mean embedding and the weights of a step whose gradients follow it, as a divergence's do."""
    weight = nn.Parameter(torch.zeros(rows.shape[1]))
    account = account_of({"embedding": 1.0, "gradient": 1.0})
    lot = PoissonLots(rows, account).draw()
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        account=account,
        clipping=Fixed(0.5),
        expected_batch_size=5.0,
        embeddings=["embedding"],
    )
    (embedded,), seen = lot.tensors, []

    def then(mean):
        seen.append(mean.clone())
        return materialised({weight: 10 * embedded * mean}, lot.draw)

    optimizer.set_gradients(EmbeddingGradients(embedded, then, [weight], lot.draw))
    optimizer.step()
    return seen[0], weight.detach()


def what_a_lot_with_an_embedding_noises_is_a_sum_over_its_records() -> None:
    rows = torch.cat([ROWS[:, 0], 0.1 * ROWS[:, 1]])
    parts_add_up(step_given_an_embedding, rows, rows[:4], rows[4:])


def given_the_answers_a_mean_embedding_is_the_same_for_any_lot() -> None:
    rows = ROWS[:, 0]
    for other in (rows[:0], rows[:2], 3 * ROWS.flatten(0, 1)):
        others_learn_the_same(step_given_an_embedding, rows, other)


def given_the_answers_a_step_is_the_same_for_any_lot(rule=RULES["dpnorm"]) -> None:
    """Check that weights and bound are functions of the mechanisms' answers, and of nothing else."""
    for other in (ROWS[:0], 0.01 * ROWS, torch.cat([ROWS, 3 * ROWS])):
        others_learn_the_same(step_of(rule), ROWS, other)


def the_histogram_counts_each_finite_record_once(norms=(0.3, math.nan, math.inf, 9.0, 0.0)) -> None:
    rule = DPNorm(c_max=2.0, bins=8)
    with Door() as door, account_of({"norms": 1.0, "gradient": 1.0}).open("training") as access:
        bound_of(rule, access, torch.tensor(norms))
        assert set(access._undrawn) == {"gradient"}, "a rule draws exactly the noises that it lists"
        access.consume("gradient")
    assert len(door.walk) == 1
    histogram = door.walk[0].exact  # divided by its deviation of 1, so the histogram itself
    assert histogram.shape == (8,) and (histogram >= 0).all()
    assert histogram.sum() == sum(math.isfinite(n) for n in norms)
