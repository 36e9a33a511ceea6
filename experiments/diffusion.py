"""A small diffusion model that starts from a measured release and goes on privately, beside measured cells.

    python experiments/diffusion.py FOLDER [--data digits] [--epsilons 1.74] [--only rival] [--lr 0.003] ...

MNIST is pooled to 14 x 14: its first 50,000 training pictures train, its last 10,000 validate, and its test pictures are
not read. Of scikit-learn's digits the first 1,497 train and the last 300 validate. All parts of a row share one budget at
delta 1e-5. A part of its mu^2 (`--split`) buys a release of `model=measured`. Its samples train a conditional network,
which costs nothing. The rest buys private steps on real pictures, each with several noise levels (`--levels`) averaged
before the clip. 20,000 pictures are made twice: from noise, and from the release's own pictures with noise added
(`--start`, its deviation). They train the convolutional net and the forest that are scored on the validation pictures.
Every setting is an option, and every result is kept in FOLDER.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from kept import Kept
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from torch import Tensor, nn
from training import train

from lightning_dpgen import (
    Account,
    Fixed,
    ImageSchema,
    PerRecord,
    PoissonLots,
    PrivateOptimizer,
    encode_images,
    load_release,
    make_plan,
    term_gradients,
    training_stage,
)
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.public_sets import load_public_set, public_set
from lightning_dpgen.gradients.micro_batches import MicroBatches
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.measure.gaussians import label_components
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, gaussian_mu
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.release.drawing.model_files import weights_digest
from lightning_dpgen.sampling.lots import Lot
from lightning_dpgen.specs.settings import load_complete_settings

DELTA, ROWS, CLASSES, LEVELS = 1e-5, 20_000, 10, 255
# The deviation of pictures from -1 to 1, and the deviations of the noise that is added to them (Karras et al. 2022).
DEVIATION, LEAST, MOST, CURVE = 0.5, 0.03, 10.0, 7.0
# Training on samples draws the logarithm of the noise's deviation from a normal of this mean and deviation.
PUBLIC_NOISE = (-0.9, 1.2)
# Private steps average weights, and hold the gradients of so many records at a time.
KEEP, PART = 0.95, 256
PUBLIC_BATCH, PUBLIC_RATE, PUBLIC_KEEP = 256, 2e-3, 0.999

Pictures = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Data:
    """Pictures as whole numbers, and labels; `real` is private, and `held_out` chooses and scores."""

    schema: ImageSchema
    real: Pictures
    held_out: Pictures
    lot: int
    steps: int
    public_steps: int


def load_mnist() -> Data:
    encoded = load_public_set("mnist", public_set("mnist").schema, held_out=False).encoded
    images = encoded.units.reshape(-1, 14, 2, 14, 2).astype(np.float32).mean(axis=(2, 4)).round().astype(np.uint8)
    labels = encoded.codes[:, 0].astype(np.int64)
    schema = ImageSchema(14, 14, levels=LEVELS, classes=CLASSES)
    return Data(schema, (images[:50_000], labels[:50_000]), (images[50_000:], labels[50_000:]), 2048, 60, 2500)


def load_small_digits() -> Data:
    digits = load_digits()
    images, labels = (digits.images / 16 * LEVELS).round().astype(np.uint8), digits.target.astype(np.int64)
    schema = ImageSchema(8, 8, levels=LEVELS, classes=CLASSES)
    return Data(schema, (images[:-300], labels[:-300]), (images[-300:], labels[-300:]), 500, 100, 2000)


SETS = {"mnist": load_mnist, "digits": load_small_digits}


class Block(nn.Module):
    """Two convolutions around a scale and a shift that follow from noise level and label."""

    def __init__(self, inward: int, outward: int, about: int) -> None:
        super().__init__()
        self.first_norm, self.first = nn.GroupNorm(4, inward), nn.Conv2d(inward, outward, 3, padding=1)
        self.about, self.second_norm = nn.Linear(about, 2 * outward), nn.GroupNorm(4, outward)
        self.second = nn.Conv2d(outward, outward, 3, padding=1)
        self.skip = nn.Conv2d(inward, outward, 1) if inward != outward else nn.Identity()

    def forward(self, x: Tensor, about: Tensor) -> Tensor:
        scale, shift = self.about(about)[:, :, None, None].chunk(2, dim=1)
        h = self.first(nn.functional.silu(self.first_norm(x)))
        return self.skip(x) + self.second(nn.functional.silu(self.second_norm(h) * (1.0 + scale) + shift))


class UNet(nn.Module):
    """A UNet of two scales on blocks of 2 x 2 pixels, 50,604 parameters; `denoised` is preconditioned (Karras et al.)."""

    def __init__(self, width: int = 24, about: int = 32) -> None:
        super().__init__()
        self.level, self.label = nn.Linear(16, about), nn.Linear(CLASSES, about)
        self.stem, self.fine = nn.Conv2d(4, width, 3, padding=1), Block(width, width, about)
        self.down, self.coarse = nn.Conv2d(width, width, 3, stride=2, padding=1), Block(width, width, about)
        self.joined, self.norm = Block(2 * width, width, about), nn.GroupNorm(4, width)
        self.last = nn.Conv2d(width, 4, 3, padding=1)
        self.register_buffer("frequencies", torch.linspace(-1.0, 2.5, 8).exp())

    def forward(self, x: Tensor, level: Tensor, label: Tensor) -> Tensor:
        angle = level[:, None] * self.frequencies
        about = nn.functional.silu(self.level(torch.cat([angle.cos(), angle.sin()], dim=1)) + self.label(label))
        h = self.fine(self.stem(nn.functional.pixel_unshuffle(x, 2)), about)
        below = nn.functional.interpolate(self.coarse(self.down(h), about), size=h.shape[-2:])
        h = self.joined(torch.cat([h, below], dim=1), about)
        return nn.functional.pixel_shuffle(self.last(nn.functional.silu(self.norm(h))), 2)

    def denoised(self, x: Tensor, sigma: Tensor, label: Tensor) -> Tensor:
        s = sigma[:, None, None, None]
        skip, scale = DEVIATION**2 / (s**2 + DEVIATION**2), (s**2 + DEVIATION**2).rsqrt()
        return skip * x + s * DEVIATION * scale * self(scale * x, sigma.log() / 4.0, label)

    def losses(self, x: Tensor, label: Tensor, levels: int, noise: tuple[float, float]) -> Tensor:
        """Return the loss (B,) of each picture, a mean over so many noise levels of its own."""
        many, label = x.repeat_interleave(levels, dim=0), label.repeat_interleave(levels, dim=0)
        sigma = (noise[0] + noise[1] * torch.randn(len(many))).exp()
        made = self.denoised(many + sigma[:, None, None, None] * torch.randn_like(many), sigma, label)
        errors = (made - many).square().flatten(1).mean(dim=1)
        weights = (sigma**2 + DEVIATION**2) / (sigma * DEVIATION) ** 2
        return (weights * errors).view(-1, levels).mean(dim=1)

    @torch.no_grad()
    def sample(self, x: Tensor, label: Tensor, start: float, steps: int) -> Tensor:
        """Return (n, 1, h, w) by deterministic steps (DDIM), from pictures whose noise has the deviation `start`."""
        made = []
        ends = torch.linspace(start ** (1 / CURVE), LEAST ** (1 / CURVE), steps) ** CURVE
        for part, own in zip(x.split(1024), label.split(1024), strict=True):
            for sigma, after in zip(ends, [*ends[1:], torch.zeros(())], strict=True):
                clean = self.denoised(part, sigma.expand(len(part)), own)
                part = clean + after / sigma * (part - clean)
            made.append(part)
        return torch.cat(made)


def tensors(pictures: Pictures) -> tuple[Tensor, Tensor]:
    """Return pictures (n, 1, h, w) from -1 to 1, and labels (n, 10) as one-hot."""
    images, labels = pictures
    x = torch.from_numpy(images.astype(np.float32))[:, None] / LEVELS * 2.0 - 1.0
    return x, nn.functional.one_hot(torch.from_numpy(labels), CLASSES).float()


def pictures(encoded: Encoded, schema: ImageSchema) -> Pictures:
    images = encoded.units.reshape(-1, schema.height, schema.width).astype(np.float32)
    return images, encoded.codes[:, 0].astype(np.int64)


def average(into: nn.Module, network: nn.Module, keep: float) -> None:
    with torch.no_grad():
        for mean, own in zip(into.parameters(), network.parameters(), strict=True):
            mean.lerp_(own, 1.0 - keep)


def train_publicly(x: Tensor, label: Tensor, steps: int, seed: int) -> UNet:
    """Train a network on pictures that cost nothing."""
    torch.manual_seed(seed)
    network = UNet()
    optimizer, mean = torch.optim.Adam(network.parameters(), lr=PUBLIC_RATE), copy.deepcopy(network)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        rows = torch.randint(len(x), (PUBLIC_BATCH,))
        optimizer.zero_grad()
        network.losses(x[rows], label[rows], 1, PUBLIC_NOISE).mean().backward()
        optimizer.step()
        schedule.step()
        average(mean, network, min(PUBLIC_KEEP, (1 + step) / (10 + step)))
    return mean


@dataclass(frozen=True)
class Trial:
    """The settings of one private diffusion; an epsilon of None is the twin without noise and without a bound.

    Args:
        split: the part of mu^2 that the measured release has.
        levels: the noise levels of a record in a step.
        quantile: the place of the bound among the norms of gradients of the release's own pictures.
        noise: mean and deviation of the logarithm of the noise's deviation in private steps.
    """

    data: str
    epsilon: float | None
    warm_epsilon: float
    split: float
    steps: int
    lot: int
    levels: int
    lr: float
    quantile: float
    noise: tuple[float, float]
    seed: int


def part_of(epsilon: float, split: float) -> float:
    """Return the epsilon of a part of the budget's mu^2."""
    return gaussian_epsilon(math.sqrt(split) * gaussian_mu(epsilon, DELTA), DELTA)


def measured_words(path: Path, data: Data, epsilon: float) -> list[str]:
    height, width = data.schema.height, data.schema.width
    return [
        "data=images", f"data.path={path}", f"data.height={height}", f"data.width={width}", f"data.classes={CLASSES}",
        f"data.n={len(data.real[0])}", "model=measured", f"privacy.epsilon={epsilon}", f"privacy.delta={DELTA}",
    ]  # fmt: skip


class Run:
    """The measured release, its warm start, and the private steps of one trial, all on one account."""

    def __init__(self, trial: Trial, data: Data, path: Path) -> None:
        self.trial, self.data = trial, data
        n = len(data.real[0])
        recipe = load_complete_settings(measured_words(path, data, part_of(trial.warm_epsilon, trial.split))).recipe
        steps = training_stage(Fixed(1.0), n=n, sample_rate=trial.lot / n, steps=trial.steps)
        plan = make_plan([*recipe.specs(trial.split), steps], epsilon=trial.warm_epsilon, delta=DELTA)
        self.account = Account(plan, stream=PrivateStream(seed=trial.seed))
        records = encode_images(*data.real, data.schema)
        self.mixture: Mixture = recipe.measure(records, label_components(records), self.account)
        if trial.epsilon is None:
            self.account = Account(make_plan([steps], epsilon=math.inf, delta=DELTA))

    def samples(self, n: int, seed: int) -> Pictures:
        return pictures(self.mixture.sample(n, torch.Generator().manual_seed(seed)), self.data.schema)

    def warm_start(self, folder: Path) -> UNet:
        """Return the network that the release's samples have trained, once for each release."""
        path = folder / f"warm_{weights_digest(self.mixture.network)[:16]}.pt"
        if not path.is_file():
            x, label = tensors(self.samples(100_000, 1))
            torch.save(train_publicly(x, label, self.data.public_steps, self.trial.seed).state_dict(), path)
        network = UNet()
        network.load_state_dict(torch.load(path))
        return network

    def bound(self, network: UNet) -> float:
        """Return a bound from the gradients of the release's own pictures, which is public."""
        records = tensors(self.samples(512, 2))
        term = PerRecord(lambda lot, noise: network.losses(*lot.records, self.trial.levels, self.trial.noise))
        lot = Lot(records, (0, len(records[0])))
        norms = term_gradients(network, term, lot, PrivateStream(seed=2), engine="func").norms()
        return float(norms.quantile(self.trial.quantile))

    def train_privately(self, network: UNet) -> UNet:
        """Return the average of the networks of all private steps."""
        trial, account = self.trial, self.account
        mean, bound = copy.deepcopy(network), self.bound(network)
        optimizer = PrivateOptimizer(
            torch.optim.Adam(network.parameters(), lr=trial.lr), account=account, clipping=Fixed(bound)
        )
        lots = PoissonLots(tensors(self.data.real), account)
        term = PerRecord(lambda lot, noise: network.losses(*lot.records, trial.levels, trial.noise))
        print(f"bound {bound:.3g}, noise {optimizer.noise_multiplier:.3g}", flush=True)
        for step in range(trial.steps):
            lot = lots.draw()

            def gradients(lot: Lot = lot) -> Iterator[PerSampleGradients]:
                return (term_gradients(network, term, part, account.stream, engine="func") for part in lot.cut(PART))

            optimizer.set_gradients(MicroBatches(gradients, lot.draw))
            optimizer.step()
            average(mean, network, min(KEEP, (1 + step) / (10 + step)))
        account.verify_complete()
        return mean


def made_pictures(network: UNet, source: Pictures, start: float | None) -> Pictures:
    """Return a picture for each of `source` with its label: from noise alone, or from that picture with noise added."""
    x, label = tensors(source)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(4))
    begin = MOST * noise if start is None else x + start * noise
    made = network.sample(begin, label, MOST if start is None else start, 20 if start is None else 8)
    return ((made[:, 0].clamp(-1.0, 1.0) + 1.0) * (LEVELS / 2.0)).numpy(), source[1]


def network_of(height: int, width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * -(-height // 2) * -(-width // 2), 64), nn.ReLU(), nn.Linear(64, CLASSES),
    )  # fmt: skip


def convolutional_accuracy(train_on: Pictures, held_out: Pictures, seed: int) -> float:
    x, y = torch.from_numpy(train_on[0].astype(np.float32))[:, None] / LEVELS, torch.from_numpy(train_on[1])
    network, random = network_of(*x.shape[2:], seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(6):
        for rows in torch.randperm(len(x), generator=random).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        answers = network(torch.from_numpy(held_out[0].astype(np.float32))[:, None] / LEVELS).argmax(dim=1).numpy()
    return float((answers == held_out[1]).mean())


def forest_accuracy(train_on: Pictures, held_out: Pictures) -> float:
    forest = RandomForestClassifier(100, random_state=0)
    forest.fit(train_on[0].reshape(len(train_on[0]), -1) / LEVELS, train_on[1])
    return float(forest.score(held_out[0].reshape(len(held_out[0]), -1) / LEVELS, held_out[1]))


class Scores:
    """Accuracies on the validation pictures, kept as soon as each is there."""

    def __init__(self, kept: Kept, data: Data, networks: int) -> None:
        self._kept, self._data, self._networks = kept, data, networks

    def say(self, name: str, about: dict, make: Callable[[], Pictures]) -> None:
        made: list[Pictures] = []

        def of(score: Callable[[Pictures, Pictures], float]) -> float:
            if not made:
                made.append(make())
            return score(made[0], self._data.held_out)

        begun = time.process_time()
        found = [
            self._kept.get(about | {"of": name, "score": f"CNN {seed}"},
                           lambda seed=seed: of(lambda a, b: convolutional_accuracy(a, b, seed)))
            for seed in range(self._networks)
        ]  # fmt: skip
        forest = self._kept.get(about | {"of": name, "score": "forest"}, lambda: of(forest_accuracy))
        each = " ".join(f"{accuracy:.4f}" for accuracy in found)
        took = time.process_time() - begun
        print(f"{name}: CNN {np.mean(found):.4f} ({each}), forest {forest:.4f}; {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", choices=SETS, default="mnist")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.74, 10.0])
    parser.add_argument("--only", nargs="+", choices=["real", "rival", "warm", "private", "twin", "capacity"])
    parser.add_argument("--split", type=float, default=0.5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--lot", type=int)
    parser.add_argument("--levels", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--quantile", type=float, default=0.5)
    parser.add_argument("--noise", nargs=2, type=float, default=PUBLIC_NOISE)
    parser.add_argument("--start", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", type=int, default=1)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    data = SETS[asked.data]()
    path = asked.folder / f"{asked.data}.npz"
    if not path.is_file():
        np.savez_compressed(path, images=data.real[0], labels=data.real[1])
    scores = Scores(Kept(asked.folder / "diffusion.json"), data, asked.networks)

    def wanted(part: str) -> bool:
        return asked.only is None or part in asked.only

    if wanted("real"):
        scores.say("real pictures", {"data": asked.data}, lambda: tuple(part[:ROWS] for part in data.real))
    for epsilon in asked.epsilons:
        print(f"epsilon {epsilon:g}", flush=True)
        if wanted("rival"):
            about = {"data": asked.data, "epsilon": epsilon, "seed": asked.seed}
            run = asked.folder / f"rival_{asked.data}_{epsilon:g}_{asked.seed}"

            def rival(run=run, epsilon=epsilon) -> Pictures:
                words = [*measured_words(path, data, epsilon), f"seed={asked.seed}"]
                release = load_release(train(run, words) / "release")
                return pictures(release.sample_encoded(ROWS, 3), data.schema)

            scores.say("measured, all of the budget", about, rival)
        trial = Trial(
            asked.data, epsilon, epsilon, asked.split, asked.steps or data.steps, asked.lot or data.lot, asked.levels,
            asked.lr, asked.quantile, tuple(asked.noise), asked.seed,
        )  # fmt: skip
        for part in ("warm", "private", "twin"):
            if wanted(part):
                run_part(part, trial, data, path, asked, scores)
    if wanted("capacity"):
        run_capacity(data, asked, scores)


def run_part(part: str, trial: Trial, data: Data, path: Path, asked: argparse.Namespace, scores: Scores) -> None:
    """Score the pictures of a warm start, of the network that goes on privately, or of its twin without noise."""
    if part == "twin":
        trial = Trial(**asdict(trial) | {"epsilon": None})
    held: list[tuple[Run, UNet]] = []

    def network() -> tuple[Run, UNet]:
        if not held:
            run = Run(trial, data, path)
            found = run.warm_start(asked.folder)
            held.append((run, found if part == "warm" else run.train_privately(found)))
        return held[0]

    def from_start(start: float | None) -> Pictures:
        run, found = network()
        return made_pictures(found, run.samples(ROWS, 3), start)

    about = asdict(trial)
    if part == "warm":
        about = {name: about[name] for name in ("data", "epsilon", "split", "steps", "lot", "seed")}
        scores.say("measured, its part of the budget", about, lambda: network()[0].samples(ROWS, 3))
    scores.say(f"{part}, from noise", about, lambda: from_start(None))
    if part != "warm":
        scores.say(f"{part}, from {asked.start:g}", about | {"start": asked.start}, lambda: from_start(asked.start))


def run_capacity(data: Data, asked: argparse.Namespace, scores: Scores) -> None:
    """Score the pictures of the same network that was trained on real pictures as the others are on the release's."""

    def make() -> Pictures:
        network = train_publicly(*tensors(data.real), data.public_steps, asked.seed)
        rows = np.random.default_rng(3).integers(len(data.real[0]), size=ROWS)
        return made_pictures(network, (data.real[0][rows], data.real[1][rows]), None)

    about = {"data": asked.data, "seed": asked.seed, "public_steps": data.public_steps}
    scores.say("the network on real pictures, not private", about, make)


if __name__ == "__main__":
    main()
