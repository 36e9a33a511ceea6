"""Cost of a private step, beside the plain step of the same model in the same run, and beside Opacus.

    python benchmarks/steps.py                 the table of benchmarks/README.md: 10 to 20 minutes
    python benchmarks/steps.py --only critic   the families whose name contains the word
    python benchmarks/steps.py --quick         that it runs

A private step is that of `dpgen train`: a Poisson lot drawn from all records, gradients, the access written to a ledger on
disk, bound, clipped sum, noise with its whole tail, the optimizer. The base of a VAE is torch's default Adam, which most
plain loops have; beside it stands the fused one.
"""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import peers
import torch
from interleaved import Line, parser, peak_memory, ratios, start, table
from torch import Tensor, nn

from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.gradients.clipping import ClippingRule, Decay, DPNorm, Fixed
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.per_sample_gradients import PerSampleGradients
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.models.critics import StackedCritic
from lightning_dpgen.models.divergences import CodeEmbedding, make_kernel, mmd, mmd_gradient
from lightning_dpgen.models.generators import StackedGenerator
from lightning_dpgen.models.rbm import StackedRBM
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.optim.stages import training_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan, Stage
from lightning_dpgen.privacy.sampling.samplers import TruncatedPoisson
from lightning_dpgen.sampling.lots import Lot, PoissonLots
from lightning_dpgen.sampling.slots import enough_slots

Step = Callable[[], object]
PICTURE = ImageSchema(28, 28, levels=1)
ADAPTIVE, FIXED = DPNorm(c_max=60.0), Fixed(10.0)
# This is more steps than any benchmark makes.
_STEPS = 200_000


class Private:
    """Maker of private steps, whose ledgers are files of one folder.

    Args:
        folder: the folder of the ledgers; None keeps them in memory.
        secure: draw all noise from a cipher.
    """

    def __init__(self, folder: Path | None, *, secure: bool = False) -> None:
        self._folder, self._secure, self._made = folder, secure, 0

    def step(
        self,
        network: nn.Module,
        records: Tensor | tuple[Tensor, ...],
        lot: int,
        rule: ClippingRule | list[ClippingRule] = ADAPTIVE,
        *,
        gradients: Callable[[Lot, PrivateStream], tuple] | None = None,
        k: int = 1,
        inner: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
        after: Callable[[], None] = lambda: None,
        embeddings: Mapping[str, float] | None = None,
        compute: Callable[[PrivateOptimizer, Lot], PerSampleGradients] | None = None,
        slots: int | None = None,
        full: bool = False,
    ) -> Step:
        """Return a step of `network`, on its own term or on the gradients that `gradients` or `compute` gives.

        Records stay where they are, on the processor; each lot goes to the network's device.

        Args:
            slots: the number of rows in which lots are laid out.
            full: whether each lot has `lot` records, by a sampler that cuts larger ones.
        """
        n = len(records if isinstance(records, Tensor) else records[0])
        rate, device = lot / n, next(network.parameters()).device
        # The noise is not calibrated, which makes no step quicker or slower.
        access = training_stage(rule, n=n, sample_rate=rate, steps=_STEPS, embeddings=embeddings).access(1.0)
        if full:
            # Nearly every lot is cut: this many have fewer records once in 10^9 times.
            sampler = TruncatedPoisson(min(enough_slots(lot) * 1.1 / n, 0.999), largest_lot=lot, at_most=n)
            access = dataclasses.replace(access, sampler=sampler)
        plan, stream = Plan((Stage(access, _STEPS, 1.0),), 8.0, 1e-6), PrivateStream(secure=self._secure)
        self._made += 1
        account = Account(plan, None if self._folder is None else self._folder / f"{self._made}.jsonl", stream)
        optimizer = PrivateOptimizer(
            inner([p for p in network.parameters() if p.requires_grad], lr=1e-3, fused=True),
            account=account,
            clipping=rule,
            expected_batch_size=lot,
            embeddings=list(embeddings or ()),
        )
        clusters = None if k == 1 else torch.arange(n) % k
        lots = PoissonLots(records, account, clusters=clusters, k=k)
        gradients = gradients or (lambda lot, stream: (term_gradients(network, network.term, lot, stream),))

        def step() -> None:
            drawn = lots.draw().to(device)
            if slots is not None:
                # A lot that has more records is taken as it is.
                drawn = (drawn.in_slots(slots, stream) or [drawn])[0]
            optimizer.set_gradients(*((compute(optimizer, drawn),) if compute else gradients(drawn, stream)))
            optimizer.step()
            after()

        return step


def vae(k: int = 1, network: str = "dense", latent: int = 2) -> StackedVAE:
    return StackedVAE(PICTURE, k, network=network, hidden=200, latent=latent)


class Taped(nn.Module):
    """The VAE of the plain step in torch's own layers, so that its private gradients come from the tape."""

    def __init__(self, model: nn.Module, noise: int) -> None:
        super().__init__()
        self.model, self.noise = model, noise

    @property
    def term(self) -> PerRecord:
        def loss(lot: Lot, noise: Tensor) -> Tensor:
            logits, _, mean, log_variance = self.model(lot.records, noise)
            return peers.negative_elbo(lot.records, logits, mean, log_variance)

        return PerRecord(loss, noise=self.noise)


class Recurrent(nn.Module):
    """A recurrent layer of series of 32 times, and a number from its last output."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.last = kind(64, 64, batch_first=True), nn.Linear(64, 1)

    def losses(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0][:, -1])[:, 0].square()

    @property
    def term(self) -> PerRecord:
        return PerRecord(lambda lot, _: self.losses(lot.records))

    def plain_step(self, records: Tensor, lot: int) -> Step:
        """Return a step of torch's default Adam on a part of the records."""
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            self.losses(records[torch.randint(len(records), (lot,))]).mean().backward()
            optimizer.step()

        return step


class Classifying(nn.Module):
    """A classifier of labelled records, with its loss of each record."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def term(self) -> PerRecord:
        def loss(lot: Lot, _: Tensor) -> Tensor:
            return nn.functional.cross_entropy(self.model(lot.records[0]), lot.records[1], reduction="none")

        return PerRecord(loss)


def families(records: Tensor, private: Private, secure: Private) -> dict[str, tuple[dict[str, Step], list]]:
    """Return each family's contenders, and the demands on their ratios: (contender, base, must, aim)."""
    found: dict[str, tuple[dict[str, Step], list]] = {}
    wants = {100: (1.4, 1.2, 2.0), 256: (1.25, 1.06, 1.5), 1024: (1.15, 1.0, 1.2)}
    for lot, (must, aim, with_cipher) in wants.items():
        contenders = {
            "plain": peers.vae_step(peers.linear_vae(), records, lot, fused=False),
            "plain, fused": peers.vae_step(peers.linear_vae(), records, lot),
            "private": private.step(vae(), records, lot),
            "private, fixed bound": private.step(vae(), records, lot, FIXED),
            "private, secure": secure.step(vae(), records, lot),
            "private, taped": private.step(Taped(peers.linear_vae(), 2), records, lot),
        }
        asked = [
            ("private", "plain", must, aim),
            ("private", "plain, fused", None, None),
            ("private, secure", "plain", None, with_cipher),
            ("private, taped", "plain", None, None),
            ("private", "private, fixed bound", 1.05, 1.02),
        ]
        if lot == 100:
            contenders["Opacus ghost"] = peers.opacus_step(peers.linear_vae(), records, lot)
            asked.append(("private", "Opacus ghost", 0.65, 0.45))
        found[f"VAE, lot {lot}"] = contenders, asked
    found["convolutional VAE, lot 256"] = (
        {
            "plain": peers.vae_step(peers.convolutional_vae(), records, 256, fused=False),
            "private": private.step(vae(network="conv", latent=8), records, 256),
            "private, torch's layers": private.step(Taped(peers.convolutional_vae(), 8), records, 256),
        },
        [("private", "plain", 1.6, 1.3), ("private, torch's layers", "plain", 1.6, 1.3)],
    )
    grouped = vae()

    def of_groups(name: str) -> Callable[[Lot, PrivateStream], tuple]:
        kernel = make_kernel(name, 2)

        def terms(lot: Lot, stream: PrivateStream) -> tuple:
            draws = torch.randn(16, 2)
            own = grouped.terms(
                lot,
                lambda codes: 10.0 * mmd(codes, draws, kernel),
                groups=16,
                places=46,
                gradient=lambda codes: 10.0 * mmd_gradient(codes, draws, kernel),
            )
            return tuple(term_gradients(grouped, term, lot, stream) for term in own)

        return terms

    for name, must, aim in (("imq", 1.4, 1.2), ("cauchy", 1.8, 1.3)):
        found[f"VAE with a group term ({name}), lot 256, 16 groups"] = (
            {
                "plain": peers.vae_step(peers.linear_vae(), records, 256, fused=False, group=16),
                "private": private.step(grouped, records, 256, [ADAPTIVE, Fixed(0.1)], gradients=of_groups(name)),
            },
            [("private", "plain", must, aim)],
        )
    embedding = CodeEmbedding(make_kernel("imq", 2), grouped.prior, 64)

    def of_embedding(lot: Lot, stream: PrivateStream) -> tuple:
        noise, encoded = stream.normal((len(lot), 2)), grouped.encoded(lot)

        def then(mean: Tensor) -> PerSampleGradients:
            term = grouped.embedded_term(embedding, 10.0, mean, encoded)
            return term_gradients(grouped, term, lot, stream, noise=noise)

        rows = grouped.embedded(lot, noise, embedding, encoded)
        return (EmbeddingGradients(rows, then, list(grouped.parameters()), lot.draw),)

    found["VAE with a mean embedding, lot 256"] = (
        {
            "plain": peers.vae_step(
                peers.linear_vae(), records, 256, fused=False, frequencies=make_kernel("imq", 2).frequencies(32, None)
            ),
            "private": private.step(grouped, records, 256, FIXED, gradients=of_embedding, embeddings={"embedding": 0.05}),
        },
        [("private", "plain", 1.5, 1.1)],
    )
    found["deep convolutional VAE, lot 256"] = (
        {
            "plain": peers.vae_step(peers.deep_convolutional_vae(), records, 256, fused=False),
            "private": private.step(vae(network="deep_conv", latent=50), records, 256),
        },
        [("private", "plain", 2.2, 1.6)],
    )
    for lot, must, aim in ((100, 6.2, 5.0), (256, 4.0, 3.0), (1000, 2.0, 1.6)):
        found[f"mixture, lot {lot}"] = (
            {"k = 1": private.step(vae(), records, lot), "k = 10": private.step(vae(10), records, lot, k=10)},
            [("k = 10", "k = 1", must, aim)],
        )
    rows = peers.rows(10_000)
    made_by = StackedGenerator(ImageSchema(10, 11, levels=1), 1, hidden=64, latent=32)
    found["critic with penalty, lot 64"] = (
        {
            "plain": peers.critic_step(peers.critic(), peers.generator(), rows, fused=False),
            "private": private.step(StackedCritic(made_by, hidden=256, layers=3), rows, 64, Decay(10.0)),
        },
        [("private", "plain", 1.15, 1.0)],
    )
    series = torch.rand(5_000, 32, 64)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        found[f"recurrent layer ({kind.__name__}), lot 64"] = (
            {
                "plain": Recurrent(kind).plain_step(series, 64),
                "private": private.step(Recurrent(kind), series, 64, FIXED),
            },
            [("private", "plain", 4.0, 2.0)],
        )
    labelled = records[:5_000], torch.randint(10, (min(5_000, len(records)),))
    for name, make in (("linear probe", peers.probed_resnet), ("LoRA", peers.AdaptedEncoder)):
        found[f"{name}, lot 64"] = (
            {
                "plain": peers.classifier_step(make(), labelled),
                "private": private.step(Classifying(make()), labelled, 64),
            },
            [("private", "plain", None, None)],
        )
    for widths in ((784, 512, 512, 10), (64, 128, 10)):
        few = records[:5_000, : widths[0]].contiguous(), labelled[1]
        found[f"MLP {'-'.join(map(str, widths))}, lot 64"] = (
            {
                "plain": peers.classifier_step(peers.perceptron(*widths), few, fused=False),
                "plain, fused": peers.classifier_step(peers.perceptron(*widths), few),
                "private": private.step(Classifying(peers.perceptron(*widths)), few, 64, FIXED),
            },
            [("private", "plain", 2.0, 1.5), ("private", "plain, fused", None, None)],
        )
    machine, public = StackedRBM(PICTURE, 1, hidden=200, chains=100), torch.Generator().manual_seed(0)
    found["RBM, lot 100"] = (
        {
            "plain": peers.rbm_step(peers.RBM(), records),
            "private": private.step(machine, records, 100, inner=torch.optim.SGD, after=lambda: machine.sweep(public)),
        },
        [("private", "plain", 1.9, 1.4)],
    )
    return found


def memory(records: Tensor, private: Private, lot: int) -> list[Line]:
    """Return peak memory of a private training beyond a plain one's, as a share of one gradient for each record."""

    def several(make: Callable[[], Step]) -> Callable[[], None]:
        def run() -> None:
            step = make()
            for _ in range(3):
                step()

        return run

    plain = peak_memory(several(lambda: peers.vae_step(peers.linear_vae(), records, lot)))
    ours = peak_memory(several(lambda: private.step(vae(), records, lot)))
    whole = lot * 4 * sum(p.numel() for p in vae().parameters())
    return [Line(f"extra memory at lot {lot} / a gradient for each record", (ours - plain) / whole, 0.1, 0.02)]


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="families whose name contains this")
    arguments = options.parse_args()
    size = start(arguments)
    warnings.filterwarnings("ignore", message="Full backward hook")
    records = peers.pictures(5_000 if arguments.quick else 60_000)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        private, secure = Private(Path(folder)), Private(Path(folder) / "secure", secure=True)
        (Path(folder) / "secure").mkdir()
        for family, (contenders, asked) in families(records, private, secure).items():
            if arguments.only not in family:
                continue
            result = ratios(contenders, size.rounds, size.warmup, size.steps)
            milliseconds = ", ".join(f"{name} {result.milliseconds(name):.2f}" for name in contenders)
            print(f"{family} (ms): {milliseconds}", flush=True)
            lines += [
                Line.of(f"{family}: {name} / {base}", result.ratio(name, base), must, aim)
                for name, base, must, aim in asked
            ]
        if arguments.only in "memory":
            lines += memory(records, private, 64 if arguments.quick else 1024)
    print(table(lines))


if __name__ == "__main__":
    main()
