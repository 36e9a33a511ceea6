"""Laws of the optimizer's steps: which lots they take, and what they do with them."""

from __future__ import annotations

import copy
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from contracts.drawn import draw_of, drawn, handed
from contracts.laws.accounts import account_of
from contracts.laws.clipping import RULES
from torch import nn

from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.engines import ghost_gradients
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.access import Access, LotId
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.errors import LedgerError, NoiseMissing
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.planning.calibration import StageSpec, make_plan
from lightning_dpgen.privacy.sampling.samplers import Cyclic
from lightning_dpgen.privacy.sampling.strategy import Strategy
from lightning_dpgen.sampling.lots import Lot


def network_of_two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def without_privacy_it_is_descent_on_the_sum_over_the_expected_lot(rule=RULES["fixed"], inner=torch.optim.SGD) -> None:
    """Check a plan of `make_plan(epsilon=math.inf)`: it has neither noise nor bound, whatever the rule says."""
    spec = StageSpec("training", {"gradient": 0.95, **rule.noise_shares}, 4, max_noise=10)
    account = Account(make_plan([spec], epsilon=math.inf, delta=1e-5))
    private, plain = network_of_two_layers(), network_of_two_layers()
    optimizer = PrivateOptimizer(
        inner(private.parameters(), lr=0.05), account=account, clipping=rule, expected_batch_size=4.0
    )
    twin = inner(plain.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(1)
    for size in (5, 0, 3, 7):  # Poisson lots vary; the divisor does not
        records = torch.rand(size, 3, generator=generator)
        term = PerRecord(lambda lot, _: private(lot.records).square().sum(dim=1))
        optimizer.set_gradients(ghost_gradients(private, term, drawn(account, records), torch.empty(size, 0)))
        optimizer.step()
        twin.zero_grad()
        (plain(records).square().sum() / 4.0).backward()
        twin.step()
        assert optimizer.last_bound == math.inf
    for a, b in zip(private.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    account.verify_complete()
    assert len(account.ledger.accesses) == 1 and account.plan.epsilon == math.inf


def a_step_is_one_access() -> None:
    weight, account = nn.Parameter(torch.zeros(4)), account_of({"gradient": 1.0}, count=6)
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
    )
    for steps, size in enumerate((3, 0, 5), start=1):
        optimizer.set_gradients(handed(account, {weight: torch.ones(size, 4)}))
        optimizer.step()
        assert account.ledger.count("training") == steps


def a_lot_is_spent_once(again="the same lot") -> None:
    network, account = network_of_two_layers(), account_of({"gradient": 1.0}, count=5)
    optimizer, other = (
        PrivateOptimizer(
            torch.optim.SGD(network.parameters(), lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
        )
        for _ in range(2)
    )
    term, lot = PerRecord(lambda lot, _: network(lot.records).sum(dim=1)), drawn(account, torch.rand(3, 3))
    gradients = ghost_gradients(network, term, lot, torch.empty(3, 0))
    optimizer.set_gradients(gradients)
    optimizer.step()
    if again != "the same gradients":
        gradients = ghost_gradients(network, term, lot.to("cpu"), torch.empty(3, 0))
    second = other if again == "another optimizer" else optimizer
    second.set_gradients(gradients)
    with pytest.raises(LedgerError, match="draw a new lot"):
        second.step()
    assert account.ledger.count("training") == 1


def _two_stages() -> Account:
    plan = Plan(tuple(Stage(Access(name, {"gradient": 1.0}), 5, 0.5) for name in ("training", "tuning")), 50.0, 1e-5)
    return Account(plan)


def a_record_takes_part_in_its_turns_alone() -> None:
    """Check cyclic lots of whole groups: the same records every fourth step, each in one group, and a lot for one step."""
    units, groups = 64, 4
    spec = training_stage(Fixed(1.0), n=units, sampler=Cyclic(1.0 / groups, Strategy(3 * groups, groups)), steps=3 * groups)
    account = Account(make_plan([spec], epsilon=50.0, delta=1e-5), stream=PrivateStream(seed=3))
    _, ahead = [account.sample("training", units, number=number)[1] for number in (0, 1)]
    with pytest.raises(LedgerError, match="drawn for step 1, and step 0 is next"), account.open("training", draw=ahead):
        pass
    taken = []
    for _ in range(3 * groups):
        positions, draw = account.sample("training", units)
        with account.open("training", draw=draw) as access:
            gaussian(access, "gradient", torch.zeros(1), sensitivity=1.0)
        taken.append(positions.tolist())
    assert taken[:groups] == taken[groups : 2 * groups] == taken[2 * groups :]
    assert sorted(itertools.chain(*taken[:groups])) == list(range(units))
    # By chance with a probability of 4^-64.
    assert taken[0] != list(range(0, units, groups))


def a_lot_that_was_not_drawn_is_refused() -> None:
    """Check draws made by hand, copied, of another account or stage, in one piece and in parts; nothing is charged."""
    account = _two_stages()
    made = {
        "forged": LotId("training", 3),
        "by hand": Lot(torch.rand(3, 4), (0, 3)).draw,
        "a copy": copy.copy(draw_of(account, 3)),
        "with another account": draw_of(_two_stages(), 3),
        "for another stage": draw_of(account, 3, stage="tuning"),
    }
    for draw in made.values():
        for parts in (False, True):
            weight = nn.Parameter(torch.zeros(4))
            optimizer = PrivateOptimizer(
                torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
            )
            optimizer.signal_skip_step(do_skip=parts)
            optimizer.set_gradients(materialised({weight: torch.ones(3, 4)}, draw))
            with pytest.raises(LedgerError, match=r"poisson_loader\(records, account, stage='training'\)"):
                optimizer.step()
            assert not account.ledger.accesses and not weight.any()


def a_step_takes_no_more_records_than_were_drawn(rate=1.0) -> None:
    """Check it in one piece, over several parts together, and as a lot: a record twice would add twice its bound.

    Three records are drawn; at a rate below 1 from among more of them.
    """
    for sizes in ([4], [2, 2], [3, 1], [0, 4]):
        for way in ("set_gradients", "grad_sample"):
            weight, account = nn.Parameter(torch.zeros(4)), account_of({"gradient": 1.0}, rate=rate)
            optimizer = PrivateOptimizer(
                torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(1.0), expected_batch_size=4.0
            )
            lots = (drawn(account, torch.zeros(round(3 / rate), 1)) for _ in range(100))
            draw = next(lot.draw for lot in lots if len(lot) == 3)
            optimizer.expect(draw)
            with pytest.raises(RuntimeError, match=r"more records than their lot(.|\n)*Nothing was charged"):
                for i, size in enumerate(sizes, start=1):
                    optimizer.signal_skip_step(do_skip=i < len(sizes))
                    weight.grad_sample = torch.ones(size, 4)
                    if way == "set_gradients":
                        optimizer.set_gradients(materialised({weight: torch.ones(size, 4)}, draw))
                    optimizer.step()
            assert not account.ledger.accesses and not weight.any()
    with pytest.raises(ValueError, match="more records than were drawn"):
        Lot(torch.zeros(4, 1), (0, 4), draw)


def a_rehearsal_notices_noise_of_another_size() -> None:
    """Check two parameters of 20,000 numbers each: a tenth more or less goes unnoticed with a chance of 1e-25."""
    for times in (0.0, 0.5, 0.9, 1.0, 1.1, 2.0):
        account = account_of({"gradient": 1.3})
        weights = [nn.Parameter(torch.zeros(100, 200)), nn.Parameter(torch.zeros(20_000))]
        optimizer = PrivateOptimizer(
            torch.optim.SGD(weights, lr=1.0), account=account, clipping=Fixed(0.7), expected_batch_size=5.0
        )
        add = account.stream.add_normal_
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(account.stream, "add_normal_", lambda out, s, add=add, times=times: add(out, times * s))
            with nullcontext() if times == 1.0 else pytest.raises(NoiseMissing, match="times the planned size"):
                optimizer.rehearse()
        assert not account.ledger.accesses and not any(w.any() for w in weights)
