"""Captured steps: a replay gives the gradients of the loss bit for bit, and a loss that cannot be captured runs as ever."""

import functools
import gc
import warnings
import weakref

import pytest
import torch
from gradients.families import IN_SLOTS, IN_TWO_TYPES
from on_gpu.gpu_mark import DEVICES
from torch import nn

from lightning_dpgen import DPNorm, Fixed, PoissonLots, PrivateOptimizer
from lightning_dpgen.clipping import PerPerson, Quantile
from lightning_dpgen.gradients import captured
from lightning_dpgen.gradients.captured import CapturedGradients, CapturedTerm, NotCaptured
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.replay import record
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots

SIZE = 9
# An autograd.Function is code that torch calls.
NEVER = {name for name in IN_SLOTS if "of its own" in name}


def _lot(records, places):
    return Lot(records, (0, len(records)), slots=Slots(SIZE, torch.tensor(places, dtype=torch.int64)))


def _lots(case):
    records = case.lot((0, 12)).records
    records = records if case.indices else records.float()
    orders = [8, 1, 0, 5], [3, 4, 6, 2, 8, 0, 1, 7, 5], [], [2]
    return [_lot(records[start : start + len(places)], places) for start, places in enumerate(orders)]


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:There is a performance", "ignore:Mismatch dtype")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "mixed"), IN_TWO_TYPES)
def test_a_replay_has_the_gradients_of_the_loss_bit_for_bit(name, mixed, device):
    torch.manual_seed(0)
    case = IN_SLOTS[name]()
    case.float()
    case.to(device)
    buffers = [GradientBuffer(p for p in case.network.parameters() if p.requires_grad) for _ in range(2)]
    lots, streams = [lot.to(device) for lot in _lots(case)], [PrivateStream(seed=3), PrivateStream(seed=3)]
    with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
        term_gradients(case.network, case.term, lots[0], PrivateStream(seed=0))
        given = buffers[1].flat, buffers[1].views, streams[1], "ghost"
        if name in NEVER:
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
            for own, its in ((found.norms(), expected.norms()), (found.losses, expected.losses)):
                # Sums of embeddings are added up on a GPU in any order.
                torch.testing.assert_close(own, its, rtol=0.0 if device == "cpu" else 1e-6, atol=0.0)
            weights = torch.linspace(0.1, 1.0, len(lot), device=device)
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
    assert optimizer.captured.startswith("not captured: the gradients of a person")


def test_parameters_in_other_memory_are_seen_and_captured_again_a_few_times(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=12)
    kinds = []
    for step in range(12):
        if step % 3 == 2:
            # The optimizer takes the numbers up into its own memory again, as for any lot.
            network[0].weight.data = torch.zeros(8, 3)
        kinds.append(type(_step(optimizer, network, term, account)) is CapturedGradients)
    assert kinds == [False, True, False] + [True, True, False] * 3
    assert "other memory, for the 4th time" in optimizer.captured


def _scaled(network, scale):
    return PerRecord(lambda lot, _: scale * network(lot.records).square().sum(dim=1))


ANOTHER = {
    "a closure over another number": lambda network, i: _scaled(network, 1.0 + i // 6),
    "a closure over another tensor": lambda network, i: _scaled(network, torch.tensor(1.0 + i // 6)),
    "a default argument": lambda network, i: PerRecord(
        lambda lot, _, scale=1.0 + i // 6: scale * network(lot.records).square().sum(dim=1)
    ),
    "a partial": lambda network, i: PerRecord(functools.partial(_of_scale, network, scale=1.0 + i // 6)),
    "an object that is called": lambda network, i: PerRecord(_Weighted(network, 1.0 + i // 6)),
    "a method of an object": lambda network, i: PerRecord(_Weighted(network, 1.0 + i // 6).loss),
    "more noise": lambda network, i: PerRecord(
        lambda lot, noise: network(lot.records + noise.sum(dim=1, keepdim=True)).square().sum(dim=1), noise=1 + i // 6
    ),
}


def _of_scale(network, lot, noise, scale):
    return scale * network(lot.records).square().sum(dim=1)


class _Weighted:
    def __init__(self, network, scale):
        self.network, self.scale = network, scale

    def loss(self, lot, noise):
        return self.scale * self.network(lot.records).square().sum(dim=1)

    __call__ = loss


@pytest.mark.parametrize("name", ANOTHER)
@pytest.mark.parametrize("kept", [False, True], ids=["made anew", "kept"])
def test_another_loss_of_the_same_code_is_not_replayed(name, kept, account_of):
    """A loss that is made anew for each lot is the same where it is closed over the same; where it is not, it is called."""
    network, _ = _network()
    optimizer, account = _optimizer(account_of, network, count=12)
    terms, records, seen = [], torch.rand(10, 3), []
    for i in range(12):
        if not kept or i % 6 == 0:
            terms.append(ANOTHER[name](network, i))
        (lot,) = PoissonLots(records, account).draw().in_slots(12, account.stream)
        found = optimizer.compute_gradients(network, terms[-1], lot)
        if "noise" not in name and len(lot):
            expected = term_gradients(network, terms[-1], lot, PrivateStream(seed=0)).norms()
            torch.testing.assert_close(found.norms(), expected, rtol=1e-5, atol=1e-6)
        seen.append((type(found) is CapturedGradients, terms[-1].noise))
        optimizer.set_gradients(found)
        optimizer.step()
    assert not seen[6][0], "the first lot of another loss is computed by it"
    assert all(noise == 1 + i // 6 for i, (_, noise) in enumerate(seen)) or "noise" not in name
    if kept or name in ("a closure over another number", "a default argument", "a partial", "more noise"):
        assert sum(captured for captured, _ in seen) >= 9


def test_a_change_that_is_not_seen_is_found_by_comparison(account_of, monkeypatch):
    """After 8 replays, and after twice as many each time."""
    network, _ = _network()
    scale = [1.0]
    monkeypatch.setattr(captured.SteadyCode, "changed", lambda self: None)
    monkeypatch.setattr(captured.SteadyCode, "reason", lambda self: None)
    term = PerRecord(lambda lot, _: scale[0] * network(lot.records).square().sum(dim=1))
    optimizer, account = _optimizer(account_of, network, count=20)
    for _ in range(6):
        _step(optimizer, network, term, account)
    scale[0] = 2.0
    with pytest.warns(UserWarning, match=r"up to 4 steps may have trained the loss as it was"):
        kinds = [type(_step(optimizer, network, term, account)) is CapturedGradients for _ in range(14)]
    assert kinds == [True] * 3 + [False] * 11 and "not those of the loss" in optimizer.captured
    account.verify_complete()


def test_a_comparison_on_the_way_changes_nothing(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=20)
    assert [type(_step(optimizer, network, term, account)) is CapturedGradients for _ in range(20)] == [False] + [True] * 19
    lot, replayed = _lot(torch.rand(4, 3), [0, 3, 1, 2]), next(iter(optimizer._captures._terms.values()))
    replayed._flat.fill_(3.0)
    replayed.replays = 31
    assert replayed.check() is None and (replayed._flat == 3.0).all()
    del lot


@pytest.mark.parametrize("held", [True, False], ids=["parts", "another lot between"])
def test_gradients_of_a_lot_before_are_refused(held, account_of):
    """They would be those of the lot that was computed last, at weights of another one."""
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=4)
    for _ in range(2):
        _step(optimizer, network, term, account)
    lot = PoissonLots(torch.rand(10, 3), account).draw()
    one, other = (optimizer.compute_gradients(network, term, *lot.in_slots(12, account.stream)) for _ in range(2))
    assert type(one) is type(other) is CapturedGradients
    optimizer.set_gradients(MicroBatches(lambda: [one, other], one.draw) if held else one)
    with pytest.raises(RuntimeError, match="another one was computed since"):
        optimizer.step()
    assert (optimizer._buffer.flat == 0).all()


def test_a_difference_ends_captures_though_warnings_are_errors(account_of, monkeypatch):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=12)
    for _ in range(4):
        _step(optimizer, network, term, account)
    (replayed,) = optimizer._captures._terms.values()
    assert not replayed._made, "made-up gradients are let go"
    replayed.replays = 7
    monkeypatch.setattr(CapturedTerm, "_difference", lambda self: "it differs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="it differs"):
            _step(optimizer, network, term, account)
    assert type(_step(optimizer, network, term, account)) is not CapturedGradients


def test_steps_in_slots_need_not_be_captured(account_of):
    network, term = _network()
    optimizer, account = _optimizer(account_of, network, count=4)
    for _ in range(4):
        (lot,) = PoissonLots(torch.rand(10, 3), account).draw().in_slots(12, account.stream)
        found = optimizer.compute_gradients(network, term, lot, capture=False)
        assert type(found) is not CapturedGradients
        optimizer.set_gradients(found)
        optimizer.step()
    assert optimizer.captured is None


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
    assert "each lot has a network or a loss of its own" in optimizer.captured
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


def test_a_computation_uses_nothing_of_one_that_may_be_left_out():
    """It would be what it was when it was recorded."""
    x, kept = torch.ones(2), {}

    def second():
        kept["y"] = x + 1.0
        return []

    with pytest.raises(RuntimeError, match="uses what one before it made"):
        record([lambda: [], second, lambda: [kept["y"] * 2.0]], torch.device("cpu"))
    with pytest.raises(RuntimeError, match="uses what one before it made"):
        record([lambda: [], second, lambda: [kept["y"].mul_(2.0)]], torch.device("cpu"))
