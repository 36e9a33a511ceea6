"""A loss sees one record of a lot: its result for that record does not depend on another one, or the loss is refused."""

import contextlib
import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from gradients.strangers import STRANGERS, WIDTH
from torch import nn

from lightning_dpgen.gradients.clipping import clip_weights
from lightning_dpgen.gradients.engines import ENGINES, term_gradients
from lightning_dpgen.gradients.isolation import vmap_functions
from lightning_dpgen.gradients.isolation.hidden import EscapedTensor
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

ACCEPTED = [name for name, kind in STRANGERS.items() if kind.refused is None]
REFUSED = [name for name, kind in STRANGERS.items() if kind.refused]
LOTS = 4


def _records(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(20, WIDTH, generator=generator), torch.randint(3, (20,), generator=generator)


def _outlier(records):
    x, y = records
    return torch.cat([x, torch.full((1, WIDTH), 1e6)]), torch.cat([y, y[:1]])


def _losses(name, lots, engine):
    """Compute for each lot the losses of its first twenty records, and the sum of their clipped gradients."""
    network, found = STRANGERS[name](), []
    term = PerRecord(lambda lot, _: network(*lot.records))
    for records in lots:
        # A loss draws the same in two runs, record for record.
        stream = PrivateStream(0)
        gradients = term_gradients(network, term, Lot(records, (0, len(records[1]))), stream, engine=engine)
        out = {p: torch.zeros_like(p) for p in network.parameters() if p.requires_grad}
        weights = clip_weights(gradients.norms(), 1.0)
        weights[20:] = 0.0
        gradients.weighted_sum(weights, out)
        found.append((gradients.losses[:20], torch.cat([p.flatten() for p in out.values()])))
    return found


@pytest.mark.filterwarnings("ignore:no rule for", "ignore:activation checkpointing")
@pytest.mark.parametrize(("name", "engine"), [(name, engine) for name in ACCEPTED for engine in STRANGERS[name].engines])
def test_a_record_moves_no_other_in_this_lot_or_a_later_one(name, engine):
    """An outlier behind the others of the third lot; random draws of more records begin with those of fewer."""
    lots = [_records(seed) for seed in range(LOTS)]
    disturbed = [*lots[:2], _outlier(lots[2]), *lots[3:]]
    for i, (own, beside) in enumerate(zip(_losses(name, lots, engine), _losses(name, disturbed, engine), strict=True)):
        if STRANGERS[name].draws and i == 2:
            continue  # random numbers of twenty-one records differ from those of twenty
        torch.testing.assert_close(own, beside, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:no rule for")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_needs_to_see_others_is_refused_by_name(name, engine):
    with pytest.raises(ValueError, match=STRANGERS[name].refused):
        _losses(name, [_records(seed) for seed in range(3)], engine)


@pytest.fixture(autouse=True)
def no_hook_is_left():
    yield
    for hooks in (nn.modules.module._global_backward_hooks, nn.modules.module._global_backward_pre_hooks):
        hooks.clear()


MATRIX, FILLED = torch.rand(4, 4, generator=torch.Generator().manual_seed(9)), torch.tensor([0, 2])
# Functions whose vmap rules, or layout in memory, would show a record another one, or the number of records.
SHOWING = {
    "index_fill": lambda x: torch.zeros(4).index_fill(0, FILLED, x.sum()),
    "index_fill_ of a clone": lambda x: torch.ones(4).index_fill_(0, FILLED, x.sum()),
    "roll of a number": lambda x: x.sum().roll(1),
    "stride": lambda x: x * sum((MATRIX @ x).stride()),
    "is_contiguous": lambda x: x * (MATRIX @ x).is_contiguous(),
    "index_fill by a record's index": lambda x: x.index_fill(0, (4 * x[:2]).long() - 4, 7.0),
    "index_fill by operator": lambda x: torch.ops.aten.index_fill(torch.zeros(4), 0, FILLED, x.sum()),
    "roll by operator": lambda x: torch.ops.aten.roll(x.sum(), [1]),
    "a vector that is solved for": lambda x: torch.linalg.solve(MATRIX + torch.eye(4), x),
    "a matrix of the record's, for a vector": lambda x: torch.linalg.solve(torch.outer(x, x) + torch.eye(4), MATRIX[0]),
    "and for a matrix": lambda x: torch.linalg.solve_ex(torch.outer(x, x) + torch.eye(4), MATRIX)[0],
}


# Operators of aten are in no list.
@pytest.mark.filterwarnings("ignore:the loss calls .*, which was not seen")
@pytest.mark.parametrize("size", [1, 2, 4, 5])
@pytest.mark.parametrize("function", SHOWING.values(), ids=SHOWING)
def test_a_function_gives_what_it_gives_of_one_record(function, size):
    x = torch.rand(size, 4, generator=torch.Generator().manual_seed(10))
    found = Isolation(size).run(function, x)
    torch.testing.assert_close(found, torch.stack([function(row) for row in x]), rtol=1e-6, atol=1e-6)


# Torch refuses these for one record, and vmap's rules take the lot for a dimension of it.
SIZE = 4
TOO_FEW = {
    "layer norm": lambda x: F.layer_norm(x, (SIZE, 3)),
    "RMS norm": lambda x: F.rms_norm(x, (SIZE, 3)),
    "triangle": torch.tril,
    "another triangle, in place": lambda x: (x + 0.0).triu_(),
    "padding that moves": lambda x: torch.constant_pad_nd(x, (0, 0, 1, -1)),
    "padding that moves, by operator": lambda x: torch.ops.aten.constant_pad_nd(x, (0, 0, 1, -1)),
    "a solution": lambda x: torch.linalg.solve(torch.eye(SIZE), x),
    "a word that is none": lambda x: F.embedding(x[:1].long() - 1, torch.zeros(3, 1) * x),
    "a word beyond the end": lambda x: F.embedding(x[:1].long() + 3, torch.zeros(3, 1) * x),
}


@pytest.mark.parametrize("function", TOO_FEW.values(), ids=TOO_FEW)
def test_what_torch_refuses_of_one_record_is_refused_of_each(function):
    x = torch.rand(SIZE, 3, generator=torch.Generator().manual_seed(11))
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        function(x[0])
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        Isolation(SIZE).run(function, x)


# Tensors whose numbers are not set.
UNSET = {
    "empty": lambda x: torch.empty(300),
    "empty_like": lambda x: torch.empty_like(x),
    "empty_strided": lambda x: torch.empty_strided((300,), (1,)),
    "empty_permuted": lambda x: torch.empty_permuted((300,), (0,)),
    "new": lambda x: x.new(300),
    "new, by name": lambda x: x.new(size=(300,)),
    "new_empty": lambda x: x.new_empty(300),
    "new_empty_strided": lambda x: x.new_empty_strided((300,), (1,)),
    "by operator": lambda x: torch.ops.aten.empty_like(x),
}


@pytest.mark.parametrize("function", UNSET.values(), ids=UNSET)
def test_memory_shows_nothing_of_an_earlier_lot(function):
    for _ in range(20):
        earlier = [torch.full((3, 300), 1e6) for _ in range(5)]
        del earlier
        assert not Isolation(3).run(function, torch.rand(3, 300)).any()


X, Y = torch.rand(5, 3, 4, generator=torch.Generator().manual_seed(7)), torch.tensor([0, 1, 2, 1, 0])
MASK = torch.rand(5, 3, 3, generator=torch.Generator().manual_seed(8)) > 0.3
BAGS = torch.tensor([[0, 1], [2, 2], [3, 0], [1, 1], [2, 3]])
RECURRENT = nn.LSTM(4, 2, batch_first=True)
TABLES = {mode: nn.EmbeddingBag(4, 3, mode=mode, padding_idx=0) for mode in ("sum", "mean")}
# Functions of a lot of records, labels, masks and bags, for which vmap has no rule or a slow one, or which we replace.
FUNCTIONS = {
    "cross entropy": lambda x, y, *_: F.cross_entropy(x[:, 0], y, reduction="none"),
    "its mean": lambda x, y, *_: F.cross_entropy(x[:, 0], y)[None],
    "its sum over positions": lambda x, y, *_: F.cross_entropy(x.mT, y[:, None].expand(-1, 3), reduction="sum")[None],
    "some left out": lambda x, y, *_: F.cross_entropy(x.mT, y[:, None].expand(-1, 3), ignore_index=1, reduction="none"),
    "smoothed": lambda x, y, *_: F.cross_entropy(x[:, 0], y, reduction="none", label_smoothing=0.1),
    "weighted": lambda x, y, *_: F.cross_entropy(x[:, 0], y, weight=torch.arange(4.0), reduction="none"),
    "of shares": lambda x, y, *_: F.cross_entropy(x[:, 0], x[:, 1].softmax(dim=1), reduction="none"),
    "log likelihood": lambda x, y, *_: F.nll_loss(x[:, 0].log_softmax(dim=1), y, reduction="none"),
    "binary": lambda x, *_: F.binary_cross_entropy(x[:, 0], x[:, 1], reduction="none"),
    "binary, of logits": lambda x, *_: F.binary_cross_entropy_with_logits(x[:, 0], x[:, 1], reduction="none"),
    "binary, of a constant": lambda x, *_: F.binary_cross_entropy_with_logits(
        x[:, 0], torch.full((1, 4), 0.5), reduction="none"
    ),
    "binary, weighted": lambda x, *_: F.binary_cross_entropy_with_logits(
        x[:, 0], x[:, 1], reduction="none", pos_weight=torch.arange(4.0)
    ),
    "log of the sigmoid": lambda x, *_: F.logsigmoid(x),
    "rectifiers": lambda x, *_: F.softplus(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.elu(x, alpha=0.5),
    "clamped in place": lambda x, *_: (2.0 * x).clamp_(min=0.3, max=1.0),
    "attention": lambda x, *_: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]),
    "attention of three": lambda x, *_: F.scaled_dot_product_attention(x, x, x),
    "attention, masked": lambda x, y, m, _: F.scaled_dot_product_attention(
        *[x[:, None].expand(-1, 2, -1, -1)] * 3, attn_mask=m[:, None]
    ),
    "attention, one mask": lambda x, *_: F.scaled_dot_product_attention(
        x[:, None], x[:, None], x[:, None], attn_mask=torch.ones(3, 3).tril().bool()
    ),
    "attention, causal": lambda x, *_: F.scaled_dot_product_attention(*[x[:, None]] * 3, is_causal=True),
    "recurrent": lambda x, *_: RECURRENT(x)[0],
    "bags, summed": lambda x, y, m, b: TABLES["sum"](b),
    "bags, meant": lambda x, y, m, b: TABLES["mean"](b),
    "bags, weighted": lambda x, y, m, b: TABLES["sum"](b, per_sample_weights=x[:, 0, :2]),
    "a distribution": lambda x, *_: torch.distributions.Gamma(x[:, 0] + 1, x[:, 1] + 1).log_prob(x[:, 2] + 0.1),
    "filled": lambda x, *_: torch.zeros(len(x), 4).copy_(x[:, 0]) + torch.ones(4).mul_(2.0),
    "filled by index": lambda x, y, *_: torch.zeros(len(x), 4).scatter_(1, y[:, None], x[:, 0, :1]),
    "its data": lambda x, *_: x.data + x,
    "types of Python": lambda x, *_: (x.to(float) * torch.ones_like(x, dtype=bool)).float() + x,
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_a_function_of_one_record_is_that_of_each(function):
    """Values and gradients equal those of a loop over lots of one record."""
    x = X.clone().requires_grad_()
    found = Isolation(5).run(function, *(v[:, None] for v in (x, Y, MASK, BAGS)))
    expected = torch.stack([function(x[i : i + 1], Y[i : i + 1], MASK[i : i + 1], BAGS[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(found, expected)
    if expected.requires_grad:
        slopes = [torch.autograd.grad((value * value).sum(), x, allow_unused=True)[0] for value in (found, expected)]
        torch.testing.assert_close(*slopes)


OPERANDS = {shape: torch.rand(3, *shape) for shape in [(), (1,), (3,), (1, 3), (3, 3)]}
WRITES = {
    "copy_": lambda s, o: s.copy_(o),
    "add_": lambda s, o: s.add_(o),
    "+=": lambda s, o: s.__iadd__(o),
    "/=": lambda s, o: s.__itruediv__(o),
    "mul_": lambda s, o: s.mul_(o),
    "pow_": lambda s, o: s.pow_(o),
    "fmod_": lambda s, o: s.fmod_(o),
    "lerp_": lambda s, o: s.lerp_(o, 0.5),
    "addcmul_": lambda s, o: s.addcmul_(o, o),
    "addcdiv_": lambda s, o: s.addcdiv_(o, o),
    "addmm_": lambda s, o: s.addmm_(o, o),
    "addr_": lambda s, o: s.addr_(o, o),
    "atan2_": lambda s, o: s.atan2_(o),
    "xlogy_": lambda s, o: s.xlogy_(o),
    "logical_and_": lambda s, o: s.logical_and_(o),
    "clamp_": lambda s, o: s.clamp_(min=o),
    "clamp_max_": lambda s, o: s.clamp_max_(o),
    "fill_": lambda s, o: s.fill_(o.mean()),
    "bernoulli_": lambda s, o: s.bernoulli_(o),
    "masked_fill_": lambda s, o: s.masked_fill_(torch.ones(s.shape, dtype=torch.bool), o.mean()),
    "masked_fill_, by a mask": lambda s, o: s.masked_fill_(o > 0.5, 1.0),
    "masked_scatter_": lambda s, o: s.masked_scatter_(torch.ones(s.shape, dtype=torch.bool), o),
    "index_copy_": lambda s, o: s.index_copy_(0, torch.arange(len(s)), o),
    "index_add_": lambda s, o: s.index_add_(0, torch.arange(len(s)), o),
    "index_add_, at a place": lambda s, o: s.index_add_(0, (o.flatten()[:1] * 0).long(), torch.ones(1, *s.shape[1:])),
    "index_fill_, at a place": lambda s, o: s.index_fill_(0, (o.flatten()[:1] * 0).long(), 1.0),
    "index_put_": lambda s, o: s.index_put_((torch.arange(len(s)),), o),
    "index_reduce_": lambda s, o: s.index_reduce_(0, torch.arange(len(s)), o, "amax"),
    "scatter_": lambda s, o: s.scatter_(0, torch.zeros(o.shape, dtype=torch.long), o),
    "scatter_, at a place": lambda s, o: s.scatter_(0, (o * 0).long(), 1.0),
    "scatter_reduce_": lambda s, o: s.scatter_reduce_(0, torch.zeros(o.shape, dtype=torch.long), o, "amax"),
    "put_": lambda s, o: s.put_(torch.arange(s.numel()), o.flatten()),
    "put_, at a place": lambda s, o: s.put_((o.flatten()[:1] * 0).long(), torch.ones(1)),
    "[...] =": lambda s, o: s.__setitem__(..., o),
    "[0] =": lambda s, o: s.__setitem__(0, o),
    "[place] =": lambda s, o: s.__setitem__((o.flatten()[:1] * 0).long(), 1.0),
    "a part": lambda s, o: s[...].copy_(o),
    "a view": lambda s, o: s.view(-1).add_(o.flatten()),
    "detached": lambda s, o: s.detach().add_(o),
    "out=": lambda s, o: torch.add(o, o, out=s),
    "cumsum out=": lambda s, o: torch.cumsum(o, 0, out=s),
    "foreach": lambda s, o: torch._foreach_add_([s], [o]),
    "set_": lambda s, o: s.set_(o),
    "resize_as_": lambda s, o: s.resize_as_(o),
    "data =": lambda s, o: setattr(s, "data", o),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_nothing_is_written_into_a_tensor_that_outlives_the_call(write):
    """A tensor of any shape, also one as large as the lot, keeps its numbers or loses them all."""
    for shape in [(), (1,), (3,), (1, 3), (3, 1), (3, 3)]:
        for size in (1, 3):
            for operand in OPERANDS.values():
                outside = torch.full(shape, 7.0)

                def call(o, outside=outside):
                    write(outside, o)
                    return o

                with contextlib.suppress(Exception):
                    Isolation(size).run(call, operand[:size].clone())
                assert isinstance(outside, EscapedTensor) or bool((outside == 7.0).all())


def test_what_outlives_a_call_has_no_value_any_more():
    network, kept = nn.Linear(2, 2), {}

    class Cycle:
        pass

    def call(x, collect=False):
        kept["attribute"] = network(x)
        network.code = x * 2
        network.register_buffer("buffer", x.mean(dim=0))
        cycle = Cycle()
        cycle.itself, cycle.held = cycle, x + 1
        kept["cycle"] = [cycle]
        if collect:
            gc.collect()
        return x.sum()

    for collect in (False, True):
        for enabled in (True, False):
            (gc.enable if enabled else gc.disable)()
            try:
                Isolation(4).run(lambda x, c=collect: call(x, c), torch.rand(4, 1, 2))
                assert gc.isenabled() == enabled
            finally:
                gc.enable()
            for x in (kept["attribute"], network.code, network.buffer, kept["cycle"][0].held):
                assert isinstance(x, EscapedTensor)
                for use in (lambda x: x + 1, float, lambda x: torch.ones(2) * x, repr, lambda x: x.tolist(), copy.copy):
                    with pytest.raises(ValueError, match="an earlier call"):
                        use(x)
            with pytest.raises(ValueError, match="an earlier call"):
                network.state_dict()["buffer"].numpy()


def test_a_refusal_leaves_torch_as_it_was():
    def nested(x):
        return torch.func.vmap(lambda row: row if row.sum() > 0 else -row)(x)

    for _ in range(3):
        with pytest.raises(ValueError, match=r"test_isolation.py:\d+"):
            Isolation(2).run(nested, torch.rand(2, 3, 4))
        assert torch._C._functorch.maybe_current_level() is None
    assert torch.equal(Isolation(2).run(lambda x: x + 1, torch.ones(2, 3)), torch.full((2, 3), 2.0))


def test_doors_stay_closed_until_the_last_of_several_threads_leaves(monkeypatch):
    """A loss is refused TorchScript, and the program beside it is not; a door that a program has changed is put back."""
    own = torch.jit.fork
    monkeypatch.setattr(torch.jit, "fork", lambda *args: own(*args))
    before, entered, left, found = torch.jit.fork, threading.Event(), threading.Event(), []

    def other(x):
        entered.set()
        left.wait(10.0)
        return torch.jit.fork(torch.abs, x).wait()

    def run_other():
        try:
            Isolation(2).run(other, torch.ones(2, 1))
        except ValueError as error:
            found.append(str(error))

    thread = threading.Thread(target=run_other)

    def first(x):
        assert entered.wait(10.0) and torch.jit.fork is not before
        return x

    thread.start()
    Isolation(2).run(first, torch.ones(2, 1))
    assert torch.jit.fork(torch.abs, -torch.ones(())).wait() == 1.0
    left.set()
    thread.join()
    assert len(found) == 1 and "calls TorchScript" in found[0]
    assert torch.jit.fork is before


OF_A_THREAD = {
    "a product": lambda x: x * 2.0,
    "a mean": lambda x: x.mean(),
    "a number": lambda x: x.sum() * float(x.max()),
    "a layer": nn.Linear(2, 2),
    "an item": lambda x: x[0].item(),
    "a list": lambda x: x.tolist(),
    "text": str,
}


@pytest.mark.parametrize("work", OF_A_THREAD.values(), ids=OF_A_THREAD)
def test_another_thread_computes_nothing_of_a_record(work):
    """The levels of vmap are of one thread, and torch refuses there what it cannot hide."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match=r"(uses|takes|turns) a value of a record"):
        Isolation(3).run(lambda x: pool.submit(work, x).result(), torch.rand(3, 2))


def test_a_seed_is_noticed_where_no_other_function_follows():
    """The backward pass might draw from the seeded generator."""

    def seeded(x):
        drawn = x + torch.rand(1)
        torch.manual_seed(1)
        return drawn

    with torch.random.fork_rng(), pytest.raises(ValueError, match="torch was seeded"):
        Isolation(3).run(seeded, torch.ones(3, 1))


@pytest.mark.parametrize("function", [
    lambda x: torch.linalg.solve(MATRIX + torch.eye(4), x), lambda x: torch.constant_pad_nd(x, (1, 1)),
    lambda x: torch.outer(x, x).tril(),
], ids=["solve", "pad", "tril"])  # fmt: skip
def test_a_gradient_within_the_loss_is_that_of_each_record(function):
    def slope(x):
        return torch.func.grad(lambda x: function(x).square().sum())(x)

    x = torch.rand(4, 4, generator=torch.Generator().manual_seed(12))
    torch.testing.assert_close(Isolation(4).run(slope, x), torch.stack([slope(row) for row in x]), rtol=1e-5, atol=1e-6)


def test_each_record_draws_numbers_of_its_own():
    def draw(x):
        deviates = torch.distributions.Normal(torch.zeros(2), torch.ones(2)).rsample()
        filled = torch.empty(2).uniform_() + torch.zeros(2).bernoulli_(0.5)
        return torch.cat([x, torch.rand(2), torch.randn_like(x), deviates, filled])

    drawn = Isolation(50).run(draw, torch.zeros(50, 1))
    assert all(len(column.unique()) == 50 for column in drawn[:, 1:].T)


def test_attention_to_records_by_a_trained_bias_asks_for_a_gradient_of_the_query(monkeypatch):
    """The kernel of GPUs has no backward pass where the bias alone asks for a gradient (pytorch/pytorch#148476)."""
    torch.manual_seed(0)
    bias, asked, attend = nn.ParameterList([nn.Parameter(torch.randn(3, 3))]), [], F.scaled_dot_product_attention

    def watched(query, key, value, *rest, **options):
        asked.append(query.requires_grad or key.requires_grad or value.requires_grad)
        return attend(query, key, value, *rest, **options)

    compute = vmap_functions.OF_PLAIN[attend]
    monkeypatch.setitem(
        vmap_functions.OF_PLAIN, attend, lambda guard, _, *args, **options: compute(guard, watched, *args, **options)
    )

    def loss(lot, _):
        x = lot.records[:, None]
        return F.scaled_dot_product_attention(x, x, x, bias[0]).square().sum(dim=(1, 2, 3))

    records = torch.rand(4, 3, 8)
    gradients = ENGINES["ghost"](bias, PerRecord(loss), Lot(records, (0, 4)), torch.empty(4, 0))
    assert asked == [True]
    for i in range(4):
        alone = torch.autograd.grad(loss(Lot(records[i : i + 1], (0, 1)), None).sum(), bias[0])[0]
        torch.testing.assert_close(gradients.norms()[i], alone.norm().double(), rtol=1e-5, atol=0.0)
