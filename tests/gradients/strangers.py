"""Losses as people write them without a thought of privacy, each with the words of its refusal, or none."""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing.pool
import weakref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.nn.utils import parametrizations
from torch.overrides import handle_torch_function, wrap_torch_function
from torch.utils import _python_dispatch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torchmetrics import MeanMetric

WIDTH = 6
# The reasons for which a loss is refused.
WRITES, LOOKS, TAKES, SHAPES = "writes a value", "looks at", "out of torch", "makes a shape"
BESIDE, KEEPS = "beside it", "an earlier"


class Stranger(nn.Module):
    """An autoencoder of records (B, 6) with labels (B,) from 0 to 2."""

    refused: str | None = None
    # With the other engine, a loss that updates a tensor from parameters finds a copy of these for each record.
    engines = "ghost", "func"
    # True for a loss that draws, so that a lot with another record has other numbers.
    draws = False

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
        self.steps = 0
        self.prepare()

    def prepare(self) -> None:
        """Set up the other parts of the module."""

    def errors(self, x: Tensor) -> Tensor:
        return (self.decoder(self.encoder(x)) - x).square().sum(dim=1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.steps += 1
        return self.loss(x, y)


# Accepted: the loss of a record follows from that record.


class Annealed(Stranger):
    """A weight of a term that grows with the steps."""

    def loss(self, x, y):
        return self.errors(x) + min(1.0, self.steps / 10) * self.encoder(x).square().sum(dim=1)


class TeacherOfWeights(Stranger):
    """A teacher whose weights follow the network's."""

    engines = ("ghost",)

    def prepare(self):
        self.teacher = nn.Linear(WIDTH, 4).requires_grad_(False)

    def loss(self, x, y):
        with torch.no_grad():
            self.teacher.weight.mul_(0.9).add_(0.1 * self.encoder.weight)
        return (self.encoder(x) - self.teacher(x)).square().sum(dim=1)


class RandomCodes(Stranger):
    """Reparametrised codes, and dropout."""

    draws = True

    def loss(self, x, y):
        mean, deviation = self.encoder(x).chunk(2, dim=1)
        posterior = torch.distributions.Normal(mean, F.softplus(deviation))
        code = F.dropout(torch.cat([posterior.rsample(), mean], dim=1), 0.1)
        divergence = torch.distributions.kl_divergence(posterior, torch.distributions.Normal(0.0, 1.0))
        return (self.decoder(code) - x).square().sum(dim=1) + divergence.sum(dim=1)


class ModelOfLanguage(Stranger):
    """Attention among the readings of a record, and cross entropy."""

    def prepare(self):
        self.project = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def loss(self, x, y):
        h = self.layer(self.project(x[:, :, None])).mean(dim=1)
        return F.cross_entropy(self.decoder(h[:, :4])[:, :3], y, reduction="none")


class DropsInAttention(Stranger):
    """Layers as torch makes them, with dropout inside of kernels."""

    draws = True

    def prepare(self):
        self.project = nn.Linear(1, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recurrent = nn.LSTM(8, 4, 2, dropout=0.3, batch_first=True)

    def loss(self, x, y):
        h = self.recurrent(self.layer(self.project(x[:, :, None])))[0].mean(dim=1)
        return F.cross_entropy(F.gumbel_softmax(self.decoder(h)[:, :3], hard=True), y, reduction="none")


class Squares(Stranger):
    """Powers of records and of parameters, as people write them."""

    def loss(self, x, y):
        h = self.encoder(x)
        z = h * 1.0
        z **= 2
        weights = self.decoder.weight**2
        return ((self.decoder(h) - x) ** 2).sum(dim=1) + z.sum(dim=1) ** 0.5 + 2 ** h[:, 0] + (h @ weights.mT).sum(dim=1)


class KeptInForward(Stranger):
    """A forward pass that leaves a value for the loss of the same call."""

    def loss(self, x, y):
        self.code = self.encoder(x)
        return (self.decoder(self.code) - x).square().sum(dim=1) + self.code.abs().sum(dim=1)


class SpectralNorm(Stranger):
    engines = ("ghost",)

    def prepare(self):
        self.decoder = parametrizations.spectral_norm(nn.Linear(4, WIDTH))

    def loss(self, x, y):
        return self.errors(x)


class WrittenInto(Stranger):
    """A tensor of its own that is filled column by column."""

    def loss(self, x, y):
        made = torch.zeros(len(x), WIDTH)
        for i in range(WIDTH):
            made[:, i] = x[:, i] * (i + 1)
        return self.errors(made)


class RoundedStraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class StraightThrough(Stranger):
    def loss(self, x, y):
        return (self.decoder(RoundedStraightThrough.apply(self.encoder(x))) - x).square().sum(dim=1)


class Checkpointed(Stranger):
    """Layers with dropout whose activations are to be computed again on the way back, by either form of a checkpoint."""

    draws = True

    def prepare(self):
        self.wide = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 4))

    def loss(self, x, y):
        h = self.encoder(x).requires_grad_()
        for reentrant in (True, False):
            h = checkpoint(self.wide, h, use_reentrant=reentrant)
        return (self.decoder(checkpoint_sequential(self.wide, 2, h, use_reentrant=False)) - x).square().sum(dim=1)


class Gated(Stranger):
    """Recurrent networks, which begin at zeros."""

    def prepare(self):
        self.gru = nn.GRU(1, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.rnn, self.cell = nn.RNN(6, 2, batch_first=True), nn.GRUCell(2, 4)

    def loss(self, x, y):
        h, _ = self.rnn(self.gru(x[:, :, None])[0])
        return (self.decoder(self.cell(h[:, -1])) - x).square().sum(dim=1)


class PublicCopies(Stranger):
    """Weights in inference mode, and a compiled function."""

    engines = ("ghost",)

    def prepare(self):
        self.codes = torch.compile(self.encoder, backend="eager")

    def loss(self, x, y):
        with torch.inference_mode():
            scale = self.decoder.weight.abs().sum().item()
        return self.errors(x) / (1 + 0 * scale) + self.codes(x).square().sum(dim=1)


# Accepted, and each record is a lot of its own. In large lots, after a warm-up or with an outlier these mean to compare
# records, and never do.


class ClampedByTheLargest(Stranger):
    def loss(self, x, y):
        losses = self.errors(x)
        return losses / (losses.detach().max() / 1e9).clamp(min=1.0)


class WeightedAfterWarmUp(Stranger):
    def loss(self, x, y):
        losses = self.errors(x)
        return losses if self.steps <= 6 else losses * (losses / losses.mean()).detach()


class TrimmedInLargeLots(Stranger):
    def loss(self, x, y):
        losses = self.errors(x)
        return torch.where(losses >= losses.max(), 0.0 * losses, losses) if len(losses) > 16 else losses


# Refused.


class CodebookInABuffer(Stranger):
    refused = WRITES

    def prepare(self):
        self.register_buffer("code", torch.zeros(4))

    def loss(self, x, y):
        h = self.encoder(x)
        with torch.no_grad():
            self.code.mul_(0.99).add_(0.01 * h.mean(dim=0))
        return self.errors(x) + (h - self.code).square().sum(dim=1)


class CodebookReplaced(CodebookInABuffer):
    refused = KEEPS

    def loss(self, x, y):
        h = self.encoder(x)
        self.code = 0.99 * self.code + 0.01 * h.detach().mean(dim=0)
        return self.errors(x) + (h - self.code).square().sum(dim=1)


class SkipsWhatIsNotFinite(Stranger):
    refused = LOOKS

    def loss(self, x, y):
        losses = self.errors(x)
        return losses if bool((losses < 50).all()) else losses * 0


class ScaledByARunningMean(Stranger):
    refused = LOOKS

    def prepare(self):
        self.mean = 1.0

    def loss(self, x, y):
        losses = self.errors(x)
        self.mean = 0.9 * self.mean + 0.1 * float(losses.mean())
        return losses / self.mean


class RunningQuantile(Stranger):
    refused = TAKES

    def prepare(self):
        self.seen = []

    def loss(self, x, y):
        losses = self.errors(x)
        self.seen += losses.detach().tolist()
        return losses * (losses < sorted(self.seen)[len(self.seen) // 2])


class AccumulatedInPython(Stranger):
    refused = KEEPS

    def prepare(self):
        self.sum = 0.0

    def loss(self, x, y):
        self.sum = self.sum + self.errors(x)
        return self.sum


class QueueOfKeys(Stranger):
    """A memory of earlier codes, as in MoCo."""

    refused = WRITES

    def prepare(self):
        self.register_buffer("queue", torch.zeros(4, 32))

    def loss(self, x, y):
        h = self.encoder(x)
        self.queue[:, self.steps % 32] = h.detach()[0]
        return self.errors(x) + (h @ self.queue).logsumexp(dim=1)


class Metric(Stranger):
    refused = WRITES

    def prepare(self):
        self.metric = MeanMetric(nan_strategy="disable")

    def loss(self, x, y):
        losses = self.errors(x)
        self.metric.update(losses)
        return losses


class BatchNorm(Stranger):
    refused = "mixes the records"

    def prepare(self):
        self.norm = nn.BatchNorm1d(4)

    def loss(self, x, y):
        return (self.decoder(self.norm(self.encoder(x))) - x).square().sum(dim=1)


class BatchNormOfPublicStatistics(Stranger):
    """A frozen batch norm, as in a pretrained backbone, and one whose scales are trained."""

    def prepare(self):
        self.frozen = nn.BatchNorm1d(4).eval().requires_grad_(False)
        self.scaled = nn.BatchNorm1d(4).eval()

    def loss(self, x, y):
        return (self.decoder(self.scaled(self.frozen(self.encoder(x)).tanh())) - x).square().sum(dim=1)


class BatchNormBackInTrainMode(BatchNormOfPublicStatistics):
    refused = "batch norm in train mode"

    def loss(self, x, y):
        self.frozen.train()
        self.scaled.train()
        return super().loss(x, y)


class Standardised(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        return self.errors(x - x.mean(dim=0))


class Contrastive(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        z = F.normalize(self.encoder(x), dim=1)
        return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(x)), reduction="none")


class HardNegatives(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        z = self.encoder(x)
        distances = torch.cdist(z, z) + 1e9 * torch.eye(len(x))
        return self.errors(x) + F.relu(1.0 - distances.amin(dim=1))


class Mixup(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        return self.errors(0.9 * x + 0.1 * x[torch.randperm(len(x))])


class FocalNormalised(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        return self.errors(x) * y / y.sum().clamp(min=1)


class ByPosition(Stranger):
    refused = BESIDE

    def loss(self, x, y):
        return self.errors(x) * (1 + torch.arange(len(x)))


class EasyHalf(Stranger):
    """A loss that learns from the records of the smallest losses."""

    refused = BESIDE

    def loss(self, x, y):
        losses = self.errors(x)
        return losses * (losses <= losses.median())


class Weighted(Stranger):
    """A loss divided by the count of a label in the lot."""

    refused = BESIDE

    def loss(self, x, y):
        return self.errors(x) / F.one_hot(y, 3).sum(dim=0)[y]


class Average(Stranger):
    """A moving average that is kept by other numbers behind a tensor."""

    refused = r"puts other numbers behind a tensor \(\.data =\)"

    def prepare(self):
        self.register_buffer("average", torch.zeros(6))

    def loss(self, x, y):
        self.average.data = 0.9 * self.average + 0.1 * x.detach().mean(dim=0)
        return self.errors(x)


class OnlySome(Stranger):
    refused = SHAPES

    def loss(self, x, y):
        return self.errors(x[x[:, 0] > 0.5]).sum() + 0 * x[:, 0]


class Experts(Stranger):
    """A mixture of experts in which each record is sent to one of them, by a mask."""

    def prepare(self):
        self.experts, self.gate = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), nn.Linear(4, 3)

    def loss(self, x, y):
        h = self.encoder(x)
        shares = self.gate(h).softmax(dim=1)
        return (self.decoder(self.sent(h, shares, shares.argmax(dim=1))) - x).square().sum(dim=1)

    def sent(self, h, shares, to):
        each = [
            torch.where((to == i)[:, None], expert(h) * shares[:, i : i + 1], 0.0) for i, expert in enumerate(self.experts)
        ]
        return sum(each)


class ExpertsAtIndices(Experts):
    """Records are sorted by their experts, whose matrices are looked up, and results are put back where they belong."""

    def sent(self, h, shares, to):
        matrices = torch.stack([expert.weight for expert in self.experts])[to]
        made = torch.einsum("bi,boi->bo", h, matrices)
        order = to.argsort()
        return torch.zeros(len(h), 4).index_add_(0, order, made[order])


class ExpertsByMasks(Experts):
    refused = SHAPES

    def sent(self, h, shares, to):
        out = torch.zeros(len(h), 4)
        for i, expert in enumerate(self.experts):
            out[to == i] = expert(h[to == i])
        return out


class ExpertsByNonzero(Experts):
    refused = "each expert of a mixture sees all tokens"

    def sent(self, h, shares, to):
        out = torch.zeros(len(h), 4)
        for i, expert in enumerate(self.experts):
            (at,) = torch.where(to == i)
            out.index_add_(0, at, expert(h[at]))
        return out


class ComplexParameters(Stranger):
    refused = r"complex parameters, .* torch\.view_as_complex"

    def prepare(self):
        self.waves = nn.Parameter(torch.randn(4, 3, dtype=torch.complex64))

    def loss(self, x, y):
        return self.errors(x) + (self.encoder(x).to(self.waves.dtype) @ self.waves).abs().sum(dim=1)


class ScriptInside(Stranger):
    refused = "call the module or function of Python"

    def prepare(self):
        self.decoder = torch.jit.script(self.decoder)

    def loss(self, x, y):
        return self.errors(x)


class Hooked(Stranger):
    refused = "a hook"

    def loss(self, x, y):
        h = self.encoder(x)
        h.register_hook(lambda g: g / (g.norm() / 5).clamp(min=1))
        return (self.decoder(h) - x).square().sum(dim=1)


class Penalised(Stranger):
    engines = ("func",)

    def loss(self, x, y):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.errors(x).sum(), x, create_graph=True)
        return slope.square().sum(dim=1)


class OldFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / gradient.norm()


class MixingBackward(Stranger):
    """A function that divides the gradients of a lot by their length, on their way back."""

    refused = "generate_vmap_rule"

    def loss(self, x, y):
        return (self.decoder(OldFunction.apply(self.encoder(x))) - x).square().sum(dim=1)


class Copied(Stranger):
    refused = TAKES

    def loss(self, x, y):
        return self.errors(x) * math.exp(-x.detach().numpy().mean())


class CatchesErrors(Stranger):
    """A loss that goes another way where a factorisation fails for any record."""

    refused = "goes on after an error"

    def loss(self, x, y):
        h = self.encoder(x)
        try:
            torch.linalg.cholesky(-torch.eye(4) - h[:, :, None] * h[:, None])
        except torch.linalg.LinAlgError:
            h = -h
        return (self.decoder(h) - x).square().sum(dim=1)


class Prints(Stranger):
    refused = "into text"

    def loss(self, x, y):
        return self.errors(x) * (2.0 if "e+" in repr(x) else 1.0)


class KeptInGrad(Stranger):
    refused = "in the .grad"

    def prepare(self):
        self.register_buffer("buffer", torch.zeros(4))

    def loss(self, x, y):
        h = self.encoder(x)
        self.buffer.grad = h.detach().mean(dim=0)
        return (self.decoder(h) - x).square().sum(dim=1)


class RuleOfItsOwn(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x / x.abs().max()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient

    @staticmethod
    def vmap(info, dims, x):
        return RuleOfItsOwn.apply(x), dims[0]


class QuantisedByARule(Stranger):
    refused = "vmap rule of its own"

    def loss(self, x, y):
        return (self.decoder(RuleOfItsOwn.apply(self.encoder(x))) - x).square().sum(dim=1)


@torch.library.custom_op("strangers::largest", mutates_args=())
def _largest(x: Tensor) -> Tensor:
    return x / x.abs().max()


_largest.register_vmap(lambda info, dims, x: (_largest(x), dims[0]))


class OperatorOfAnExtension(Stranger):
    refused = "operator of an extension"

    def loss(self, x, y):
        return (self.decoder(_largest(self.encoder(x.detach()).detach())) - x).square().sum(dim=1)


class SeededForAWhile(Stranger):
    refused = "torch was seeded"

    def loss(self, x, y):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            x = x + torch.randn_like(x)
        return self.errors(x)


class DrawsAgain(Stranger):
    """A loss that draws the same numbers in each lot."""

    refused = "torch was seeded"

    def prepare(self):
        self.state = torch.get_rng_state()

    def loss(self, x, y):
        state = torch.get_rng_state()
        torch.set_rng_state(self.state)
        x = x + torch.randn_like(x)
        torch.set_rng_state(state)
        return self.errors(x)


class KeptOnTheWayBack(Stranger):
    """A loss scaled by the gradients of the lot before."""

    refused = KEEPS

    def prepare(self):
        kept = self.kept = []

        class Function(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(x):
                return x * 1.0

            @staticmethod
            def setup_context(ctx, inputs, output):
                pass

            @staticmethod
            def backward(ctx, gradient):
                kept.append(gradient)
                return gradient

        self.function = Function

    def loss(self, x, y):
        scale = 1 + self.kept[-1].square().sum() if self.kept else 1.0
        return (self.decoder(self.function.apply(self.encoder(x))) * scale - x).square().sum(dim=1)


class SeededForTheWayBack(KeptOnTheWayBack):
    """A loss that seeds when no other function of the loss follows, and draws in the backward pass."""

    refused = "torch was seeded"

    def prepare(self):
        super().prepare()
        self.function.backward = staticmethod(lambda ctx, gradient: gradient + torch.randn_like(gradient))

    def loss(self, x, y):
        losses = (self.decoder(self.function.apply(self.encoder(x))) - x).square().sum(dim=1)
        torch.manual_seed(1)
        return losses


class SeededOnTheWayBack(KeptOnTheWayBack):
    refused = "torch was seeded"

    def prepare(self):
        super().prepare()

        def backward(ctx, gradient):
            torch.manual_seed(1)
            return gradient + torch.randn_like(gradient)

        self.function.backward = staticmethod(backward)


class CatchesErrorsOnTheWayBack(KeptOnTheWayBack):
    refused = "goes on after an error"

    def prepare(self):
        super().prepare()

        def backward(ctx, gradient):
            with contextlib.suppress(torch.linalg.LinAlgError):
                return torch.linalg.cholesky(gradient[:, None] * gradient[:, :, None] - torch.eye(4))[:, :, 0]
            return gradient

        self.function.backward = staticmethod(backward)


class CompressesActivations(Stranger):
    refused = "hooks for saved tensors"

    def loss(self, x, y):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (t / t.abs().max(), t.abs().max()), lambda p: p[0] * p[1]):
            return self.errors(x)


class MaxNorm(Stranger):
    refused = "max_norm"

    def prepare(self):
        self.table = nn.Embedding(3, WIDTH, max_norm=0.5)

    def loss(self, x, y):
        return self.errors(x + self.table(y))


class FilledWithAValue(Stranger):
    """A function whose vmap rule gives the last record's number to all."""

    def prepare(self):
        self.register_buffer("table", torch.zeros(4))
        self.register_buffer("at", torch.tensor([0, 2]))

    def loss(self, x, y):
        e = self.errors(x)
        filled = self.table.index_fill(0, self.at, e.detach().mean())
        return e / (filled.max() / 10).clamp(min=1)


class LookedUpByANumber(Stranger):
    refused = "of a single number"

    def loss(self, x, y):
        e = self.errors(x)
        return e * torch.searchsorted(e.detach().mean(), torch.tensor(0.5))


class ByPositionInMemory(Stranger):
    refused = "by positions in memory"

    def prepare(self):
        self.register_buffer("matrix", torch.eye(4))

    def loss(self, x, y):
        e = self.errors(x)
        window = (self.matrix @ e.detach().expand(4)).as_strided((3, 2), (1, 1))
        return e / window.max().clamp(min=1)


class DistanceOfItsOwn(Stranger):
    refused = "a function of its own"

    def loss(self, x, y):
        h = self.encoder(x)
        loss = F.triplet_margin_with_distance_loss(h, h.roll(1, 1), -h, distance_function=self.distance, reduction="none")
        return self.errors(x) + loss

    def distance(self, a, b):
        return (a - b).norm(dim=1) * (2.0 if "e+" in repr(a) else 1.0)


class FindsWhatIsNotFinite(_python_dispatch.TorchDispatchMode):
    found = False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.found |= isinstance(result, Tensor) and result.is_floating_point() and bool(result.abs().max() > 1e5)
        return result


class InADispatchMode(Stranger):
    refused = "TorchDispatchMode"

    def loss(self, x, y):
        with FindsWhatIsNotFinite() as mode:
            e = self.errors(x)
        return e * (0.0 if mode.found else 1.0)


class TextByAFunctionOfTorch(Stranger):
    refused = "into text"

    def loss(self, x, y):
        e = self.errors(x)
        return e * (2.0 if "e+" in torch._tensor_str._str(e) else 1.0)


@torch.jit.script
def _factorised(x: Tensor) -> Tensor:
    return torch.linalg.cholesky(torch.eye(4) * 1e4 - x[:, :, None] * x[:, None])


class CatchesErrorsOfAScript(Stranger):
    refused = "TorchScript"

    def loss(self, x, y):
        h = self.encoder(x)
        try:
            _factorised(h.detach())
        except RuntimeError:
            h = -h
        return (self.decoder(h) - x).square().sum(dim=1)


class ScriptThatRemembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        scaled = x / self.mean.clamp(min=1.0)
        self.mean = x.mean()
        return scaled


class StateOfAScript(Stranger):
    refused = "TorchScript"

    def prepare(self):
        self.script = [torch.jit.script(ScriptThatRemembers())]

    def loss(self, x, y):
        return self.errors(x) + self.script[0](x.detach()).sum(dim=1)


class WrittenOverABuffer(Stranger):
    """A module that begins a buffer anew, and keeps a value of a record there."""

    refused = WRITES

    def prepare(self):
        self.register_buffer("kept", torch.ones(()))

    def loss(self, x, y):
        e = self.errors(x) / self.kept
        torch.zeros((), out=self.kept)
        self.kept.add_(e.detach().mean())
        return e


class HookedOnTheWayBack(Stranger):
    refused = "backward hook"

    def prepare(self):
        self.encoder.register_full_backward_hook(lambda module, given, taken: tuple(x / x.norm() for x in given))

    def loss(self, x, y):
        return self.errors(x)


class RememberingCell(Stranger):
    """A cell that begins at zeros, and names its work for a profiler."""

    engines = ("ghost", "func")

    def prepare(self):
        self.cell = nn.LSTMCell(4, 4)

    def loss(self, x, y):
        with torch.profiler.record_function("cell"):
            h, _ = self.cell(self.encoder(x))
        return (self.decoder(h) - x).square().sum(dim=1)


@wrap_torch_function(lambda x: (x,))
def positive(x):
    """Notice whether any record is large, where no mode of torch looks."""
    try:
        torch.linalg.cholesky(100.0 - x.abs().max() * torch.ones(1, 1))
        return x
    except RuntimeError:
        return 0 * x


class Overridden(Stranger):
    refused = "wrap_torch_function"

    def loss(self, x, y):
        return positive(self.errors(x))


class Handled(Overridden):
    """A call by the function behind torch's overrides, and of an object."""

    class Positive:
        def __call__(self, x):
            return positive(x)

    def loss(self, x, y):
        return handle_torch_function(self.Positive(), (x,), self.errors(x))


class InTheNameOfTorch(Overridden):
    def loss(self, x, y):
        return handle_torch_function(functools.wraps(F.relu)(lambda x: positive(x)), (x,), self.errors(x))


class FilledWithin(Function):
    """A straight-through estimator that leaves a reading out, by a number of the record that may be below 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h, i):
        return h.index_fill(0, i[None], 0.0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class LeavesOut(Stranger):
    def loss(self, x, y):
        return self.errors(torch.stack([FilledWithin.apply(row, i - 2) for row, i in zip(x, y, strict=True)]))


class Strides(FilledWithin):
    @staticmethod
    def forward(h, i):
        return h.as_strided((WIDTH,), (1,), WIDTH)


class StridesWithin(Stranger):
    refused = "as_strided"

    def loss(self, x, y):
        return self.errors(Strides.apply(x[0], y[0])[None])


class ByAPrivateName(Stranger):
    refused = "not public"

    def loss(self, x, y):
        return self.errors(torch._reshape_alias_copy(x, (1, WIDTH), (WIDTH, 1)))


class BetweenVectors(Stranger):
    refused = "between vectors"

    def loss(self, x, y):
        return self.errors(x) + torch.linspace(x[0, :3], 2 * x[0, :3], 3).sum()


class ByAnOperator(Stranger):
    refused = "as_strided"

    def loss(self, x, y):
        return self.errors(torch.ops.aten.as_strided(x, (1, WIDTH), (WIDTH, 1), WIDTH))


class Resized(Stranger):
    refused = "resize_"

    def loss(self, x, y):
        return self.errors((x + 0.0).resize_(2, WIDTH)[1:])


class LeastSquares(Stranger):
    """A loss of residuals, which are empty for all records where one of them is short of rank."""

    refused = "lstsq"

    def loss(self, x, y):
        found = torch.linalg.lstsq(x.reshape(3, 2), x.reshape(3, 2)[:, :1], driver="gelsd").residuals
        return self.errors(x) * (1.0 if found.numel() else -1.0)


class UpdatesStatistics(Stranger):
    refused = "batch_norm_update_stats"

    def prepare(self):
        self.mean, self.variance = torch.zeros(4), torch.ones(4)

    def loss(self, x, y):
        torch.batch_norm_update_stats(self.encoder(x), self.mean, self.variance, 0.1)
        return self.errors(x) / self.variance.mean()


class ForwardMode(Stranger):
    refused = "forward mode"

    def loss(self, x, y):
        with forward_ad.dual_level():
            dual = self.encoder(forward_ad.make_dual(x, torch.ones_like(x)))
            slope = forward_ad.unpack_dual(dual).tangent
        return self.errors(x) + (0.0 if slope is None else slope.square().sum(dim=1))


class InAPoolOfThreads(Stranger):
    refused = "another thread"

    def prepare(self):
        self.pool = multiprocessing.pool.ThreadPool(1)
        weakref.finalize(self, self.pool.terminate)

    def loss(self, x, y):
        e = self.errors(x)
        return e * self.pool.apply(lambda: 1.0 if float(e.max()) < 1e3 else -1.0)


class HooksOnAll(Stranger):
    refused = "hooks of all modules"

    def loss(self, x, y):
        handle = nn.modules.module.register_module_full_backward_hook(lambda *_: None)
        try:
            return self.errors(x)
        finally:
            if self.steps > 100:
                handle.remove()


def _all() -> dict[str, type[Stranger]]:
    found, waiting = {}, list(Stranger.__subclasses__())
    while waiting:
        kind = waiting.pop(0)
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


STRANGERS = _all()
