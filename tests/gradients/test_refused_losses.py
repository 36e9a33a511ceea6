"""Losses that would carry numbers of other records past the clipping are refused, and the network stays as it was."""

import contextlib
import functools
import gc
import threading
import weakref

import pytest
import torch
from torch import nn

from lightning_dpgen.common.precision import full_precision
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.clipping import Fixed
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.factors import Dense
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients, materialised
from lightning_dpgen.gradients.privatize import GradientBuffer, privatize
from lightning_dpgen.gradients.terms import PerGroup, PerRecord
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot, LotId

RECORDS = torch.arange(60.0).view(20, 3).remainder(7.0)


def _gradients(network, loss, records=RECORDS, kind=PerRecord):
    term = loss if isinstance(loss, PerRecord | PerGroup) else kind(loss)
    return term_gradients(network, term, Lot(records, (0, len(records))), PrivateStream(0))


class Writes(nn.Module):
    """A layer that keeps what it has seen of its input in a parameter, as initialisations from data do."""

    def __init__(self, write):
        super().__init__()
        self.scale, self.shift, self.write = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3)), write

    def forward(self, x):
        self.write(self.shift, -x.mean(dim=0))
        return self.scale * (x + self.shift)


def _copied(p, x):
    with torch.no_grad():
        p.copy_(x)


def _added(p, x):
    with torch.no_grad():
        p += x


WRITES = {
    "under no_grad": _copied,
    "added under no_grad": _added,
    "into its data": lambda p, x: p.data.copy_(x),
    "into a detached one": lambda p, x: p.detach().copy_(x),
    "in place of its data": lambda p, x: setattr(p, "data", x),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writing_into_a_parameter(write):
    network = Writes(write)
    with pytest.raises((ValueError, RuntimeError), match="writes"):
        _gradients(network, lambda lot, _: network(lot.records).square().sum(dim=1))
    assert torch.equal(network.shift, torch.zeros(3))


def test_reading_a_parameter_apart_is_allowed():
    layer = nn.Linear(3, 2)

    def loss(lot, _):
        return (layer(lot.records) / layer.weight.data.norm() + layer.bias.detach()).square().sum(dim=1)

    assert len(_gradients(layer, loss)) == len(RECORDS)


def test_writing_public_numbers_into_a_parameter():
    network = Writes(lambda p, _: p.data.add_(1.0))
    with pytest.raises(ValueError, match="writes into a parameter"):
        _gradients(network, lambda lot, _: network(lot.records).square().sum(dim=1))


GROUPED = {
    "less the mean of the lot": (lambda y, groups: groups.gather(y - y.detach().mean(dim=0)), "gradients of single"),
    "of a record in no group": (lambda y, groups: groups.gather(y) + y, "groups.gather"),
}


@pytest.mark.parametrize(("made", "words"), GROUPED.values(), ids=GROUPED.keys())
def test_a_group_that_depends_on_others(made, words):
    layer = nn.Linear(3, 2)

    def loss(lot, _, groups):
        return made(layer(lot.records), groups).square().sum(dim=(1, 2))

    with pytest.raises(ValueError, match=words):
        _gradients(layer, PerGroup(loss, 4, places=20))


def test_a_parameter_behind_the_groups_is_left_to_the_other_engine():
    layer, lot = nn.Linear(3, 2), Lot(RECORDS, (0, len(RECORDS)))
    term = PerGroup(lambda lot, _, groups: layer(groups.gather(lot.records)).sum(dim=(1, 2)), 4, places=20)
    with pytest.raises(ValueError, match="only engine='func'"):
        term_gradients(layer, term, lot, PrivateStream(0))
    assert len(term_gradients(layer, term, lot, PrivateStream(0), engine="func")) == 4


def test_a_mean_over_those_that_are_there_is_a_groups_own():
    layer = nn.Linear(3, 2)

    def loss(lot, _, groups):
        sizes = groups.mask.sum(dim=1).clamp(min=1)
        return (groups.gather(layer(lot.records)).sum(dim=1) / sizes[:, None]).square().sum(dim=1)

    assert len(_gradients(layer, PerGroup(loss, 4, places=20))) == 4


@pytest.mark.parametrize("records", [RECORDS[:0], RECORDS[:1], torch.ones(5, 3)])
def test_a_lot_that_cannot_tell_does_not_settle_it(records):
    """Without records, with one, or with records that are all alike, the mean over the lot is the record."""
    layer = nn.Linear(3, 2)

    def loss(lot, _):
        return layer(lot.records - lot.records.mean(dim=0)).square().sum(dim=1)

    with pytest.raises(ValueError, match="beside it"):
        _gradients(layer, loss, records)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["records", "groups", "components"])
def test_how_often_a_loss_is_called_follows_from_no_record(kind, engine):
    """The counter of a loss would tell lots, components and groups without a record, or how the engine was checked."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.calls = []

        def forward(self, x):
            self.calls.append(None)
            return super().forward(x).square().sum(dim=1)

    def calls(*lots):
        layer = Counting()
        term = PerRecord(lambda lot, _: layer(lot.records))
        if kind == "groups":
            term = PerGroup(lambda lot, _, groups: groups.gather(layer(lot.records)).sum(dim=1), 4, places=20)
        for records, offsets in lots:
            ends = offsets if kind == "components" else (0, len(records))
            term_gradients(layer, term, Lot(records, ends), PrivateStream(0), engine=engine)
        return len(layer.calls)

    few, none = (RECORDS[:2], (0, 0, 2)), (RECORDS[:0], (0, 0, 0))
    many, alike = (RECORDS, (0, 3, len(RECORDS))), (torch.ones(30, 3), (0, 30, 30))
    assert len({calls(first, *rest) for first in (few, none, many, alike) for rest in ([few, many], [none, alike])}) == 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("first", [0, 1, 3, 7])
def test_words_need_not_begin_at_zero(first, engine):
    """A counter at the end of a loss learns no more where words of a probe record would end the call before it."""

    class Counting(nn.Embedding):
        calls = 0

        def forward(self, x):
            found = super().forward(x - first).square().sum(dim=(1, 2))
            Counting.calls += 1
            return found

    words = torch.randint(first, first + 3, (20, 4), generator=torch.Generator().manual_seed(1))

    def calls(*lots, **given):
        Counting.calls, layer = 0, Counting(3, 2)
        term = PerRecord(lambda lot, _: layer(lot.records), **given)
        for records in lots:
            term_gradients(layer, term, Lot(records, (0, len(records))), PrivateStream(0), engine=engine)
        return Counting.calls

    if first == 7:
        for lot in (words, words[:0]):
            with pytest.raises(ValueError, match="takes no made-up record of numbers from 0 to 3"):
                calls(lot)
    given = {"example": words[:1]} if first == 7 else {}
    lots = words, words[:2], words[:0]
    assert len({calls(one, other, **given) for one in lots for other in lots}) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_is_no_function_of_its_records_is_called_as_often(engine):
    def calls(records):
        layer, found = nn.Linear(3, 2), []

        def loss(lot, _):
            found.append(None)
            wild = torch.where(lot.records.sum(dim=1) > 100, float(len(found)), 1.0)
            return layer(lot.records).square().sum(dim=1) * wild

        term_gradients(layer, PerRecord(loss), Lot(records, (0, len(records))), PrivateStream(0), engine=engine)
        return len(found)

    assert calls(RECORDS) == calls(RECORDS + 1e3 * (torch.arange(len(RECORDS)) == 1)[:, None])


def test_an_example_is_a_record_as_lots_have_them():
    layer = nn.Linear(3, 2)
    for example in (RECORDS[:1, :2], RECORDS[:2], RECORDS[:1].long()):
        term = PerRecord(lambda lot, _: layer(lot.records).square().sum(dim=1), example=example)
        with pytest.raises(ValueError, match="expected one record as lots have them"):
            term_gradients(layer, term, Lot(RECORDS, (0, len(RECORDS))), PrivateStream(0))


def test_each_loss_of_a_factory_is_looked_at():
    layer = nn.Linear(3, 2)

    def made(change):
        return PerRecord(lambda lot, _: layer(change(lot.records)).square().sum(dim=1))

    class Loss:
        def __init__(self, change):
            self.change = change

        def __call__(self, lot, _):
            return layer(self.change(lot.records)).square().sum(dim=1)

    def less_the_mean(x):
        return x - x.mean(dim=0)

    def with_(change, lot, _):
        return layer(change(lot.records)).square().sum(dim=1)

    for make in (made, Loss, lambda change: functools.partial(with_, change)):
        _gradients(layer, make(lambda x: 2.0 * x))
        with pytest.raises(ValueError, match="beside it"):
            _gradients(layer, make(less_the_mean))


def _size(x):
    assert len(x) > 1, "a batch"
    return x


def _shape(x):
    assert x.shape[0] == 20
    return x


def _error(kind):
    def fail(x):
        raise kind("a reason of the loss")

    return fail


# In a traced function torch refuses it with a message that shows its numbers.
SCALE = nn.Parameter(torch.ones(3))
ATTENTION = nn.MultiheadAttention(6, 2)
FAILING = {
    "an assertion": (
        _size,
        r"the loss asserts what does not hold \(a batch\) where a batch is one record.*assert len\(x\)",
    ),
    "an assertion without words": (_shape, r"the loss asserts what does not hold (\(.*\) )?where a batch is one record"),
    "a layer's assertion": (
        lambda x: ATTENTION(x, x, x)[0],
        "layer MultiheadAttention asserts.*embedding dim",
    ),
    "traced": (lambda x: torch.jit.trace(lambda y: y * SCALE, x)(x), "loss calls TorchScript"),
    "traced methods": (lambda x: torch.jit.trace_module(nn.Tanh(), {"forward": x})(x), "TorchScript"),
    "an error of its own": (_error(RuntimeError), "a reason of the loss"),
    "not made": (_error(NotImplementedError), "a reason of the loss"),
    "a value": (_error(ValueError), "a reason of the loss"),
}


@pytest.mark.parametrize("engine", ["ghost", "func"])
@pytest.mark.parametrize(("change", "words"), FAILING.values(), ids=FAILING.keys())
def test_an_error_of_a_loss_is_a_line_and_none_of_its_own_causes(change, words, engine):
    layer = nn.Linear(3, 2)
    term = PerRecord(lambda lot, _: layer(change(lot.records)).square().sum(dim=1))
    with pytest.raises(ValueError, match=words) as refused:
        term_gradients(layer, term, Lot(RECORDS, (0, len(RECORDS))), PrivateStream(0), engine=engine)
    assert len(str(refused.value).splitlines()) == 1
    ahead, causes = [refused.value], []
    while ahead:
        error = ahead.pop()
        assert not any(error is other for other in causes), "causes come to an end"
        causes.append(error)
        # The context of an error that has a cause is that cause.
        ahead += [cause for cause in {id(c): c for c in (error.__cause__, error.__context__)}.values() if cause is not None]


def _hash(x, layer):
    return hash(x) % 97


def _hashes(x, layer):
    return hash((x, x.abs())) % 97


def _counted(x, layer):
    seen = {x: 1.0}
    seen[x.abs()] = 2.0
    return seen[x] + len(seen) + len(set(layer.parameters()))


@pytest.mark.parametrize("engine", ["ghost", "func"])
@pytest.mark.parametrize("factor", [_hash, _hashes, _counted])
def test_the_hash_of_a_record_is_no_address(factor, engine):
    """An address follows from what else is in memory, and so from the lot; sets and dicts of tensors work as ever."""
    layer = nn.Linear(3, 2)
    term = PerRecord(lambda lot, _: layer(lot.records).square().sum(dim=1) * (1.0 + factor(lot.records, layer)))

    def first(size):
        held = [torch.zeros(size, 7) for _ in range(size)]
        found = term_gradients(layer, term, Lot(RECORDS[:size], (0, size)), PrivateStream(0), engine=engine)
        return found.losses[0], len(held)

    alone, *others = [first(size)[0] for size in (1, 2, 7, 20)]
    for other in others:
        torch.testing.assert_close(other, alone)
    assert hash(RECORDS) == id(RECORDS), "outside of a loss as ever"


DRAWS = {
    "of a generator of one's own": (lambda n: torch.randn(n, 1, generator=torch.Generator().manual_seed(0)), "generator"),
    "after a seed": (lambda n: torch.manual_seed(0) and torch.randn(n, 1), "seeded"),
}


@pytest.mark.parametrize(("draw", "words"), DRAWS.values(), ids=DRAWS.keys())
def test_public_random_numbers(draw, words):
    layer = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=words):
        _gradients(layer, lambda lot, _: (layer(lot.records) * draw(len(lot))).square().sum(dim=1))


def test_parts_of_another_lot_or_twice_the_same():
    weight, draw = nn.Parameter(torch.zeros(3)), LotId(0.1, 4)
    part = materialised({weight: torch.ones(3, 3)}, draw)
    with pytest.raises(ValueError, match="another lot"):
        list(MicroBatches(lambda: [part], LotId()).parts())
    with pytest.raises(ValueError, match="more records"):
        list(MicroBatches(lambda: [part, part], draw).parts())


def test_nothing_of_a_lot_is_held_once_its_gradients_are_dropped():
    layer = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    seen = []

    def loss(lot, _):
        y = layer(lot.records)
        seen.append(weakref.ref(y))
        return y.square().sum(dim=1)

    for _ in range(3):
        _gradients(layer, loss)
    gc.collect()
    assert all(x() is None for x in seen)


class Remembers(nn.Module):
    """A module that returns what it returned the last time, as a cache that is never emptied does."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(3, 2), None

    def forward(self, x):
        kept, self.last = self.last, x.detach().mean(dim=0)
        return self.layer(x if kept is None else x + kept)


def test_records_of_an_earlier_call_by_either_engine():
    for engine in ("ghost", "func"):
        network = Remembers()
        term = PerRecord(lambda lot, _, network=network: network(lot.records).square().sum(dim=1))
        with pytest.raises(ValueError, match="an earlier call"):
            for _ in range(2):
                term_gradients(network, term, Lot(RECORDS, (0, 20)), PrivateStream(0), engine=engine)


def test_gradients_of_another_lot_behind_a_mean_embedding(account_of):
    weight, draw = nn.Parameter(torch.zeros(3)), LotId()
    for other in (materialised({weight: torch.ones(2, 3)}), materialised({weight: torch.ones(3, 3)}, draw)):
        waits = EmbeddingGradients(torch.zeros(2, 4), lambda _, other=other: other, [weight], draw)
        with account_of({"embedding": 1.0, "gradient": 1.0}).open("training") as access:
            with pytest.raises(ValueError, match="same lot as the embedding"):
                waits.given(access, 2.0)
            access.consume("gradient")


def test_networks_of_convolutions_under_autocast():
    # Three of 300 seeds are refused: in bfloat16 two of three probe records stood on the other side of a kink.
    torch.manual_seed(0)
    network = StackedVAE(ImageSchema(8, 8, levels=1), 2, network="conv", latent=2)
    lot = Lot(torch.rand(6, 64), (0, 3, 6))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = term_gradients(network, network.term, lot, PrivateStream(0))
    assert torch.isfinite(gradients.norms()).all() and (gradients.norms() > 0).all()


@pytest.mark.parametrize("asked", ["highest", "high", "medium"])
def test_norms_and_sums_are_found_in_full_precision_whatever_is_asked_for(asked, account_of):
    """Lightning recommends less on many GPUs; with eight bits a sum would be longer than its bound.

    Convolutions and recurrent networks have eleven bits on a GPU by torch's own default.
    """
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn
    seen = []

    class Watching(Fixed):
        def bounds(self, *arguments):
            seen.extend(backend.fp32_precision for backend in backends)
            return super().bounds(*arguments)

    weight = torch.nn.Parameter(torch.zeros(2, 3))
    torch.set_float32_matmul_precision(asked)
    before = [backend.fp32_precision for backend in backends]
    try:
        with account_of({"gradient": 1.0}).open("training") as access:
            privatize([(materialised({weight: torch.ones(3, 2, 3)}), Watching(1.0))], access, 2.0, GradientBuffer([weight]))
        assert seen == ["ieee"] * 6 and torch.get_float32_matmul_precision() == asked
        assert "tf32" in before and [backend.fp32_precision for backend in backends] == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_full_precision_lasts_until_the_last_of_several_threads_leaves():
    rnn = torch.backends.cudnn.rnn
    before, entered, left, seen = rnn.fp32_precision, threading.Event(), threading.Event(), []

    def other():
        with full_precision(torch.device("cpu")):
            entered.set()
            left.wait(60)
            seen.append(rnn.fp32_precision)

    with full_precision(torch.device("cpu")):
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(60)
    left.set()
    thread.join(60)
    assert seen == ["ieee"] and before != "ieee" and rnn.fp32_precision == before


@pytest.mark.parametrize("changed, error, refused", [(1, 0.05, False), (2, 0.05, True), (3, 0.005, False)])
def test_rounding_at_a_kink_is_no_reason_to_refuse(changed, error, refused):
    """In a lot a unit of a deep network can be on the other side of 0; most records show a parameter that is not seen."""
    network = torch.nn.Linear(3, 1, bias=False)
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))

    def engine(network, term, lot, noise, groups=None):
        term.losses(lot, noise)
        outputs = (lot.records @ network.weight.T).detach()
        rows = 2.0 * outputs * lot.records * (1.0 + error * (torch.arange(len(lot)) < changed))[:, None]
        factors = {network.weight: Dense(rows[:, None])}
        return PerSampleGradients(
            factors, [[network.weight]], len(lot), lot.draw, offsets=lot.offsets, losses=lambda: outputs[:, 0] ** 2
        )

    lot = Lot(torch.rand(3, 3), (0, 3))
    with pytest.raises(ValueError, match="single records differ") if refused else contextlib.nullcontext():
        check_exact(engine, network, term, lot, torch.zeros(3, 0))


@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_what_a_layer_does_is_not_said_of_the_loss(engine):
    """A layer of torch is named where it looks at a value, and the loss where code of its own does."""
    network = nn.AdaptiveLogSoftmaxWithLoss(4, 6, [2])
    losses = {
        "layer AdaptiveLogSoftmaxWithLoss makes a shape": lambda lot, _: -network(lot.records, lot.records[:, 0].long())[0],
        "loss looks": lambda lot, _: network.log_prob(lot.records).sum(1) if lot.records.sum() > 0 else lot.records.sum(1),
        "loss makes a shape": lambda lot, _: network.head(lot.records)[lot.records > 0].sum(),
    }
    for words, loss in losses.items():
        with pytest.raises(ValueError, match=words):
            term_gradients(network, PerRecord(loss), Lot(torch.rand(3, 4), (0, 3)), PrivateStream(1), engine=engine)


@pytest.mark.parametrize("engine", ["ghost", "func"])
def test_lengths_of_sequences_are_a_records_own(engine):
    network = nn.GRU(2, 2, batch_first=True)

    def packed(lot, _):
        lengths = (lot.records[:, :, 0] > 0).sum(dim=1)
        packed = nn.utils.rnn.pack_padded_sequence(lot.records, lengths, batch_first=True, enforce_sorted=False)
        return network(packed)[1].square().sum(dim=(0, 2))

    def listed(lot, _):
        return network(nn.utils.rnn.pad_sequence(list(lot.records), batch_first=True))[1].square().sum(dim=(0, 2))

    for loss in (packed, listed):
        with pytest.raises(ValueError, match="pads or packs"):
            term_gradients(network, PerRecord(loss), Lot(torch.rand(3, 4, 2), (0, 3)), PrivateStream(1), engine=engine)


@pytest.mark.parametrize(
    "bind", [lambda f: functools.partial(_scaled, f=f), lambda f: lambda lot, noise, f=f: _scaled(lot, noise, f)]
)
def test_a_function_that_a_loss_is_bound_to_is_checked_by_itself(bind):
    """Another function in a default argument, or a word of a partial, makes another loss."""
    torch.manual_seed(0)
    layer = nn.Linear(3, 2)
    _gradients(layer, bind(lambda lot: layer(lot.records).square().sum(dim=1)))
    with pytest.raises(ValueError, match="beside it"):
        _gradients(layer, bind(lambda lot: layer(lot.records - lot.records.mean(dim=0)).square().sum(dim=1)))


def _scaled(lot, noise, f):
    return f(lot)


class Counted(nn.Module):
    """A mean over a length, which is not finite for a record whose length is 0."""

    def __init__(self, mixes=False, scalar=True, finite=lambda length: length > 0):
        super().__init__()
        self.layer, self.mixes, self.scalar, self.finite = nn.Linear(3, 2), mixes, scalar, finite

    def forward(self, x, length):
        mean = self.layer(x).square().sum(dim=1) / torch.where(self.finite(length), length + 1.0, 0.0)
        losses = mean + 3.0 * (mean - mean.mean()).abs() if self.mixes else mean
        return losses.mean() if self.scalar else losses


NOT_FINITE = {
    "of no length": lambda length: length > 0,
    "of an odd length": lambda length: length % 2 == 0,
    "of a length but 3": lambda length: length == 3,
}


def _checked(network):
    records, term = (torch.rand(0, 3), torch.zeros(0, dtype=torch.long)), PerRecord(lambda lot, _: network(*lot.records))
    return check_exact(ENGINES["ghost"], network, term, Lot(records, (0, 0)), torch.zeros(0, 0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scalar", [True, False])
@pytest.mark.parametrize("finite", NOT_FINITE.values(), ids=NOT_FINITE)
def test_made_up_records_whose_loss_is_not_finite_prove_nothing(finite, scalar):
    example = _checked(network := Counted(scalar=scalar, finite=finite))
    assert torch.isfinite(network(*example)).all()
    with pytest.raises(ValueError, match="beside it"):
        _checked(Counted(True, scalar, finite))


@pytest.mark.parametrize("scalar", [True, False])
def test_a_loss_that_is_finite_for_no_made_up_record_is_warned_of(scalar):
    with pytest.warns(UserWarning, match="not finite for made-up records of numbers from 0 to 3"):
        _checked(Counted(scalar=scalar, finite=lambda length: length > 9))


@pytest.mark.parametrize("scalar", [True, False])
def test_two_finite_losses_among_others_still_show_that_records_are_mixed(scalar):
    """The second of three has a loss that is not finite in every lot of probes."""

    class Partly(Counted):
        def forward(self, x, length):
            return super().forward(x / (x[:, :1].frac() > 0.2), length)

    with pytest.raises(ValueError, match="beside it"):
        _checked(Partly(True, scalar, lambda length: length >= 0))
    _checked(Partly(False, scalar, lambda length: length >= 0))
