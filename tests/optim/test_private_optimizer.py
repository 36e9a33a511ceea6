"""The optimizer in a bare loop, with stock Opacus modules and behind Lightning's wrapper: every step is one access."""

import copy
import math
import pickle
from contextlib import nullcontext

import pytest
import torch
from contracts.drawn import ChosenLots, draw_of, drawn, handed
from contracts.laws import steps as laws
from contracts.laws.accounts import account_of
from contracts.laws.steps import network_of_two_layers
from opacus import GradSampleModule, schedulers
from opacus.schedulers import ExponentialNoise
from opacus.utils.batch_memory_manager import BatchMemoryManager
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.clipping import Decay, DPNorm, Fixed, PerComponent, PerLayer, Quantile, Smoothed
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import ghost_gradients, term_gradients
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, materialised
from lightning_dpgen.gradients.stacked import StackedLinear
from lightning_dpgen.gradients.terms import DataFree, PerGroup, PerRecord
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.privacy.errors import LedgerError, NoiseMissing, PlanMismatch
from lightning_dpgen.sampling.lots import Lot


def _sgd(parameters, account, clipping=None, **kwargs):
    clipping = clipping or Fixed(1.0)
    return PrivateOptimizer(
        torch.optim.SGD(parameters, lr=1.0), account=account, clipping=clipping, expected_batch_size=4.0, **kwargs
    )


@pytest.mark.parametrize("clipping", [Fixed(1e-6), DPNorm(c_max=1e-5)], ids=["fixed", "dpnorm"])
@pytest.mark.parametrize("inner", [torch.optim.SGD, torch.optim.Adam])
def test_privacy_off_is_plain_descent_on_the_sum_over_the_expected_lot(clipping, inner):
    laws.without_privacy_it_is_descent_on_the_sum_over_the_expected_lot(clipping, inner)


# Opacus hooks modules that PyTorch may warn about (non-full backward hooks); its warnings are not what is tested.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_stock_opacus_module_gives_the_same_step_as_the_ghost_engine(account_of):
    """Nearly no noise (1e-7), real clipping: both roads lead to the same parameters."""
    records = torch.rand(6, 3, generator=torch.Generator().manual_seed(2))
    ours, theirs = network_of_two_layers(), GradSampleModule(network_of_two_layers(), loss_reduction="sum")
    term, account = PerRecord(lambda lot, _: 5 * ours(lot.records).sum(dim=1)), account_of({"gradient": 1e-7}, count=2)
    first, second = _sgd(ours.parameters(), account), _sgd(theirs.parameters(), account)
    first.set_gradients(ghost_gradients(ours, term, drawn(account, records), torch.empty(6, 0)))
    lot = drawn(account, records)
    second.expect(lot.draw)
    (5 * theirs(lot.records)).sum().backward()
    start = [p.clone() for p in ours.parameters()]
    for optimizer in (first, second):
        optimizer.step()
    for a, b, before in zip(ours.parameters(), theirs.parameters(), start, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert not torch.equal(a, before)
    assert all(p.grad_sample is None for p in theirs.parameters())


def test_an_empty_lot_takes_a_noisy_step_that_is_charged(account_of):
    weight, account = nn.Parameter(torch.zeros(4)), account_of({"gradient": 1.0}, count=2)
    optimizer = _sgd([weight], account)
    optimizer.expect(draw_of(account, 0))
    weight.grad_sample = torch.zeros(0, 4)
    optimizer.step()
    assert (weight != 0).all() and account.ledger.count("training") == 1


def test_a_step_without_gradients_is_refused_and_not_charged(account_of):
    weights = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    weights[0].grad_sample = torch.zeros(1, 2)
    account = account_of({"gradient": 1.0})
    with pytest.raises(RuntimeError, match=r"parameters \[1\] \(of 2\) have no per-record gradient: call set_gradients"):
        _sgd(weights, account).step()
    assert account.ledger.count("training") == 0


def test_gradients_serve_one_step_only(account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0}, count=2)
    optimizer = _sgd([weight], account)
    optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    optimizer.step()
    with pytest.raises(RuntimeError, match="no per-record gradient"):
        optimizer.step()


def test_a_step_past_the_plan_is_refused(account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0}, count=1)
    optimizer = _sgd([weight], account)
    optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    optimizer.step()
    after = weight.detach().clone()
    optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    with pytest.raises(PlanMismatch):
        optimizer.step()
    assert torch.equal(weight, after)


def _parts_of(account, gradients, weight):
    draw = draw_of(account, len(gradients))
    return MicroBatches(lambda: (materialised({weight: part}, draw) for part in gradients.split(2)), draw)


@pytest.mark.parametrize("rule", [Fixed(1.0), DPNorm(c_max=4.0, bins=8)], ids=["fixed", "dpnorm"])
def test_a_lot_in_parts_is_the_lot(account_of, rule):
    gradients, after = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), []
    for take in ("whole", "parts"):
        weight = nn.Parameter(torch.zeros(3))
        account = account_of(dict.fromkeys(["gradient", *rule.noise_shares], 1.0))
        optimizer = _sgd([weight], account, rule)
        whole = handed(account, {weight: gradients})
        optimizer.set_gradients(whole if take == "whole" else _parts_of(account, gradients, weight))
        optimizer.step()
        after.append(weight.detach().clone())
        account.verify_complete()
    torch.testing.assert_close(*after)


@pytest.mark.parametrize("kind", ["whole", "in parts", "groups"])
def test_a_quantile_counts_in_parts_of_the_expected_lot(account_of, kind):
    """The optimizer knows the expected lot, or the number of groups, so nothing of it is said twice."""
    rule, number = Quantile(1.0, target=0.5, lr=0.2), {"groups": 3}.get(kind, 4)
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"below": 1e-9, "gradient": 1e-9})
    optimizer, short = _sgd([weight], account, rule), torch.full((number, 2), 1e-3)
    gradients = _parts_of(account, short, weight) if kind == "in parts" else handed(account, {weight: short})
    if kind == "groups":
        index = torch.arange(number)
        gradients = PerSampleGradients(
            {weight: Dense(short)}, [[weight]], number, groups=number, partition=Groups(index, number), draw=gradients.draw
        )
    optimizer.set_gradients(gradients)
    optimizer.step()
    assert optimizer.last_bound == pytest.approx(math.exp(-0.2 * (1.0 - 0.5)), rel=1e-6), "all of them are below the bound"


def test_in_a_second_pass_each_record_is_clipped_by_the_norm_it_has_there(account_of):
    weight, passes = nn.Parameter(torch.zeros(2)), iter([1.0, 1.0, 50.0])
    account = account_of({"norms": 1e-6, "gradient": 1e-9})
    draw = draw_of(account, 1)

    def make():
        return [materialised({weight: torch.full((1, 2), next(passes))}, draw)]

    optimizer = _sgd([weight], account, DPNorm(c_max=4.0, bins=8))
    optimizer.set_gradients(MicroBatches(make, draw))
    optimizer.step()
    assert optimizer.last_bound == 1.5 and float(weight.detach().norm()) <= 1.5 / 4.0 * 1.001


def test_parts_of_nothing_or_of_groups_are_refused(account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0})
    optimizer = _sgd([weight], account)
    optimizer.set_gradients(MicroBatches(list, draw_of(account, 0)))
    with pytest.raises(ValueError, match="one part of no records"):
        optimizer.step()
    grouped = PerSampleGradients({weight: Dense(torch.zeros(2, 2))}, [[weight]], 2, draw_of(account, 2), groups=2)
    optimizer.set_gradients(MicroBatches(lambda: [grouped], grouped.draw))
    with pytest.raises(ValueError, match="groups reach over"):
        optimizer.step()


LOTS = [[0, 1, 2, 3, 4, 5, 6], [7, 8], [8, 9, 10, 11, 12]]


def _announced(network, optimizer, rows):
    loader = DataLoader(TensorDataset(rows), batch_sampler=ChosenLots(optimizer.account, optimizer, LOTS))
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as parts:
        for (part,) in parts:
            (5 * network(part)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def _asked_for(network, optimizer, rows):
    parameters = list(network.parameters())

    def make(lot, draw):
        for part in rows[lot].split(3):
            for p in parameters:
                p.grad_sample = None
            (5 * network(part)).sum().backward()
            yield materialised({p: p.grad_sample for p in parameters}, draw)

    for lot in LOTS:
        draw = draw_of(optimizer.account, len(lot))
        optimizer.set_gradients(MicroBatches(lambda lot=lot, draw=draw: make(lot, draw), draw))
        optimizer.step()


# Opacus hooks modules that PyTorch may warn about (non-full backward hooks).
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("private", [1.0, 0.0], ids=["private", "twin"])
@pytest.mark.parametrize("run", [_announced, _asked_for])
def test_parts_of_a_stock_module_are_one_lot(account_of, private, run):
    """Several lots: what autograd and zero_grad() do to the gradient of the last step reaches no part of the next."""
    rows, after = 3 * torch.randn(13, 3, generator=torch.Generator().manual_seed(1)), []
    for parts in (True, False):
        network = GradSampleModule(network_of_two_layers(), loss_reduction="sum")
        account = account_of({"gradient": private}, count=3)
        optimizer = _sgd(network.parameters(), account, Decay(1.0))
        if parts:
            run(network, optimizer, rows)
        else:
            for lot in LOTS:
                optimizer.expect(draw_of(account, len(lot)))
                (5 * network(rows[lot])).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        after.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        assert account.done == {"training": 3}
    torch.testing.assert_close(*after)


ROWS = 3 * torch.randn(9, 3, generator=torch.Generator().manual_seed(1))


def _hand_over(optimizer, weight, way, parts, draw, *, more=False):
    """Hand over gradients of each part of a lot, announced as Opacus does it."""
    if way == "grad_sample":
        optimizer.expect(draw)
    for i, rows in enumerate(parts, start=1):
        optimizer.signal_skip_step(do_skip=more or i < len(parts))
        optimizer.zero_grad()
        if way == "grad_sample":
            weight.grad_sample = rows.clone()
        else:
            optimizer.set_gradients(materialised({weight: rows}, draw))
        optimizer.step()


@pytest.mark.parametrize("first", ["set_gradients", "grad_sample"])
@pytest.mark.parametrize("second", ["set_gradients", "grad_sample"])
def test_a_begun_lot_is_dropped_where_another_is_handed_over(account_of, first, second):
    """A record that is in both lots would add up to twice its bound in one step."""
    ends = []
    for begun in (True, False):
        weight, account = nn.Parameter(torch.zeros(3)), account_of({"gradient": 1.0}, count=2)
        optimizer = _sgd([weight], account)
        if begun:
            _hand_over(optimizer, weight, first, [ROWS[:2]], draw_of(account, 4), more=True)
            if second == "set_gradients":
                with pytest.raises(RuntimeError, match=r"of another lot(.|\n)*nothing was charged"):
                    _hand_over(optimizer, weight, second, [ROWS[2:4]], draw_of(account, 2))
            assert not account.ledger.accesses and not weight.any()
        _hand_over(optimizer, weight, second, [ROWS[4:6], ROWS[6:]], draw_of(account, 5))
        assert account.ledger.count("training") == 1
        ends.append(weight.detach())
    assert torch.equal(*ends), "nothing of the begun lot is left"


def _opacus_loop(optimizer, weight, at=None, how=None):
    """Run a loop over a lot of five rows and one of four, in parts of 2, 2, 1 and 2, 2."""
    lots = ChosenLots(optimizer.account, optimizer, [[0, 1, 2, 3, 4], [5, 6, 7, 8]])
    loader = DataLoader(TensorDataset(ROWS), batch_sampler=lots)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as parts:
        for i, (rows,) in enumerate(parts):
            if i == at and how == "interrupted":
                raise InterruptedError
            if i == at and how == "a part is skipped":
                continue
            weight.grad_sample = rows
            optimizer.step()
            optimizer.zero_grad()
            if i == at and how == "left":
                return


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("how", ["interrupted", "a part is skipped", "left"])
def test_a_loop_of_opacus_that_is_not_finished_joins_no_lots(account_of, how, at):
    """Nearly no noise, and a bound that nothing meets: what is charged is the sum of one whole lot or the other."""
    weight, account, sums = nn.Parameter(torch.zeros(3)), account_of({"gradient": 1e-9}, count=6), []
    optimizer = _sgd([weight], account, Fixed(1e3))
    optimizer.attach_step_hook(lambda _: sums.append(4 * weight.grad))
    refusals = []
    for way in (how, None, None):
        try:
            _opacus_loop(optimizer, weight, at, way)
        except (InterruptedError, RuntimeError) as error:
            refusals += [str(error)] if isinstance(error, RuntimeError) else []
    lots = [ROWS[:5].sum(dim=0), ROWS[5:].sum(dim=0)]
    assert all(min(float((found - lot).norm()) for lot in lots) < 1e-4 for found in sums)
    torch.testing.assert_close(torch.stack(sums[-2:]), torch.stack(lots))
    assert account.ledger.count("training") == len(sums)
    assert len(refusals) < 2 and all("nothing was charged" in text for text in refusals)


def test_a_bound_from_the_whole_lot_cannot_be_chosen_from_its_parts(account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"norms": 1.0, "gradient": 1.0})
    optimizer = _sgd([weight], account, DPNorm(c_max=4.0))
    optimizer.expect(draw_of(account, 1))
    optimizer.signal_skip_step(do_skip=True)
    weight.grad_sample = torch.zeros(1, 2)
    with pytest.raises(RuntimeError, match=r"set_gradients\(MicroBatches"):
        optimizer.step()
    assert not account.ledger.accesses


def test_rules_and_plan_name_the_same_noises(account_of):
    weight = nn.Parameter(torch.zeros(2))
    for rules, noises in ((DPNorm(c_max=1.0), ["gradient"]), (Fixed(1.0), ["gradient", "norms"]),
                          ([DPNorm(c_max=1.0)] * 2, ["gradient", "norms"])):  # fmt: skip
        with pytest.raises(ValueError, match="clipping rules and terms draw"):
            _sgd([weight], account_of(dict.fromkeys(noises, 1.0)), rules)


@pytest.mark.parametrize(
    "rules",
    [
        [PerComponent(Fixed(1.0)), Fixed(0.1)],
        [PerLayer(Fixed(1.0)), PerComponent(Fixed(0.1))],
        [PerComponent(Fixed(1.0)), PerComponent(Fixed(0.1))],
        [Fixed(1.0), Smoothed(PerComponent(Decay(1.0)))],
    ],
    ids=["beside one for all", "beside one for each layer", "twice", "smoothed"],
)
def test_a_bound_for_each_component_stands_alone(account_of, rules):
    """Its noise is as large as the bound of a component, and knows nothing of what another term adds there."""
    with pytest.raises(ValueError, match="stands alone"):
        _sgd([nn.Parameter(torch.zeros(3, 4))], account_of({"gradient": 1.0}), rules)


class Mixture(nn.Module):
    """Three components, and behind them what `run` makes of the outcome (B, 4), with a layer of 3 rows or a parameter."""

    def __init__(self, run, shared):
        super().__init__()
        self.own, self.shared, self.run = StackedLinear(3, 3, 4), shared, run

    def loss(self, lot, *_):
        return self.run(self, self.own(lot.records, lot.offsets)).flatten(1).sum(dim=1)


SHARED = {
    "a layer": lambda: Mixture(lambda net, x: net.shared(x), nn.Linear(4, 3)),
    "a bias": lambda: Mixture(lambda net, x: x[:, :3] + net.shared.bias, nn.Linear(1, 3)),
    "one's parameter used by all": lambda: Mixture(lambda net, x: x * net.own.bias[1], None),
}
WAYS = {
    "whole": lambda gradients: gradients,
    "in parts": lambda gradients: MicroBatches(lambda: [gradients], gradients.draw),
    "deferred": lambda gradients: EmbeddingGradients(
        torch.zeros(5, 2), lambda mean: gradients, gradients.parameters, gradients.draw
    ),
}


def _by_component(account, net, term, way="whole"):
    """Take one step on a lot of 2, 0 and 3 records, with a bound for each component."""
    embeddings = ["embedding"] if way == "deferred" else []
    optimizer = _sgd(net.parameters(), account, PerComponent(Fixed(1.0)), embeddings=embeddings)
    gradients = term_gradients(net, term, drawn(account, torch.rand(5, 3), (0, 2, 2, 5)), account.stream)
    optimizer.set_gradients(WAYS[way](gradients))
    optimizer.step()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED.keys())
def test_what_components_share_has_no_bound_for_each(account_of, make, way):
    """As many rows as there are components do not make it one row a component."""
    noises = {"gradient": 1.0} | ({"embedding": 1.0} if way == "deferred" else {})
    net, account, alone = make(), account_of(noises, count=2), Mixture(lambda net, x: x.tanh(), None)
    before = [p.clone() for p in net.parameters()]
    with pytest.raises(ValueError, match="one slice for each component"):
        _by_component(account, net, PerRecord(net.loss), way)
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    if way != "deferred":  # the mean is drawn first
        assert not account.ledger.accesses
    _by_component(account, alone, PerRecord(alone.loss), way)


def test_groups_reach_over_components(account_of):
    net, account = Mixture(lambda net, x: x, None), account_of({"gradient": 1.0})
    term = PerGroup(lambda lot, noise, groups: groups.gather(net.loss(lot)[:, None]).sum(dim=(1, 2)), 3, places=9)
    with pytest.raises(ValueError, match="one slice for each component"):
        _by_component(account, net, term)
    assert not account.ledger.accesses


def test_a_data_free_term_is_added_whole_and_after_the_noise(account_of):
    """The same private stream twice: the two steps differ by exactly the plain gradient, however large."""
    results = []
    weight, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))  # the term does not touch the other
    for terms in ([], [DataFree(lambda: weight.mul(torch.tensor([100.0, -3.0])).sum())]):
        with torch.no_grad():
            weight.zero_(), other.zero_()
        account = account_of({"gradient": 1.0})
        optimizer = _sgd([weight, other], account, data_free=terms)
        optimizer.set_gradients(handed(account, {weight: torch.ones(3, 2), other: torch.ones(3, 1)}))
        optimizer.step()
        results.append(torch.cat([weight, other]).detach())
    torch.testing.assert_close(results[0] - results[1], torch.tensor([100.0, -3.0, 0.0]))


def test_the_hook_of_an_opacus_accountant_is_called_with_the_merged_multiplier(account_of):
    calls = []
    weight = nn.Parameter(torch.zeros(2))
    account = account_of({"norms": 4.0, "gradient": 1.0})
    optimizer = _sgd([weight], account, DPNorm(c_max=2.0))
    optimizer.attach_step_hook(lambda o: calls.append((o.noise_multiplier, o.accumulated_iterations)))
    optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    optimizer.step()
    assert calls == [(pytest.approx(0.970, abs=5e-4), 1)]
    assert calls[0][0] == account.plan.stages[0].access.multiplier


def test_the_schedule_of_a_learning_rate_reaches_the_inner_optimizer(account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 0.0})
    optimizer = _sgd([weight], account)
    for group in optimizer.param_groups:
        group["lr"] = 0.25
    optimizer.set_gradients(handed(account, {weight: torch.tensor([[4.0, 0.0]])}))
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.25, 0.0]))


def test_behind_the_wrapper_of_lightning_nothing_is_lost(account_of):
    """Lightning's wrapper copies attributes and keeps writes to itself: `set_gradients`, `step` and reads must work."""
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1e-7}, count=2)
    optimizer = _sgd([weight], account)
    wrapped = LightningOptimizer(optimizer)
    for gradient, expected in (([1.0, 0.0], [-0.25, 0.0]), ([0.0, 0.5], [-0.25, -0.125])):
        wrapped.optimizer.set_gradients(handed(account, {weight: torch.tensor([gradient])}))
        # The wrapper's own step needs a Trainer; the class that it poses as is the real one's.
        wrapped.optimizer.step()
        torch.testing.assert_close(weight.detach(), torch.tensor(expected), rtol=1e-4, atol=1e-4)
        assert wrapped.optimizer.last_bound == 1.0
    wrapped.set_gradients(materialised({weight: torch.ones(1, 2)}))
    assert optimizer._between_steps.next.gradients is not None, "also a call on the wrapper reaches the real optimizer"
    assert account.ledger.count("training") == 2


@pytest.mark.parametrize("expected_batch_size", [0.0, -1.0, math.nan])
def test_an_impossible_divisor_is_refused(account_of, expected_batch_size):
    with pytest.raises(ValueError, match="expected_batch_size"):
        PrivateOptimizer(
            torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0),
            account=account_of({"gradient": 1.0}), clipping=Fixed(1.0), expected_batch_size=expected_batch_size,
        )  # fmt: skip


def test_a_stage_that_the_plan_lacks_is_named(account_of):
    with pytest.raises(ValueError, match="stage='pretraining': the plan has the stages"):
        _sgd([nn.Parameter(torch.zeros(1))], account_of({"gradient": 1.0}), stage="pretraining")


def test_gradients_of_other_parameters_are_refused_and_not_charged(account_of):
    network, account = network_of_two_layers(), account_of({"gradient": 1.0})
    optimizer = _sgd(network.parameters(), account)
    part = network[2]
    term = PerRecord(lambda lot, _: part(lot.records).sum(dim=1))
    optimizer.set_gradients(ghost_gradients(part, term, drawn(account, torch.rand(3, 4)), torch.empty(3, 0)))
    with pytest.raises(RuntimeError, match="gradients are of 2 parameters, and 2 of them are among the 4"):
        optimizer.step()
    assert account.ledger.count("training") == 0


def test_a_parameter_frozen_later_is_noticed(account_of):
    network, account = network_of_two_layers(), account_of({"gradient": 1.0}, count=2)
    optimizer = _sgd(network.parameters(), account)
    network[0].weight.requires_grad_(False)
    optimizer.set_gradients(handed(account, {p: torch.zeros(1, *p.shape) for p in network.parameters() if p.requires_grad}))
    with pytest.raises(RuntimeError, match="make a new PrivateOptimizer"):
        optimizer.step()
    assert account.ledger.count("training") == 0


@pytest.mark.parametrize("again", ["the same gradients", "the same lot", "another optimizer"])
def test_a_lot_is_spent_once(again):
    laws.a_lot_is_spent_once(again)


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_step_takes_no_more_records_than_were_drawn(rate):
    laws.a_step_takes_no_more_records_than_were_drawn(rate)


@pytest.mark.parametrize("sizes", [[2], [1, 1], [0]])
def test_grad_sample_is_of_the_whole_lot(account_of, sizes):
    """It carries no identity, so rows of an earlier batch are told by how many there are."""
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0})
    optimizer = _sgd([weight], account)
    optimizer.expect(draw_of(account, 3))
    with pytest.raises(RuntimeError, match="fewer rows than the lot"):
        for i, size in enumerate(sizes, start=1):
            optimizer.signal_skip_step(do_skip=i < len(sizes))
            weight.grad_sample = torch.ones(size, 2)
            optimizer.step()
    assert not account.ledger.accesses and not weight.any()


def test_grad_sample_of_nothing_that_was_drawn_is_refused(account_of):
    """Also a second step on one batch."""
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0}, count=3)
    optimizer = _sgd([weight], account)
    for charged in (0, 1):
        weight.grad_sample = torch.ones(3, 2)
        with pytest.raises(LedgerError, match="no lot was drawn for it since the last step"):
            optimizer.step()
        assert account.ledger.count("training") == charged
        optimizer.expect(draw_of(account, 3))
        weight.grad_sample = torch.ones(3, 2)
        optimizer.step()


def test_the_torch_optimizer_is_out_of_reach_and_its_noise_fixed(account_of):
    """Two things would bypass the account: the optimizer within, and a schedule of noise that no plan knows."""
    optimizer = _sgd([nn.Parameter(torch.zeros(2))], account_of({"gradient": 1.0}))
    with pytest.raises(AttributeError, match=r"AccountEngine\(account\).make_private"):
        _ = optimizer.original_optimizer
    with pytest.raises(ValueError, match="the plan says 1 "):
        ExponentialNoise(optimizer, gamma=0.5).step()
    assert optimizer.noise_multiplier == 1.0 and "SGD" in repr(optimizer)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_several_backward_passes_are_refused(account_of):
    network, account = GradSampleModule(network_of_two_layers(), loss_reduction="sum"), account_of({"gradient": 1.0})
    optimizer = _sgd(network.parameters(), account)
    optimizer.expect(draw_of(account, 2))
    for _ in range(2):
        network(torch.rand(1, 3)).sum().backward()
    with pytest.raises(RuntimeError, match="several backward passes"):
        optimizer.step()
    assert account.ledger.count("training") == 0


def test_a_sum_that_was_not_noised_does_not_outlive_the_failure(account_of, monkeypatch):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0})
    optimizer, sums = _sgd([weight], account), []

    def fails(out, _):
        sums.append(out.clone())
        raise ArithmeticError

    monkeypatch.setattr(account.stream, "add_normal_", fails)
    optimizer.set_gradients(handed(account, {weight: torch.full((3, 2), 0.1)}))
    with pytest.raises(ArithmeticError):
        optimizer.step()
    assert sums[0].all(), "the sum was there"
    assert not optimizer._buffer.flat.any() and weight.grad is None and not weight.any()


@pytest.mark.parametrize("way", ["set_gradients", "grad_sample"])
def test_what_was_handed_over_does_not_outlive_a_failure_or_zero_grad(account_of, way):
    class Broken(Fixed):
        def bounds(self, access, norms, before):
            raise ArithmeticError

    def hand_over():
        if way == "set_gradients":
            optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
        else:
            optimizer.expect(draw_of(account, 1))
            weight.grad_sample = torch.ones(1, 2)

    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0}, count=3)
    optimizer = _sgd([weight], account, Broken(1.0))
    hand_over()
    with pytest.raises(ArithmeticError):
        optimizer.step()
    with pytest.raises(RuntimeError, match="no per-record gradient"):
        optimizer.step()
    hand_over()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="no per-record gradient"):
        optimizer.step()


def test_the_last_bound_is_part_of_the_state(account_of):
    """A rule that follows the bound of the lot before goes on where it was."""
    rule = Smoothed(Decay(1.0, factor=0.5), keep=0.5)
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0}, count=4)
    optimizer = _sgd([weight], account, rule)
    for _ in range(2):
        optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
        optimizer.step()
    assert optimizer.last_bound == 0.75
    again = _sgd([weight], account, rule)
    again.load_state_dict(optimizer.state_dict())
    again.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    again.step()
    assert again.last_bound == 0.5 * 0.75 + 0.5 * 0.25
    plain = torch.optim.SGD([weight], lr=1.0)
    _sgd([weight], account, rule).load_state_dict(plain.state_dict())


def test_a_trunk_is_no_part_of_one_component(account_of):
    """Shared parameters have no slice for each component, so a bound for each component is refused."""
    schema = ImageSchema(3, 3, levels=1)
    account = account_of({"gradient": 1.0})
    for trunk in (False, True):
        network = StackedVAE(schema, 2, hidden=4, latent=2, trunk=trunk)
        gradients = term_gradients(network, network.term, Lot(torch.rand(4, 9), (0, 1, 4)), account.stream)
        assert gradients.by_component == (not trunk)
    with pytest.raises(ValueError, match="PerComponent"):
        PerComponent(Fixed(1.0)).scope.norms(gradients)


@pytest.mark.parametrize(("size", "noticed"), [(1, False), (4, False), (8, True)])
def test_noise_of_a_few_numbers_may_round_to_nothing(monkeypatch, size, noticed):
    """One number in 700 is rounded to 0, which says nothing of it alone; eight of them are not all."""
    account = account_of({"gradient": 1.3})
    weight = nn.Parameter(torch.zeros(size))
    optimizer = PrivateOptimizer(
        torch.optim.SGD([weight], lr=1.0), account=account, clipping=Fixed(0.7), expected_batch_size=5.0
    )
    monkeypatch.setattr(account.stream, "add_normal_", lambda out, s: out.add_(1e-4 * s))
    with pytest.raises(NoiseMissing) if noticed else nullcontext():
        optimizer.rehearse()


COPIES = {"copied": copy.copy, "copied deeply": copy.deepcopy, "saved": pickle.dumps}
CHANGES = {
    "ExponentialGradClip": (lambda o: schedulers.ExponentialGradClip(o, gamma=0.9), "clipping=Decay"),
    "StepGradClip": (lambda o: schedulers.StepGradClip(o, step_size=1, gamma=0.9), "clipping=Decay"),
    "LambdaGradClip": (lambda o: schedulers.LambdaGradClip(o, scheduler_function=lambda _: 1.0), "clipping=Decay"),
    "max_grad_norm": (lambda o: setattr(o, "max_grad_norm", 2.0), "clipping=Decay"),
    "ExponentialNoise": (lambda o: schedulers.ExponentialNoise(o, gamma=0.9).step(), "make the plan with"),
    "a hook before": (lambda o: o.register_step_pre_hook(print), "attach_step_hook"),
    "a hook behind": (lambda o: o.register_step_post_hook(print), "attach_step_hook"),
}


def _steps_on(account, optimizer, weight):
    optimizer.set_gradients(handed(account, {weight: torch.ones(1, 2)}))
    optimizer.step()
    assert account.ledger.count("training") == 1


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_it_is_neither_copied_nor_saved_and_steps_on(copied, account_of):
    """A copy that fails half-way would leave torch's hooks on the class."""
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0})
    optimizer = _sgd([weight], account)
    with pytest.raises(TypeError, match=r"never saved or copied, .*: keep its state_dict\(\)"):
        copied(optimizer)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    _steps_on(account, optimizer, weight)


@pytest.mark.parametrize(("change", "words"), CHANGES.values(), ids=CHANGES.keys())
def test_what_the_plan_or_the_rule_decides_is_not_changed_from_outside(change, words, account_of):
    weight, account = nn.Parameter(torch.zeros(2)), account_of({"gradient": 1.0})
    optimizer = _sgd([weight], account)
    with pytest.raises(ValueError, match=words):
        change(optimizer)
    _steps_on(account, optimizer, weight)
