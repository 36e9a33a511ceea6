"""Captured steps: a replay gives the gradients of the loss bit for bit, and a loss that cannot be captured runs as ever."""

import gc
import weakref

import pytest
import torch
from gradients.families import IN_SLOTS, IN_TWO_TYPES
from torch import nn

from lightning_dpgen import DPNorm, Fixed, PoissonLots, PrivateOptimizer
from lightning_dpgen.clipping import PerPerson, Quantile
from lightning_dpgen.gradients import captured
from lightning_dpgen.gradients.captured import CapturedGradients, CapturedTerm, NotCaptured
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.replay import record
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots

SIZE = 9
# The shared part of an RBM is weighted by a number that Python looks at, and an autograd.Function is code that torch calls.
NEVER = {name for name in IN_SLOTS if (name.startswith("rbm") and "taped" not in name) or "of its own" in name}


def _lot(records, places):
    return Lot(records, (0, len(records)), slots=Slots(SIZE, torch.tensor(places, dtype=torch.int64)))


def _lots(case):
    records = case.lot((0, 12)).records
    records = records if case.indices else records.float()
    orders = [8, 1, 0, 5], [3, 4, 6, 2, 8, 0, 1, 7, 5], [], [2]
    return [_lot(records[start : start + len(places)], places) for start, places in enumerate(orders)]


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:There is a performance", "ignore:Mismatch dtype")
@pytest.mark.parametrize(("name", "mixed"), IN_TWO_TYPES)
def test_a_replay_has_the_gradients_of_the_loss_bit_for_bit(name, mixed):
    torch.manual_seed(0)
    case = IN_SLOTS[name]()
    case.float()
    buffers = [GradientBuffer(p for p in case.network.parameters() if p.requires_grad) for _ in range(2)]
    lots, streams = _lots(case), [PrivateStream(seed=3), PrivateStream(seed=3)]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        term_gradients(case.network, case.term, lots[0], PrivateStream(seed=0))
        given = buffers[1].flat, buffers[1].views, streams[1], "ghost"
        if name in NEVER or (mixed and name == "bilinear"):
            with pytest.raises(
                NotCaptured, match=r"looks at a number|not those of the loss|not known to follow|runs within torch"
            ):
                CapturedTerm(case.network, case.term, lots[0], *given)
            return
        replayed = CapturedTerm(case.network, case.term, lots[0], *given)
        for lot in lots:
            found = replayed.gradients(lot)
            if not replayed._gradients.draws and case.term.forms is None:
                # The loss is handed words for its draws, of which it makes none.
                streams[1].words(1 + captured.torch_draws_from.__globals__["WORDS"])
            expected = term_gradients(case.network, case.term, lot, streams[0])
            assert torch.equal(found.norms(), expected.norms()) and torch.equal(found.losses, expected.losses)
            weights = torch.linspace(0.1, 1.0, len(lot))
            buffers[0].write([(expected, weights)], add=False)
            buffers[1].write([(found, weights)], add=False)
            torch.testing.assert_close(buffers[1].flat, buffers[0].flat, rtol=0.0, atol=1e-7 * float(weights.sum()))
            before = buffers[1].flat.clone()
            buffers[1].write([(found, weights)], add=True)
            torch.testing.assert_close(buffers[1].flat, 2.0 * before, rtol=1e-5, atol=1e-6)


def _network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    return network, PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))


def _optimizer(account_of, network, rule=None, **options):
    rule = rule or Fixed(0.5)
    account = account_of({"gradient": 1.0} | dict.fromkeys(rule.noise_shares, 5.0), **options)
    inner = torch.optim.SGD(network.parameters(), lr=0.1)
    return PrivateOptimizer(inner, account=account, clipping=rule, expected_batch_size=5.0), account


def _step(optimizer, network, term, account, records=None):
    (lot,) = PoissonLots(torch.rand(10, 3) if records is None else records, account).draw().in_slots(12, account.stream)
    gradients = optimizer.compute_gradients(network, term, lot)
    optimizer.set_gradients(gradients)
    optimizer.step()
    return gradients


@pytest.mark.parametrize("rule", [Fixed(0.5), DPNorm(c_max=2.0), Quantile(0.5)], ids=lambda rule: type(rule).__name__)
def test_an_optimizer_captures_from_the_second_lot_on(rule, account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, rule, count=4)
    kinds = [type(_step(optimizer, network, term, account)) is CapturedGradients for _ in range(4)]
    assert kinds == [False, True, True, True] and optimizer.captured == "captured"
    account.verify_complete()


def test_a_record_that_is_not_finite_adds_zeros(account_of):
    network, term = _network()
    flats = []
    for spoiled in (False, True):
        records = torch.rand(4, 3, generator=torch.Generator().manual_seed(1))
        term_gradients(network, term, _lot(records, [0, 1, 2, 3]), PrivateStream(seed=0))
        buffer = GradientBuffer(network.parameters())
        replayed = CapturedTerm(
            network, term, _lot(records, [0, 1, 2, 3]), buffer.flat, buffer.views, PrivateStream(seed=0), "ghost"
        )
        if spoiled:
            records[2] = float("nan")
        found = replayed.gradients(_lot(records, [5, 1, 8, 2]))
        weights = torch.tensor([1.0, 1.0, 0.0, 1.0])
        assert bool(torch.isfinite(found.norms()).all()) == (not spoiled)
        buffer.write([(found, weights)], add=False)
        flats.append(buffer.flat)
    assert torch.equal(*flats)
    # The next lot is not touched by it.
    again = replayed.gradients(_lot(records[:2], [8, 5]))
    assert torch.isfinite(again.norms()).all()


REFUSED = {
    "a number that Python looks at": (
        lambda network, bias: lambda lot, _: network(lot.records).square().sum(dim=1) * float(bias.abs().sum()),
        "reads the value of a tensor as a number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_cannot_be_captured_runs_as_ever(name, account_of):
    make, message = REFUSED[name]
    network, _ = _network()
    term = PerRecord(make(network, torch.ones(2)))
    optimizer, account = _optimizer(account_of, network, count=3)
    kinds = [type(_step(optimizer, network, term, account)) is CapturedGradients for _ in range(3)]
    assert not any(kinds) and optimizer.captured.startswith("not captured: ") and message in optimizer.captured
    account.verify_complete()


def test_rules_that_need_more_than_a_norm_are_not_captured(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, PerPerson(Fixed(0.5)), count=2)
    assert not any(isinstance(_step(optimizer, network, term, account), CapturedGradients) for _ in range(2))
    assert optimizer.captured is None


def test_parameters_in_other_memory_are_seen(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=4)
    for _ in range(2):
        _step(optimizer, network, term, account)
    # The optimizer takes the numbers up into its own memory again, as for any lot.
    network[0].weight.data = torch.zeros(8, 3)
    gradients = _step(optimizer, network, term, account)
    assert type(gradients) is not CapturedGradients and "other memory" in optimizer.captured


def test_weights_that_move_are_those_that_are_replayed(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=6)
    records = torch.rand(10, 3)
    for _ in range(6):
        gradients = _step(optimizer, network, term, account, records)
    assert isinstance(gradients, CapturedGradients)
    lot = _lot(records[:4], [0, 3, 1, 2])
    with torch.no_grad():
        network[0].weight.mul_(0.5)
    found = (
        next(iter(optimizer._captures._terms.values()))
        .gradients(Lot(records[:4], (0, 4), slots=Slots(12, torch.arange(4))))
        .norms()
    )
    expected = term_gradients(network, term, lot, PrivateStream(seed=0)).norms()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.0)


def test_a_network_in_the_memory_of_one_that_is_gone_is_another(account_of):
    """Its first lot is not taken for the second one of the other."""
    network, _ = _network()
    optimizer, account = _optimizer(account_of, network, count=20)
    for _ in range(20):
        used = nn.Sequential(network)
        term = PerRecord(lambda lot, _, used=used: used(lot.records).square().sum(dim=1))
        assert type(_step(optimizer, used, term, account)) is not CapturedGradients
        del used, term
        gc.collect()
    assert optimizer.captured is None
    assert len(optimizer._captures._terms) < 20, "networks that are gone are let go"


def test_no_record_is_kept_but_those_of_the_last_lot(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=3)
    for _ in range(2):
        _step(optimizer, network, term, account)
    records = torch.full((10, 3), 0.125)
    kept = weakref.ref(records)
    _step(optimizer, network, term, account, records)
    (replayed,) = optimizer._captures._terms.values()
    assert (replayed._records == 0.125).any()
    del records
    gc.collect()
    assert kept() is None
    del optimizer, replayed
    gc.collect()


def test_captured_gradients_say_what_they_are_not():
    network, term = _network()
    lot, buffer = _lot(torch.rand(4, 3), [0, 1, 2, 3]), GradientBuffer(network.parameters())
    term_gradients(network, term, lot, PrivateStream(seed=0))
    found = CapturedTerm(network, term, lot, buffer.flat, buffer.views, PrivateStream(seed=0), "ghost").gradients(lot)
    for refused in (found.layer_norms, lambda: found.weighted_sum(torch.ones(4), buffer.views)):
        with pytest.raises(RuntimeError, match="captured gradients"):
            refused()


def test_a_list_of_operations_does_the_same_again():
    """In place, into views, with several results, and from what an earlier computation made."""
    x, out, kept = torch.arange(6.0).view(2, 3), torch.zeros(3), {}

    def first():
        y = x.clone()
        y[0].mul_(2.0)
        kept["parts"] = y.unbind(0)
        values, places = y.max(dim=1)
        return [values, places]

    def second():
        out.add_(kept["parts"][0] + kept["parts"][1].exp())
        return []

    compute, add = record([first, second], torch.device("cpu"))
    for numbers in (torch.rand(2, 3), torch.rand(2, 3)):
        x.copy_(numbers)
        out.zero_()
        values, places = compute()
        expected = torch.stack([2.0 * numbers[0], numbers[1]])
        assert torch.equal(values, expected.amax(dim=1)) and torch.equal(places, expected.argmax(dim=1))
        for _ in range(2):
            add()
        torch.testing.assert_close(out, 2.0 * (2.0 * numbers[0] + numbers[1].exp()))


def test_a_computation_that_looks_at_a_number_is_not_recorded():
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="looks at a number"):
        record([lambda: [x * float(x.sum())]], torch.device("cpu"))
