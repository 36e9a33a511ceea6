"""Private steps on a GPU: noise of the planned size, and the whole path of a module of a user's own.

Seeds are fixed. A check of noise is a z-score at 5.5 on a mean square, or a correlation, of 20,000 or more normals: a false
alarm of 4e-8 each.
"""

import json
import math

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from contracts.laws.noise import deviates
from on_gpu.gpu_mark import needs_gpu
from statistical.philox import DRAW, KEY, expected_pair
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_dpgen import AccountEngine, DPNorm, Fixed, PoissonLots, PrivateOptimizer, PrivateTraining, verify
from lightning_dpgen.gradients.captured import CapturedTerm
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.gradients.privatize import GradientBuffer
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.optim.captured_update import CapturedUpdate
from lightning_dpgen.optim.flat import FlatGroups
from lightning_dpgen.privacy.access import Access
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.noise import stream as noise
from lightning_dpgen.privacy.noise.device_normals import DeviceNormals
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import Poisson
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.sampling.slots import Slots
from lightning_dpgen.sampling.stores import DenseStore, ScaledStore

pytestmark = [needs_gpu, pytest.mark.filterwarnings("ignore")]

GPU = "cuda"


def _uncorrelated(first, second):
    first, second = first.double(), second.double()
    cosine = float((first * second).sum() / (first.norm() * second.norm()))
    return abs(cosine) < 5.5 / math.sqrt(first.numel())


@pytest.fixture
def without_triton(monkeypatch):
    """Let normals be drawn by operations of torch."""
    monkeypatch.setattr(DeviceNormals, "serve", lambda x: False)


@pytest.mark.parametrize("by", ["triton", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_noise_has_the_planned_size_and_is_never_drawn_twice(account_of, stream_of, dtype, by, monkeypatch, request):
    if by == "torch":
        request.getfixturevalue("without_triton")
    monkeypatch.setattr(noise, "_PAIRS_ON_DEVICE", 1 << 18)  # so that it is drawn in two pieces
    account = account_of({"sum": 2.0}, count=2)
    account.stream = stream_of(1)
    drawn = []
    for _ in range(2):
        with account.open("training") as access:
            drawn.append(gaussian(access, "sum", torch.zeros(600_001, dtype=dtype, device=GPU), sensitivity=0.5))
    assert all(x.is_cuda and x.dtype == dtype for x in drawn)
    for noisy in drawn:
        assert not deviates(noisy, 1.0) and deviates(noisy, 1.02) and deviates(noisy, 0.98)
        half = len(noisy) // 2
        assert _uncorrelated(noisy[:half], noisy[half : 2 * half]) and _uncorrelated(noisy[1:], noisy[:-1])
        assert abs(float(noisy.double().mean())) < 5.5 / math.sqrt(len(noisy))
    assert _uncorrelated(*drawn) and not _uncorrelated(drawn[0], drawn[0] + drawn[1])


@pytest.mark.parametrize("secure", [False, True])
def test_two_streams_of_the_system_share_no_noise(secure):
    first, second = (PrivateStream(secure=secure).normal((100_000,), device=GPU) for _ in range(2))
    assert _uncorrelated(first, second)


def test_records_of_a_lot_are_gathered_where_a_gpu_reads_them():
    torch.zeros(1, device=GPU)
    values = torch.randint(256, (50, 3, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for store, expected in ((DenseStore(values), values), (ScaledStore(values, 255.0), values.float() / 255.0)):
        for positions in (np.array([1, 7, 49]), np.zeros(0, np.int64)):
            lot = store.take(positions)
            assert torch.equal(lot, expected[positions]) and (lot.is_pinned() or not len(lot))


def test_a_seed_makes_noise_repeatable():
    drawn = [PrivateStream(seed=seed).normal((1000,), device=GPU) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


def test_the_whole_path_reaches_far_into_the_tail(stream_of, monkeypatch, without_triton):
    """Words are 0, the smallest uniforms; see the test of the same name for a processor."""
    stream = stream_of(4)
    monkeypatch.setattr(stream, "_words", lambda pairs, device, _: torch.zeros(2, pairs, dtype=torch.int32, device=device))
    values = stream.normal((2000,), device=GPU)[:1000]
    assert values.min() > 6.5 and values.max() > 7.2 and torch.isfinite(values).all()
    expected = 2.0**31 * math.exp(-(6.9**2) / 2)
    share = float((values > 6.9).double().mean())
    assert abs(share - expected) < 5.5 * math.sqrt(expected * (1 - expected) / 1000)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_of_the_kernel_are_those_of_its_formula(dtype):
    """The oracle is that of the tests in Triton's interpreter."""
    normals, out = DeviceNormals(KEY), torch.zeros(5001, dtype=dtype, device=GPU)
    normals._draws = DRAW
    normals.add_(out, 1.0)
    found, close = out.double().cpu().numpy(), 3e-6 if dtype == torch.float32 else 1e-13
    for place in (0, 1, 1023, 1024, 2499):
        assert np.allclose(found[[place, 2501 + place]], expected_pair(place, dtype), atol=close)


def test_the_device_is_not_waited_for_while_noise_is_drawn(account_of):
    torch.cuda.set_sync_debug_mode("error")
    try:
        account = account_of({"sum": 2.0}, count=2)
        account.stream.normal((4,), device=GPU)
        with account.open("training") as access:
            gaussian(access, "sum", torch.zeros(600_001, device=GPU), sensitivity=0.5)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _steps(device, inner, *, steps=2, secure=False, multiplier=1.0):
    """Take steps of a linear map on lots of no record; return the parameters before each, and after the last."""
    torch.manual_seed(0)
    network = nn.Linear(200, 200).to(device)
    stage = Stage(Access("training", {"gradient": multiplier}, Poisson(0.5)), steps, 1.0)
    stream = PrivateStream(secure=True) if secure else PrivateStream(seed=3)
    account = Account(Plan((stage,), 1e3, 1e-5), stream=stream)
    optimizer = PrivateOptimizer(
        inner(network.parameters()), account=account, clipping=Fixed(2.0), expected_batch_size=10.0
    )
    optimizer.rehearse()
    lots, found = PoissonLots(torch.zeros(20, 200), account), []
    for _ in range(steps):
        lot = lots.draw()
        found.append(torch.cat([p.detach().flatten() for p in network.parameters()]))
        optimizer.set_gradients(materialised({p: p.new_zeros(len(lot), *p.shape) for p in network.parameters()}, lot.draw))
        optimizer.step()
    return [*found, torch.cat([p.detach().flatten() for p in network.parameters()])]


@pytest.mark.parametrize("secure", [False, True])
def test_a_step_moves_parameters_by_noise_of_the_planned_size(secure):
    before, between, after = _steps(GPU, lambda p: torch.optim.SGD(p, lr=1.0), secure=secure)
    first, second = between - before, after - between
    assert first.is_cuda and not deviates(first, 0.2) and not deviates(second, 0.2) and deviates(first, 0.21)
    assert _uncorrelated(first, second)


@pytest.mark.parametrize("fused", [False, True])
def test_optimizers_step_as_on_the_processor(fused):
    """Without noise a seeded run gives the same parameters on both."""

    def found(device):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 2)).double().to(device)
        stage = Stage(Access("training", {"gradient": 0.0}, Poisson(0.5)), 5, 1.0)
        account = Account(Plan((stage,), math.inf, 1e-5), stream=PrivateStream(seed=3))
        optimizer = PrivateOptimizer(
            torch.optim.Adam(network.parameters(), lr=0.01, fused=fused),
            account=account, clipping=Fixed(1.0), expected_batch_size=20.0,
        )  # fmt: skip
        records = torch.rand(40, 6, generator=torch.Generator().manual_seed(1))
        lots, term = PoissonLots(records, account), PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))
        for _ in range(5):
            lot = lots.draw().to(device, torch.float64)
            # The term draws nothing, so lots are the same on both.
            own = PrivateStream(seed=0)
            optimizer.set_gradients(term_gradients(network, term, lot, own))
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        return torch.cat([p.detach().flatten().cpu() for p in network.parameters()])

    torch.testing.assert_close(found(GPU), found("cpu"), rtol=1e-9, atol=1e-9)


class Plain(pl.LightningModule):
    """Knows nothing of privacy but that it gives one loss a record."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.words = nn.Conv2d(1, 4, 3), nn.Embedding(5, 3)
        self.series, self.norm = nn.LSTM(4, 6, batch_first=True), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.last = nn.Linear(9, 2)

    def training_step(self, batch, batch_idx):
        picture, word, label = batch
        hidden = torch.tanh(self.conv(picture)).flatten(2).transpose(1, 2)
        hidden = self.norm(nn.functional.dropout(self.series(hidden)[0], 0.1, self.training))
        hidden = self.attention(hidden, hidden, hidden, need_weights=False)[0].mean(dim=1)
        loss = nn.functional.cross_entropy(self.last(torch.cat([hidden, self.words(word)], dim=1)), label, reduction="none")
        self.log("loss", loss.mean())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


N, STEPS = 400, 12


def _records():
    random = np.random.default_rng(0)
    pictures = random.random((N, 1, 6, 6)).astype(np.float32)
    return pictures, random.integers(0, 5, N), random.integers(0, 2, N)


def _private(ledger=None, **changes):
    settings = {"n": N, "epsilon": 8.0, "delta": 1e-5, "sample_rate": 0.1, "steps": STEPS, "clipping": DPNorm(c_max=8.0)}
    return PrivateTraining(_records(), **settings | changes, ledger=ledger)


def _trainer(*callbacks, **options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(accelerator="gpu", devices=1, callbacks=list(callbacks), **quiet | options)


@pytest.mark.parametrize("engine", ["ghost", "func"])
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_anybodys_module_is_fitted_and_released(tmp_path, precision, engine):
    private, module = _private(engine=engine), Plain()
    before = [p.detach().clone() for p in module.parameters()]
    _trainer(private.callback(), precision=precision).fit(module, private.loader())
    assert private.account.finished and all((a != b.cpu()).any() for a, b in zip(before, module.parameters(), strict=True))
    certificate = private.release(module, tmp_path / "release")
    assert verify(tmp_path / "release").good and certificate["epsilon"] <= 8.0


def test_a_fit_goes_on_from_its_checkpoint(tmp_path):
    class Crash(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.save_checkpoint(tmp_path / "last.ckpt")
            if batch_idx == 4:
                raise RuntimeError("crash")

    ledger = tmp_path / "ledger.jsonl"
    private, module = _private(ledger), Plain()
    with pytest.raises(RuntimeError, match="crash"):
        _trainer(private.callback(), Crash()).fit(module, private.loader(block=1))
    private.account.ledger.close()
    drawn = ledger.read_text().count('"training"')
    private, module = _private(ledger), Plain()
    _trainer(private.callback()).fit(module, private.loader(block=1), ckpt_path=tmp_path / "last.ckpt")
    assert private.account.finished and ledger.read_text().count('"training"') > drawn
    private.release(module, tmp_path / "release")
    assert verify(tmp_path / "release").good


def test_a_loop_for_opacus_goes_through_the_account():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(GPU)
    stage = Stage(Access("training", {"gradient": 1.0}, Poisson(0.25)), 10, 1.0)
    account = Account(Plan((stage,), 1e3, 1e-5), stream=PrivateStream(seed=5))
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    network, optimizer, loader = AccountEngine(account).make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(rows), batch_size=7, pin_memory=True),
        max_grad_norm=1.0, expected_batch_size=10.0,
    )  # fmt: skip
    for _ in range(3):
        for (lot,) in loader:
            optimizer.zero_grad()
            network(lot.to(GPU)).square().mean().backward()
            optimizer.step()
    account.verify_complete()
    assert all(p.is_cuda and p.isfinite().all() for p in network.parameters())
    assert json.loads(json.dumps(account.done)) == {"training": 10}


def _captured_step(slots=96, network=None):
    """Return a step on lots in slots of records in the processor's memory, and its optimizer."""
    torch.manual_seed(0)
    network = network or nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
    network.to(GPU)
    stage = Stage(Access("training", {"gradient": 1.0}, Poisson(0.1)), 50, 1.0)
    account = Account(Plan((stage,), 1e3, 1e-5))
    optimizer = PrivateOptimizer(
        torch.optim.Adam(network.parameters(), lr=0.01, fused=True), account=account, clipping=Fixed(1.0),
        expected_batch_size=50.0,
    )  # fmt: skip
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))
    lots = PoissonLots(torch.rand(500, 20), account)

    def step():
        (lot,) = lots.draw().to(GPU).in_slots(slots, account.stream)
        optimizer.set_gradients(optimizer.compute_gradients(network, term, lot))
        optimizer.step()

    return step, optimizer


def test_a_captured_step_of_a_small_network_waits_for_nothing():
    step, optimizer = _captured_step()
    for _ in range(6):
        step()
    assert optimizer.captured == "captured"
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_bits_of_a_record_follow_from_no_other_in_a_captured_step():
    """Norms and losses of three records are the same beside others, in other slots, and alone."""
    network = nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 2)).to(GPU)
    term = PerRecord(lambda lot, _: network(lot.records).square().sum(dim=1))
    buffer, stream = GradientBuffer(network.parameters()), PrivateStream(seed=0)
    few, many = torch.rand(3, 20, device=GPU), torch.rand(60, 20, device=GPU)

    def lot(records, places):
        return Lot(records, (0, len(records)), slots=Slots(96, torch.tensor(places)))

    captured = CapturedTerm(network, term, lot(few, [0, 1, 2]), buffer.flat, buffer.views, stream, "ghost")
    alone = captured.gradients(lot(few, [5, 80, 2]))
    found = [(alone.norms().clone(), alone.losses.clone())]
    for first in (0, 30):
        places = [*range(first + 1, first + 4), *(i for i in range(96) if not first < i < first + 4)][:63]
        beside = captured.gradients(lot(torch.cat([few, many]), places))
        found.append((beside.norms()[:3].clone(), beside.losses[:3].clone()))
    for norms, losses in found[1:]:
        assert torch.equal(norms, found[0][0]) and torch.equal(losses, found[0][1])


def test_a_loss_that_cuda_does_not_capture_trains_as_ever_and_leaves_memory_as_it_was():
    """A decomposition of torch waits for the device; a capture that failed would never give memory back."""
    torch.manual_seed(0)
    network, noise = nn.Linear(20, 9).to(GPU), torch.eye(3, device=GPU)
    account = Account(Plan((Stage(Access("training", {"gradient": 1.0}, Poisson(0.1)), 50, 1.0),), 1e3, 1e-5))
    optimizer = PrivateOptimizer(
        torch.optim.SGD(network.parameters(), lr=0.01), account=account, clipping=Fixed(1.0), expected_batch_size=50.0
    )

    def loss(lot, _):
        x = network(lot.records).view(-1, 3, 3)
        return torch.linalg.cholesky(x @ x.mT + noise).square().sum(dim=(1, 2))

    term, lots, sizes = PerRecord(loss), PoissonLots(torch.rand(500, 20), account), []
    for _ in range(30):
        (lot,) = lots.draw().to(GPU).in_slots(96, account.stream)
        optimizer.set_gradients(optimizer.compute_gradients(network, term, lot))
        optimizer.step()
        torch.cuda.synchronize()
        sizes.append(torch.cuda.memory_reserved())
    assert optimizer.captured.startswith("not captured") and sizes[-1] <= sizes[9]
    torch.cuda.empty_cache()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_updates_are_captured_on_the_device_of_their_parameters():
    for device in ("cuda:0", "cuda:1"):
        network = nn.Linear(20, 2).to(device)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        buffer = GradientBuffer(network.parameters())
        update = CapturedUpdate(optimizer, FlatGroups(optimizer, buffer))
        for _ in range(6):
            buffer.flat.fill_(1.0)
            before = network.weight.detach().clone()
            update()
            torch.testing.assert_close(network.weight.detach(), before - 0.1)
