"""Errors of mixtures of forests, and their gradients, beside sums over all cells."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from lightning_dpgen.measure.forest_edges import Forest
from lightning_dpgen.measure.forest_errors import _IMPOSSIBLE, MixtureErrors
from tests.measure.test_forest_edges import tables_of

SIZES, EDGES, K = (3, 2, 4, 2, 3), [(0, 2), (1, 2), (1, 3)], 3
# Tables of one or two neighbours of each tree, and of others, which are left out.
FITTED, LEFT_OUT = [(4, 2, 0), (1, 4, 3)], [(0, 1, 3), (4, 0, 3)]


def plain_errors(forest, tables, free, weights, roots, shared, tilts):
    """Return the same two numbers from the joint table of each component."""
    spans, letters = forest.layout.spans, "abcde"
    label, total = tables.label, tables.total
    joints, divergence = [], torch.zeros(())
    for component in range(K):
        joint = torch.ones(())
        conditionals = {}
        for group in forest.order:
            parent = forest.parents[group]
            table = (roots[spans[group]][None] if parent < 0 else shared[group]) * tilts[component, spans[group]].exp()
            conditionals[group] = table / table.sum(dim=1, keepdim=True)
            own = conditionals[group][0] if parent < 0 else conditionals[group]
            own = (
                own.reshape([size if axis in (parent, group) else 1 for axis, size in enumerate(SIZES)])
                if (parent < group)
                else own.T.reshape([size if axis in (parent, group) else 1 for axis, size in enumerate(SIZES)])
            )
            joint = joint * own
        joints.append(joint)
        for group in forest.order:
            if group in free:
                continue
            parent = forest.parents[group]
            before = roots[spans[group]][None] if parent < 0 else shared[group]
            others = tuple(axis for axis in range(5) if axis != parent)
            of_parent = torch.ones(1) if parent < 0 else joint.sum(dim=others)
            logs = torch.log(conditionals[group] / before)
            divergence = divergence + (of_parent[:, None] * conditionals[group] * logs.nan_to_num()).sum()
    joint = torch.stack(joints) * weights.reshape(-1, 1, 1, 1, 1, 1)
    joint = joint.sum(dim=0)
    error = torch.zeros(())
    for pair in [*itertools.combinations(range(5), 2), *((group,) for group in range(5))]:
        if label in pair:
            continue
        axes = pair if label is None else (label, *pair)
        made = torch.einsum(f"{letters}->{''.join(letters[axis] for axis in axes)}", joint)
        counts = tables.pairs.get(pair) if len(pair) == 2 else tables.singles[pair[0]]
        if counts is None:
            continue
        made = made[None] if label is None else made
        weight = (total / max(tables.deviation_of(*pair), 1.0)) ** 2
        error = error + weight * (made - torch.from_numpy(counts / total).float()).square().sum()
        if len(pair) == 2 and forest.broken is not None:
            lost = torch.from_numpy(forest.broken[spans[pair[0]], spans[pair[1]]]).float()
            error = error + 0.5 * _IMPOSSIBLE * total / tables.pair_deviation * (made * lost).sum()
    for groups in FITTED:
        made = torch.einsum(f"{letters}->{''.join(letters[axis] for axis in groups)}", joint)
        errors = made - torch.from_numpy(tables.sets[groups] / total).float()
        error = error + (total / tables.set_deviation) ** 2 * errors.square().sum()
    return error, divergence


@pytest.mark.parametrize(("label", "free", "ruled"), [(None, (), False), (4, (0,), False), (None, (2,), True)])
def test_errors_and_gradients_are_those_of_joint_tables(label, free, ruled):
    """A tree of four groups and one alone; tables told apart by a label, some of them finer, or pairs that do not exist."""
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    layout, tables = tables_of(random.dirichlet(np.ones(np.prod(SIZES))).reshape(SIZES))
    if label is not None:
        joint = random.dirichlet(np.ones(np.prod(SIZES))).reshape(SIZES) * tables.total
        of_label = {
            groups: np.einsum(f"abcde->{'abcde'[label]}{''.join('abcde'[group] for group in groups)}", joint)
            for groups in [*tables.pairs, *((group,) for group in tables.singles)] if label not in groups
        }  # fmt: skip
        tables = dataclasses.replace(
            tables, label=label,
            singles={groups[0]: own for groups, own in of_label.items() if len(groups) == 1},
            pairs={groups: own for groups, own in of_label.items() if len(groups) == 2},
        )  # fmt: skip
    deviations = {(0, 1): 3.0, (1, 2): 4.0, (3,): 2.0}
    shapes = {groups: [SIZES[group] for group in groups] for groups in (*FITTED, *LEFT_OUT)}
    sets = {
        groups: random.multinomial(5_000, np.full(np.prod(own), 1 / np.prod(own))).reshape(own)
        for groups, own in shapes.items()
    }
    tables = dataclasses.replace(
        tables, single_deviation=7.0, pair_deviation=9.0, deviations=deviations, sets=sets, set_deviation=6.0
    )
    broken = None
    if ruled:
        broken = np.zeros((layout.width, layout.width), bool)
        for first, second in ((0, 4), (1, 3), (0, 1)):
            broken[layout.spans[first].start, layout.spans[second].start] = True
        broken |= broken.T
    forest = Forest(layout, tables.of_all.shares(), {}, EDGES, broken=broken)
    assert sorted(map(len, forest.trees)) == [1, 4]
    errors = MixtureErrors(forest, tables, free)
    assert len(errors.sets) == len(FITTED)
    generator = torch.Generator().manual_seed(0)
    weights, roots = torch.softmax(torch.randn(K, generator=generator), 0), torch.rand(layout.width, generator=generator)
    roots = errors.normed(roots)[0]
    shared = {
        group: torch.softmax(torch.randn(SIZES[parent], SIZES[group], generator=generator), dim=1)
        for group, parent in enumerate(forest.parents) if parent >= 0
    }  # fmt: skip
    tilts = torch.randn(K, layout.width, generator=generator)
    inputs = [own.requires_grad_() for own in (weights, roots, *shared.values(), tilts)]

    def both(numbers):
        return [
            (float(number.detach()), torch.autograd.grad(number, inputs, retain_graph=True, allow_unused=True))
            for number in numbers
        ]

    expected = both(plain_errors(forest, tables, free, weights, roots, shared, tilts))
    made = both(errors(weights, roots, shared, tilts))
    steps = [both(errors(weights, roots, shared, tilts, step)) for step in range(len(errors.paths[1][0]) or 1)]
    for (number, gradients), (own, own_gradients), *others in zip(expected, made, *steps, strict=True):
        assert own == pytest.approx(number, rel=1e-4)
        # On average over steps all pairs count once.
        assert np.mean([other for other, _ in others]) == pytest.approx(number, rel=1e-4)
        for gradient, *rest in zip(gradients, own_gradients, *(other for _, other in others), strict=True):
            if gradient is not None:
                scale = 1e-3 * float(gradient.abs().max() + 1e-3)
                assert (rest[0] - gradient).abs().max() < scale
                assert (torch.stack(rest[1:]).mean(dim=0) - gradient).abs().max() < scale
