"""Private steps of networks that other people wrote, beside the plain step of the same network, and beside Opacus.

    python benchmarks/models.py                  the table of benchmarks/README.md: some 15 minutes
    python benchmarks/models.py --only Llama     the networks whose name contains the word
    python benchmarks/models.py --quick          that it runs

Networks are small, with random weights; nothing is downloaded. Those of transformers, diffusers, timm and torchvision are
left out where the package is not installed. Dropout is what each network has by default. A private step is that of
steps.py with a fixed bound. Plain steps and Opacus draw a batch of fixed size. All have the fused Adam. Memory is the most
that a network, the state of its optimizer and three steps take, beyond records, as a multiple of the plain step's.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import peers
import torch
import torch.nn.functional as F
from interleaved import Line, Result, parser, peak_memory, ratios, start, table
from networks import Classifier, resnet18
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from steps import FIXED, Private, Step
from torch import Tensor, nn

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.terms import PerRecord

# Numbers of words, lengths of texts, and sides of pictures.
WORDS, LENGTH, SIDE = 512, 64, 32
_RECORDS = 2_000
# Seconds of the rounds of a network, and the fewest and the most rounds.
_SECONDS, _FEWEST, _MOST = 60.0, 9, 101


@dataclass(frozen=True)
class Stranger:
    """A network with a loss of each record.

    Args:
        make: builds a module that takes the tensors of a lot, and returns losses (B,).
        records: of each kind, "pictures", "digits", "words" or "labels".
        lot: the number of records of a step.
        package: the package that it is from; None for torch's own.
        must, aim: limits of private / plain.
        most_memory: the limit of the memory of a private step over a plain one's.
    """

    make: Callable[[], nn.Module]
    records: tuple[str, ...]
    lot: int = 16
    package: str | None = None
    must: float | None = None
    aim: float | None = None
    most_memory: float | None = None


def records_of(kind: str) -> Tensor:
    """Draw records of a kind."""
    if kind == "words":
        return torch.randint(WORDS, (_RECORDS, LENGTH))
    if kind == "labels":
        return torch.randint(10, (_RECORDS,))
    return torch.rand(_RECORDS, *{"pictures": (3, SIDE, SIDE), "digits": (1, SIDE // 2, SIDE // 2)}[kind])


class Language(nn.Module):
    """A causal language model of transformers."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, words: Tensor) -> Tensor:
        return _of_words(self.network(input_ids=words[:, :-1], use_cache=False).logits, words[:, 1:])


def _of_words(scores: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(scores.transpose(1, 2), words, reduction="none").mean(dim=1)


class Translator(nn.Module):
    """An encoder with a decoder, which gives the words back in the opposite order."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, words: Tensor) -> Tensor:
        back = words.flip(1)
        scores = self.network(input_ids=words, decoder_input_ids=back[:, :-1], use_cache=False).logits
        return _of_words(scores, back[:, 1:])


class Diffusion(nn.Module):
    """The loss of a denoising diffusion model, at a time of each record's own."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), dim=0))

    def forward(self, x: Tensor) -> Tensor:
        noise, time = torch.randn_like(x), (torch.rand(len(x)) * len(self.kept)).long()
        share = self.kept[time].view(-1, 1, 1, 1)
        found = self.network(share.sqrt() * x + (1 - share).sqrt() * noise, time).sample
        return (found - noise).square().mean(dim=(1, 2, 3))


class Adapted(nn.Module):
    """A frozen BERT with products of low rank beside queries and values (LoRA), and a head that is trained."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert, self.head = bert.requires_grad_(False), nn.Linear(bert.config.hidden_size, 10)
        for layer in [m for m in bert.modules() if hasattr(m, "query")]:
            layer.query, layer.value = peers.Adapted(layer.query), peers.Adapted(layer.value)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        hidden = self.bert(input_ids=words).last_hidden_state.mean(dim=1)
        return F.cross_entropy(self.head(hidden), labels, reduction="none")


class Encoded(nn.Module):
    """A classifier of texts by torch's own encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 128), nn.Parameter(0.02 * torch.randn(LENGTH, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(128, 10)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        hidden = self.layers(self.words(words) + self.places).mean(dim=1)
        return F.cross_entropy(self.head(hidden), labels, reduction="none")


class Characters(nn.Module):
    """A language model of two recurrent layers, as of the characters of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 32), nn.Linear(128, 64)
        self.lstm = nn.LSTM(32, 128, num_layers=2, dropout=0.1, batch_first=True)

    def forward(self, words: Tensor) -> Tensor:
        letters = words % 64
        return _of_words(self.head(self.lstm(self.embed(letters[:, :-1]))[0]), letters[:, 1:])


def _from(package: str, make: Callable[[ModuleType], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make(importlib.import_module(package))


def _vision(package: ModuleType) -> nn.Module:
    return Classifier(
        package.models.VisionTransformer(
            image_size=SIDE, patch_size=4, num_layers=6, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=10
        )
    )


def _timm_vision(package: ModuleType) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return Classifier(VisionTransformer(SIDE, 4, num_classes=10, embed_dim=192, depth=6, num_heads=3))


def _swin(package: ModuleType) -> nn.Module:
    windows = {"window_size": [4, 4], "patch_size": [2, 2]}
    network = package.models.SwinTransformer(embed_dim=48, depths=[2, 2], num_heads=[3, 6], num_classes=10, **windows)
    return Classifier(network)


def _unet(package: ModuleType) -> nn.Module:
    return Diffusion(
        package.UNet2DModel(
            sample_size=SIDE // 2,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(32, 64),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            norm_num_groups=8,
        )
    )


def _llama(package: ModuleType) -> nn.Module:
    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 5, "num_attention_heads": 4}
    return Language(package.LlamaForCausalLM(package.LlamaConfig(vocab_size=WORDS, **sizes)))


def _bert(package: ModuleType) -> nn.Module:
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
    return Adapted(package.BertModel(package.BertConfig(vocab_size=WORDS, **sizes)))


def _gpt2(package: ModuleType) -> nn.Module:
    sizes = {"n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 2 * LENGTH}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return Language(package.GPT2LMHeadModel(package.GPT2Config(vocab_size=WORDS, **sizes, **ends)))


def _t5(package: ModuleType) -> nn.Module:
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    return Translator(package.T5ForConditionalGeneration(package.T5Config(vocab_size=WORDS, **sizes)))


STRANGERS = {
    "ResNet-18 with GroupNorm": Stranger(
        lambda: Classifier(resnet18()), ("pictures", "labels"), 32, must=1.5, aim=1.3, most_memory=900 / 299
    ),
    "ViT-tiny": Stranger(_from("torchvision", _vision), ("pictures", "labels"), package="torchvision", must=1.4, aim=1.2),
    "ViT-tiny of timm": Stranger(_from("timm", _timm_vision), ("pictures", "labels"), package="timm", must=1.4, aim=1.2),
    "UNet2D, DDPM": Stranger(_from("diffusers", _unet), ("digits",), package="diffusers", must=1.6, aim=1.3),
    "Llama": Stranger(_from("transformers", _llama), ("words",), package="transformers", must=1.4, aim=1.2),
    "BERT with LoRA": Stranger(
        _from("transformers", _bert), ("words", "labels"), package="transformers", must=1.06, aim=1.02
    ),
    "GPT-2": Stranger(_from("transformers", _gpt2), ("words",), package="transformers", must=1.3, aim=1.1),
    "T5": Stranger(_from("transformers", _t5), ("words",), package="transformers"),
    "Swin": Stranger(_from("torchvision", _swin), ("pictures", "labels"), package="torchvision"),
    "nn.TransformerEncoder": Stranger(Encoded, ("words", "labels")),
    "LSTM of characters": Stranger(Characters, ("words",)),
}


def _batch(records: tuple[Tensor, ...], lot: int) -> tuple[Tensor, ...]:
    chosen = torch.randint(len(records[0]), (lot,))
    return tuple(x[chosen] for x in records)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)


def plain_step(model: nn.Module, records: tuple[Tensor, ...], lot: int) -> Step:
    """Return a plain step on the mean loss."""
    optimizer = _adam(model)

    def step() -> None:
        optimizer.zero_grad()
        model(*_batch(records, lot)).mean().backward()
        optimizer.step()

    return step


def private_step(private: Private, model: nn.Module, records: tuple[Tensor, ...], lot: int) -> Step:
    """Return a private step on the losses of single records."""
    term = PerRecord(lambda lot, _: model(*(lot.records if isinstance(lot.records, tuple) else (lot.records,))))
    whole = records if len(records) > 1 else records[0]
    return private.step(model, whole, lot, FIXED, gradients=lambda lot, stream: (term_gradients(model, term, lot, stream),))


def opacus_step(model: nn.Module, records: tuple[Tensor, ...], lot: int, *, ghost: bool) -> Step:
    """Return the step under Opacus, by ghost clipping or by its default, gradients of each record."""
    optimizer = _adam(model)
    settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": lot}
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
        private = DPOptimizerFastGradientClipping(optimizer, **settings)
        loss_of = DPLossFastGradientClipping(wrapped, private, lambda losses, _: losses)
    else:
        wrapped, private = GradSampleModule(model), DPOptimizer(optimizer, **settings)

        def loss_of(losses: Tensor, _: None) -> Tensor:
            return losses.mean()

    def step() -> None:
        loss = loss_of(wrapped(*_batch(records, lot)), None)
        private.zero_grad(set_to_none=True)
        loss.backward()
        private.step()

    return step


def contenders(stranger: Stranger, private: Private) -> dict[str, Callable[[], Step]]:
    """Return what makes each contender's step."""
    records = tuple(records_of(kind) for kind in stranger.records)
    lot = stranger.lot
    return {
        "plain": lambda: plain_step(stranger.make(), records, lot),
        "private": lambda: private_step(private, stranger.make(), records, lot),
        "Opacus ghost": lambda: opacus_step(stranger.make(), records, lot, ghost=True),
        "Opacus hooks": lambda: opacus_step(stranger.make(), records, lot, ghost=False),
    }


def failure(make: Callable[[], Step]) -> str | None:
    """Return the kind and the first words of the error of a contender's first two steps; None where they run."""
    try:
        step = make()
        step()
        step()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    return None


def timed(steps: dict[str, Step], *, quick: bool) -> Result:
    """Time contenders over as many rounds as `_SECONDS` allow, and at least `_FEWEST`."""
    if quick:
        return ratios(steps, rounds=1, warmup=1)
    warm = ratios(steps, rounds=1, warmup=3)
    seconds = sum(sum(times) for times in warm.processor.values())
    return ratios(steps, rounds=max(_FEWEST, min(_MOST, int(_SECONDS / seconds))), warmup=0)


def memory(make: Callable[[], Step]) -> int:
    """Return the most bytes that the network and the state of a contender and three steps take."""

    def run() -> None:
        step = make()
        for _ in range(3):
            step()

    return peak_memory(run)


def installed(package: str | None) -> bool:
    """Return True for torch itself, and for a package that can be imported."""
    try:
        return package is None or bool(importlib.import_module(package))
    except ImportError:
        return False


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--only", default="", help="networks whose name contains this")
    options.add_argument("--alone", action="store_true", help="leave Opacus and memory out")
    arguments = options.parse_args()
    start(arguments)
    warnings.filterwarnings("ignore")
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        private = Private(Path(folder))
        for name, stranger in STRANGERS.items():
            if arguments.only not in name:
                continue
            if not installed(stranger.package):
                print(f"{name}: {stranger.package} is not installed")
                continue
            makers = contenders(stranger, private)
            if arguments.alone:
                makers = {which: makers[which] for which in ("plain", "private")}
            for which in [which for which in makers if which.startswith("Opacus")]:
                if (reason := failure(makers[which])) is not None:
                    print(f"{name}: {which} does not run ({reason})")
                    del makers[which]
            steps = {which: make() for which, make in makers.items()}
            result = timed(steps, quick=arguments.quick)
            weights = sum(p.numel() for p in stranger.make().parameters()) / 1e6
            milliseconds = ", ".join(f"{which} {result.milliseconds(which):.1f}" for which in makers)
            print(f"{name}, {weights:.1f} M weights, lot {stranger.lot} (ms): {milliseconds}", flush=True)
            for which in list(makers)[1:]:
                limits = (stranger.must, stranger.aim) if which == "private" else (None, None)
                lines.append(Line.of(f"{name}: {which} / plain", result.ratio(which, "plain"), *limits))
            if not arguments.alone:
                peaks = {which: memory(make) for which, make in makers.items()}
                print(
                    f"{name} (MB): " + ", ".join(f"{which} {peak / 1e6:.0f}" for which, peak in peaks.items()), flush=True
                )
                for which in list(makers)[1:]:
                    limit = stranger.most_memory if which == "private" else None
                    lines.append(Line(f"{name}, memory: {which} / plain", peaks[which] / peaks["plain"], limit))
    print(table(lines))


if __name__ == "__main__":
    main()
