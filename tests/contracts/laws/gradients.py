"""Laws of per-record and per-group gradients: each depends on its own records alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.clipping import clip_weights
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import RankOne
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerGroup
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot


def the_norm_of_a_group_is_its_own(sizes=(1, 2, 20, 64, 65)) -> None:
    """Check that more records with gradient zero in a group, one or many, change no other group's norm."""
    generator = torch.Generator().manual_seed(0)
    for o, n in ((3, 4), (40, 30), (300, 200), (5000, 2)):
        weight = nn.Parameter(torch.zeros(o, n))
        for size in sizes:
            index = torch.arange(4).repeat_interleave(size)
            # These products nearly cancel, so any slack in a norm weighs most.
            left = torch.randn(len(index), o, generator=generator) * (1.0 - 2.0 * (torch.arange(len(index)) % 2))[:, None]
            right = 1.0 + 0.1 * torch.randn(len(index), n, generator=generator)
            norms = []
            for more in (0, 1, 150):
                own = Groups(torch.cat([index, index.new_zeros(more)]), 4)
                form = RankOne(torch.cat([left, torch.zeros(more, o)]), torch.cat([right, torch.ones(more, n)]), (o, n))
                norms.append(PerSampleGradients({weight: form}, [[weight]], 4, groups=4, partition=own).norms()[1:])
                torch.testing.assert_close(norms[-1], norms[0], rtol=1e-6, atol=0.0)


def groups_are_independent_of_who_else_is_there() -> None:
    """Check that of 6,000 records in 3 groups neighbours share one as often as by chance, within 5.5 deviations."""
    layer, seen = nn.Linear(1, 1), []
    term = PerGroup(None, 3, forms=lambda lot, _, groups: seen.append(groups.index) or ({}, lambda: torch.zeros(3)))
    term_gradients(layer, term, Lot(torch.ones(6000, 1), (0, 6000)), PrivateStream(seed=1))
    index = seen[-1]
    for distance in (1, 2, 3):
        same = float((index[distance:] == index[:-distance]).double().mean())
        assert abs(same - 1 / 3) < 5.5 * math.sqrt(2 / 9 / 6000)


def setting(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    network = StackedVAE(ImageSchema(3, 3, levels=1), 3, hidden=6, latent=2, generator=generator).to(dtype)
    records = torch.rand(7, 9, generator=generator, dtype=dtype)
    noise = torch.randn(7, 2, generator=generator, dtype=dtype)
    return network, Lot(records, (0, 3, 3, 7)), noise


def with_front(lot, noise, extra):
    records = torch.cat([extra.expand(1, lot.records.shape[1]).to(lot.records.dtype), lot.records])
    return Lot(records, (0, *(o + 1 for o in lot.offsets[1:]))), torch.cat([noise[:1] * 3, noise])


class Coupled:
    """A stand-in for the private stream: a record's numbers are its own, counted from the end, wherever it stands."""

    def __init__(self, noise):
        self.noise = noise

    def normal(self, shape, *, dtype=torch.float32, device=None):
        assert shape[1] == self.noise.shape[1] and shape[0] <= len(self.noise)
        return self.noise[len(self.noise) - shape[0] :].to(dtype)

    def words(self, size):
        return np.arange(1, size + 1, dtype=np.uint64) << np.uint64(33)


def contributions(engine, network, term, lot, noise):
    """Return losses, norms and each record's own gradient, as the weighted sum that picks it out."""
    gradients = term_gradients(network, term, lot, Coupled(noise), engine=engine)
    losses = gradients.losses
    each = []
    for i in range(len(lot)):
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(torch.eye(len(lot), dtype=buffer.flat.dtype)[i], buffer.views)
        each.append(buffer.flat)
    return losses, gradients.norms(), torch.stack(each)


def a_record_in_front_changes_no_other(engine="ghost", dtype=torch.float64, tolerance=1e-12, extra=None) -> None:
    """Check losses, norms and gradients of the others, and that the public stream, which starts alike, is not consumed.

    They are not equal bit for bit: matrix products choose their blocks by the number of rows, so a row's last bits may
    depend on how many others there are. Norms are float32 whatever the network's type is.
    """
    network, lot, noise = setting(dtype)
    extra = torch.ones(1) if extra is None else extra
    state = torch.manual_seed(0).get_state()
    before = contributions(engine, network, network.term, lot, noise)
    assert torch.equal(torch.get_rng_state(), state)
    after = contributions(engine, network, network.term, *with_front(lot, noise, extra))
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, close in zip(before, after, (tolerance, 1e-5, tolerance), strict=True):
        torch.testing.assert_close(b[1:], a, rtol=close, atol=close)


def a_record_that_is_not_finite_adds_exact_zeros(engine="ghost", bad=math.nan) -> None:
    network, lot, noise = setting()
    spoiled = Lot(lot.records.clone(), lot.offsets)
    spoiled.records[2] = bad
    sums = []
    for records in (lot, spoiled):
        gradients = ENGINES[engine](network, network.term, records, noise)
        weights = clip_weights(gradients.norms(), 1.0)
        weights[2] = 0.0
        buffer = GradientBuffer(network.parameters())
        gradients.weighted_sum(weights, buffer.views)
        sums.append(buffer.flat)
    assert torch.equal(*sums)
    assert clip_weights(ENGINES[engine](network, network.term, spoiled, noise).norms(), 1.0)[2] == 0.0


def a_norm_is_that_of_what_the_record_adds(engine="ghost", dtype=torch.float64) -> None:
    network, lot, noise = setting(dtype)
    _, norms, each = contributions(engine, network, network.term, lot, noise)
    torch.testing.assert_close(norms, each.double().norm(dim=1), rtol=1e-5, atol=1e-7)
