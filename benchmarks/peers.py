"""Peers of a private step: plain training steps as a good engineer writes them, and Opacus' own.

    python benchmarks/peers.py                  milliseconds a step of each, and ratios within each family
    python benchmarks/peers.py --keep-memory    the same with an allocator that returns nothing to the system
    python benchmarks/peers.py --quick          to see that it runs

Every ``..._step`` takes a model and records in memory, and returns a call that does all of one optimizer step: draw a batch
of fixed size, forward, backward, update. The call gives the loss, where there is one. A batch is drawn with replacement,
which is the quickest way. The models are ordinary modules, so that a private contender can train the same ones.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from interleaved import parser, peak_memory, ratios, start
from opacus.accountants import RDPAccountant
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import Tensor, nn

Step = Callable[[], float | None]

SIDE = 28
PIXELS = SIDE * SIDE
# The number of records of the largest published data set that the suite's papers train on.
RECORDS_4M = 4_427_486


def pictures(n: int) -> Tensor:
    """Draw (n, 784) binary pictures of one round spot each, which a small model can learn."""
    line = torch.arange(SIDE, dtype=torch.float32)
    centre = torch.randint(6, SIDE - 6, (2, n, 1))
    across, down = (line - centre).square().unbind()
    radius = torch.randint(2, 6, (n, 1, 1))
    return (across[:, None, :] + down[:, :, None] <= radius**2).flatten(1).to(torch.float32)


def rows(n: int, width: int = 110) -> Tensor:
    """Draw (n, width) rows in [0, 1], each around one of eight random corners."""
    corners = torch.randint(0, 2, (8, width)).to(torch.float32)
    return (corners[torch.randint(8, (n,))] + 0.1 * torch.randn(n, width)).clamp_(0.0, 1.0)


def draw(records: Tensor, lot: int) -> Tensor:
    """Draw a batch of fixed size."""
    return records.index_select(0, torch.randint(len(records), (lot,), device=records.device))


class VAE(nn.Module):
    """An autoencoder of pictures given as rows; pixels are Bernoulli.

    Args:
        encoder: a map from (B, 784) to means and log variances side by side (B, 2 latent).
        decoder: a map from (B, latent) to logits (B, 784).
    """

    def __init__(self, encoder: nn.Module, decoder: nn.Module, latent: int) -> None:
        super().__init__()
        self.encoder, self.decoder, self.latent = encoder, decoder, latent

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits, codes, and their means and log variances, with the given (B, latent) normals."""
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = torch.addcmul(mean, torch.exp(0.5 * log_variance), noise)
        return self.decoder(code), code, mean, log_variance


def linear_vae(hidden: int = 200, latent: int = 2) -> VAE:
    """Build a VAE of layers 784-200-2-200-784."""
    return VAE(
        nn.Sequential(nn.Linear(PIXELS, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent)),
        nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, PIXELS)),
        latent,
    )


def convolutional_vae(latent: int = 8) -> VAE:
    """Build a VAE of two convolutions with stride 2, and two transposed ones back."""
    return VAE(
        nn.Sequential(
            nn.Unflatten(1, (1, SIDE, SIDE)),
            nn.Conv2d(1, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 7 * 7, 2 * latent),
        ),
        nn.Sequential(
            nn.Linear(latent, 32 * 7 * 7),
            nn.ReLU(),
            nn.Unflatten(1, (32, 7, 7)),
            nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
            nn.Flatten(),
        ),
        latent,
    )


def deep_convolutional_vae(latent: int = 50, filters: int = 32) -> VAE:
    """Build a VAE of three convolutions of 4 by 4 with stride 2 of pictures padded to 32 by 32, and three back."""
    f = filters
    return VAE(
        nn.Sequential(
            nn.Unflatten(1, (1, SIDE, SIDE)),
            nn.ZeroPad2d(2),
            nn.Conv2d(1, f, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(f, 2 * f, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(2 * f, 4 * f, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * f, 2 * latent),
        ),
        nn.Sequential(
            nn.Linear(latent, 64 * f),
            nn.ReLU(),
            nn.Unflatten(1, (4 * f, 4, 4)),
            nn.ConvTranspose2d(4 * f, 2 * f, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * f, f, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(f, 1, 4, stride=2, padding=1),
            nn.ZeroPad2d(-2),
            nn.Flatten(),
        ),
        latent,
    )


def negative_elbo(x: Tensor, logits: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return (B,) numbers in nats."""
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(dim=1)
    return reconstruction + 0.5 * (mean.square() + log_variance.exp() - 1.0 - log_variance).sum(dim=1)


def mmd(codes: Tensor, normals: Tensor) -> Tensor:
    """Return each group's squared maximum mean discrepancy (V-statistic) to as many normals: (g, b, d) twice to (g,).

    The kernel is the inverse multiquadric c / (c + d^2) with c = 2 d, as in Wasserstein autoencoders.
    """
    size, width = codes.shape[1:]
    both = torch.cat((codes, normals), dim=1)
    # Differences are as quick as a Gram matrix for few dimensions, and their squares are never negative.
    distance = (both[:, :, None] - both[:, None]).square().sum(dim=3)
    kernel = 2.0 * width / (2.0 * width + distance)
    sign = torch.ones(2 * size)
    sign[size:] = -1.0
    return (kernel @ sign) @ sign / size**2


def embedded(codes: Tensor, frequencies: Tensor) -> Tensor:
    """Return the cosines and sines (B, 2 f) of codes (B, d) at frequencies (d, f), of length 1 together."""
    phase = codes @ frequencies
    return torch.cat([phase.cos(), phase.sin()], dim=1) / math.sqrt(frequencies.shape[1])


def vae_step(
    model: VAE,
    records: Tensor,
    lot: int,
    *,
    fused: bool = True,
    group: int | None = None,
    frequencies: Tensor | None = None,
    weight: float = 10.0,
    lr: float = 1e-3,
) -> Step:
    """Return a step of Adam on the mean negative ELBO.

    Args:
        fused: use torch's fused Adam in place of its default.
        group: size of the groups over which the mean `mmd` of codes is added, `weight` times.
        frequencies: (latent, f), of features whose mean over the batch is moved to that of normals, `weight` times.
    """
    of_normals = None
    if frequencies is not None:
        of_normals = embedded(torch.randn(10_000, model.latent), frequencies).mean(dim=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=fused)

    def step() -> float:
        x = draw(records, lot)
        logits, code, mean, log_variance = model(x, torch.randn(lot, model.latent, device=x.device))
        loss = negative_elbo(x, logits, mean, log_variance).mean()
        if group is not None:
            codes = code.view(-1, group, model.latent)
            loss = loss + weight * mmd(codes, torch.randn_like(codes)).mean()
        if frequencies is not None:
            loss = loss + weight * (embedded(code, frequencies).mean(dim=0) - of_normals).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def opacus_step(
    model: VAE,
    records: Tensor,
    lot: int,
    *,
    ghost: bool = True,
    bound: float = 1.0,
    multiplier: float = 1.0,
    lr: float = 1e-3,
) -> Step:
    """Return the same step under Opacus, by ghost clipping or by its default, gradients of each record.

    The bound is fixed and the accountant attached. Its wrappers are put together as `PrivacyEngine.make_private` does, but
    without the loader, which costs more than a draw.
    """
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
    settings = {"noise_multiplier": multiplier, "max_grad_norm": bound, "expected_batch_size": lot}

    def criterion(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
        logits, _, mean, log_variance = outputs
        return negative_elbo(x, logits, mean, log_variance)

    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=bound)
        private = DPOptimizerFastGradientClipping(optimizer, **settings)
        loss_of = DPLossFastGradientClipping(wrapped, private, criterion)
    else:
        wrapped = GradSampleModule(model)
        private = DPOptimizer(optimizer, **settings)

        def loss_of(outputs: tuple[Tensor, ...], x: Tensor) -> Tensor:
            return criterion(outputs, x).mean()

    private.attach_step_hook(RDPAccountant().get_optimizer_hook_fn(sample_rate=lot / len(records)))

    def step() -> float:
        x = draw(records, lot)
        loss = loss_of(wrapped(x, torch.randn(lot, model.latent, device=x.device)), x)
        private.zero_grad(set_to_none=True)
        loss.backward()
        private.step()
        return loss.item()

    return step


class _Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x) + x)


def probed_resnet(width: int = 64) -> nn.Sequential:
    """Build a frozen residual network with batch norms in eval mode, and a linear head that is trained."""

    def convolved(channels: int, out: int, stride: int = 1) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(out)]

    def block(channels: int) -> nn.Module:
        return _Residual(*convolved(channels, channels), nn.ReLU(), *convolved(channels, channels))

    backbone = nn.Sequential(
        nn.Unflatten(1, (1, SIDE, SIDE)),
        *convolved(1, width, 2),
        nn.ReLU(),
        block(width),
        *convolved(width, 2 * width, 2),
        nn.ReLU(),
        block(2 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    return nn.Sequential(backbone.eval().requires_grad_(False), nn.Linear(2 * width, 10))


class Adapted(nn.Module):
    """A frozen linear layer with a trained product of low rank beside it (LoRA)."""

    def __init__(self, frozen: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.frozen, self.down = frozen, nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


class _Layer(nn.Module):
    """A layer of an encoder, as BERT has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        heads = (f(x).unflatten(-1, (4, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = self.first(x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)))
        return self.last(x + self.wide(x))


class AdaptedEncoder(nn.Module):
    """A frozen encoder of the lines of a picture, with LoRA beside queries and values, and a head that is trained."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.lines, self.layers = nn.Linear(SIDE, width), nn.Sequential(*(_Layer(width) for _ in range(layers)))
        self.requires_grad_(False)
        for layer in self.layers:
            layer.query, layer.value = Adapted(layer.query), Adapted(layer.value)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.lines(x.unflatten(1, (SIDE, SIDE)))).mean(dim=1))


def perceptron(*widths: int) -> nn.Sequential:
    """Build linear layers of these widths, with ReLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def classifier_step(
    model: nn.Module, records: tuple[Tensor, Tensor], lot: int = 64, *, fused: bool = True, lr: float = 1e-3
) -> Step:
    """Return a step of Adam on the trained parameters of a classifier, with mean cross entropy."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr, fused=fused)

    def step() -> float:
        index = torch.randint(len(records[0]), (lot,))
        loss = F.cross_entropy(model(records[0][index]), records[1][index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def critic(width: int = 110, hidden: int = 256) -> nn.Sequential:
    """Build layers width-256-256-256-1."""
    return nn.Sequential(
        nn.Linear(width, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, 1),
    )


def generator(width: int = 110, latent: int = 32) -> nn.Sequential:
    """Build a small fixed generator: the cost of a critic's step is measured, not a generator's."""
    return nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, width), nn.Sigmoid())


def critic_step(
    model: nn.Module,
    fakes: nn.Sequential,
    records: Tensor,
    lot: int = 64,
    *,
    penalty: float = 10.0,
    fused: bool = True,
    lr: float = 1e-4,
) -> Step:
    """Return a step of Adam on the Wasserstein loss with gradient penalty (Gulrajani et al. 2017), by double backward."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.5, 0.9), fused=fused)
    latent = fakes[0].in_features

    def step() -> float:
        real = draw(records, lot)
        with torch.no_grad():
            fake = fakes(torch.randn(lot, latent))
        between = torch.lerp(fake, real, torch.rand(lot, 1)).requires_grad_()
        # Real and fake go through together; the points between go alone, as only they are differentiated twice.
        scores = model(torch.cat((fake, real)))
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        loss = scores[:lot].mean() - scores[lot:].mean() + penalty * (slope.norm(dim=1) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


class RBM:
    """Weights, biases and persistent chains of a Bernoulli machine."""

    def __init__(self, chains: int = 100, visible: int = PIXELS, hidden: int = 200) -> None:
        self.weight = 0.01 * torch.randn(visible, hidden)
        self.visible, self.hidden = torch.zeros(visible), torch.zeros(hidden)
        self.chains = torch.randint(0, 2, (chains, visible)).to(torch.float32)

    def hidden_given(self, v: Tensor) -> Tensor:
        return torch.addmm(self.hidden, v, self.weight).sigmoid_()

    def visible_given(self, h: Tensor) -> Tensor:
        return torch.addmm(self.visible, h, self.weight.t()).sigmoid_()


def coin(p: Tensor) -> Tensor:
    """Draw ones with probability p, in place; it takes less than half as long as torch.bernoulli."""
    return torch.lt(torch.rand_like(p), p, out=p)


def rbm_step(model: RBM, records: Tensor, lot: int = 100, *, lr: float = 0.05, momentum: float = 0.5) -> Step:
    """Return a step of PCD-1 in closed form, with momentum or without, into the weights: no gradient is kept."""
    chains = len(model.chains)
    velocity = [torch.zeros_like(p) for p in (model.weight, model.visible, model.hidden)]

    @torch.no_grad()
    def step() -> None:
        v = draw(records, lot)
        # One product serves the records and the chains' next sweep.
        hidden = model.hidden_given(torch.cat((v, model.chains)))
        h, swept = hidden[:lot], coin(hidden[lot:])
        model.chains = free = coin(model.visible_given(swept))
        h_free = model.hidden_given(free)
        weight, visible, bias = velocity if momentum else (model.weight, model.visible, model.hidden)
        rate, kept = (1.0, momentum) if momentum else (lr, 1.0)
        weight.addmm_(v.t(), h, beta=kept, alpha=rate / lot).addmm_(free.t(), h_free, alpha=-rate / chains)
        visible.mul_(kept).add_(v.mean(dim=0) - free.mean(dim=0), alpha=rate)
        bias.mul_(kept).add_(h.mean(dim=0) - h_free.mean(dim=0), alpha=rate)
        if momentum:
            for parameter, move in zip((model.weight, model.visible, model.hidden), velocity, strict=True):
                parameter.add_(move, alpha=lr)

    return step


def opacus_draw(n: int = RECORDS_4M, lot: int = 100) -> Callable[[], list[int]]:
    """Return a draw of one Poisson batch of Opacus' sampler, as indices."""
    batches = iter(UniformWithReplacementSampler(num_samples=n, sample_rate=lot / n, steps=sys.maxsize))
    return lambda: next(batches)


def families(records: Tensor) -> dict[str, dict[str, Callable[[], object]]]:
    """Return contenders that are timed together; the first of each family is the base of its ratios."""
    table = rows(10_000)
    found: dict[str, dict[str, Callable[[], object]]] = {}
    for lot in (100, 256, 1024):
        found[f"VAE, lot {lot}"] = {
            "default Adam": vae_step(linear_vae(), records, lot, fused=False),
            "fused Adam": vae_step(linear_vae(), records, lot),
            "Opacus ghost": opacus_step(linear_vae(), records, lot),
        }
    found["VAE, lot 100"]["Opacus hooks"] = opacus_step(linear_vae(), records, 100, ghost=False)
    found["VAE, lot 256, 16 groups"] = {
        "no group term": vae_step(linear_vae(), records, 256),
        "group term": vae_step(linear_vae(), records, 256, group=16),
    }
    last = torch.channels_last
    found["convolutional VAE, lot 256"] = {
        "fused Adam": vae_step(convolutional_vae(), records, 256),
        "channels last": vae_step(convolutional_vae().to(memory_format=last), records, 256),
    }
    found["critic, lot 64"] = {
        "default Adam": critic_step(critic(), generator(), table, fused=False),
        "fused Adam": critic_step(critic(), generator(), table),
    }
    found["RBM, lot 100"] = {
        "momentum": rbm_step(RBM(), records),
        "plain SGD": rbm_step(RBM(), records, momentum=0.0),
    }
    found["draw, N = 4,427,486"] = {"Opacus sampler": opacus_draw()}
    return found


def main() -> None:
    arguments = parser(__doc__.splitlines()[0]).parse_args()
    size = start(arguments)
    # Opacus' hooks warn of a first layer whose records need no gradient; that gradient would cost it 7 % more.
    warnings.filterwarnings("ignore", message="Full backward hook")
    records = pictures(1_000 if arguments.quick else 60_000)
    print(f"{'':<40}{'ms':>9}{'wall ms':>9}{'ratio':>8}  quartiles")
    for family, contenders in families(records).items():
        result = ratios(contenders, size.rounds, size.warmup, size.steps)
        base = next(iter(contenders))
        for name in contenders:
            ratio = result.ratio(name, base)
            print(
                f"{f'{family}: {name}':<40}{result.milliseconds(name):>9.3f}{result.milliseconds(name, 'wall'):>9.3f}"
                f"{ratio.median:>8.3f}  {ratio.low:.3f} to {ratio.high:.3f}"
            )
        print(f"{'':<40}wall beyond processor time {result.disagreement():.1%}, other threads {result.elsewhere:.1%}")
    lot = 1024
    print(f"peak memory of a training with lot {lot}, MiB")
    for name, step in {"plain": vae_step, "Opacus ghost": opacus_step}.items():

        def run(step=step) -> None:
            once = step(linear_vae(), records, lot)
            for _ in range(3):
                once()

        print(f"  {name:<38}{peak_memory(run) / 2**20:>9.1f}")


if __name__ == "__main__":
    main()
