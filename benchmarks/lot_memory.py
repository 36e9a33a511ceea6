"""Memory of a fit on large lots that are taken in parts, beside that of lots as large as a part.

    python benchmarks/lot_memory.py             three minutes of processor time
    python benchmarks/lot_memory.py --quick     that it runs

Each fit has a process of its own. Its memory is the largest resident size, beyond the size before the fit (`/proc`, so on
Linux alone): records, imports and torch itself are there by then. A VAE is a family of `dpgen train`, and ResNet-18 a
module of anybody's under `PrivateTraining`. Its records are bytes, as are those of the VAE.
"""

from __future__ import annotations

import multiprocessing
import re
import time
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from interleaved import Line, parser, start, table
from networks import resnet18
from torch import Tensor, nn

from lightning_dpgen import (
    VAE,
    Account,
    Fixed,
    ImageSchema,
    MomentsAccountant,
    PrivateSplitDataModule,
    PrivateTraining,
    SplitSettings,
    encode_images,
    make_plan,
    training_stage,
)

RECORDS, PART, RULE = 20_000, 64, Fixed(1.0)
# Family, expected lot, part (None for a lot in one piece), steps.
CASES = [
    ("VAE 784-200-2", 64, None, 2),
    ("VAE 784-200-2", 16_384, PART, 2),
    ("VAE 784-200-2", 16_384, None, 2),
    ("ResNet-18", 64, None, 2),
    ("ResNet-18", 16_384, PART, 1),
    ("ResNet-18", 512, None, 1),
]
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(pl.LightningModule):
    """ResNet-18 with the first layers that it has for large pictures, on small ones: a step of 16,384 takes a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.network = resnet18()
        self.network[0] = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.network[2] = nn.Sequential(nn.ReLU(), nn.MaxPool2d(3, 2, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        pictures, labels = batch
        return F.cross_entropy(self.network(pictures / 255), labels, reduction="none")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def _trainer(callback: pl.Callback) -> pl.Trainer:
    return pl.Trainer(callbacks=[callback], accelerator="cpu", **QUIET)


def fit_vae(lot: int, part: int | None, steps: int) -> float:
    """Fit a VAE, and return the resident size before it, in MB."""
    schema, split = ImageSchema(28, 28, levels=255), SplitSettings(k=1)
    records = encode_images(torch.randint(0, 256, (RECORDS, 28, 28), dtype=torch.uint8).numpy(), None, schema)
    stage = training_stage(RULE, n=RECORDS, sample_rate=lot / RECORDS, steps=steps)
    account = Account(make_plan([*split.specs(RECORDS), stage], epsilon=8.0, delta=1e-6))
    module = VAE(schema, account, RULE, k=1, hidden=200, latent=2, bias="learned", micro_batch=part)
    data, before = PrivateSplitDataModule(records, split, account), _megabytes("VmRSS")
    _trainer(MomentsAccountant(account)).fit(module, data)
    return before


def fit_resnet(lot: int, part: int | None, steps: int) -> float:
    """Fit ResNet-18, and return the resident size before it, in MB."""
    pictures, labels = torch.randint(0, 256, (RECORDS, 3, 32, 32), dtype=torch.uint8), torch.arange(RECORDS) % 10
    private = PrivateTraining(
        (pictures, labels), n=RECORDS, epsilon=8, delta=1e-6, sample_rate=lot / RECORDS, steps=steps, clipping=RULE,
        micro_batch=part,
    )  # fmt: skip
    module, before = Classifier(), _megabytes("VmRSS")
    _trainer(private.callback()).fit(module, private.loader())
    return before


def _megabytes(name: str) -> float:
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


def run(case: tuple[str, int, int | None, int], results: multiprocessing.SimpleQueue) -> None:
    """Make one fit, and report its memory in MB and its processor seconds a step."""
    family, lot, part, steps = case
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    begin = time.process_time()
    before = (fit_vae if family.startswith("VAE") else fit_resnet)(lot, part, steps)
    results.put((_megabytes("VmHWM") - before, (time.process_time() - begin) / steps))


def main() -> None:
    arguments = parser(__doc__).parse_args()
    start(arguments)
    cases = [("VAE 784-200-2", 256, PART, 1)] if arguments.quick else CASES
    context, lines = multiprocessing.get_context("spawn"), []
    for family, lot, part, steps in cases:
        results = context.SimpleQueue()
        process = context.Process(target=run, args=((family, lot, part, steps), results))
        process.start()
        memory, seconds = results.get()
        process.join()
        pieces = "in one piece" if part is None else f"in parts of {part}"
        lines.append(Line(f"{family}, lot {lot:,} {pieces}: MB of a fit ({seconds:.1f} s a step)", memory))
    print(table(lines))


if __name__ == "__main__":
    main()
