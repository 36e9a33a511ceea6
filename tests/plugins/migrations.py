"""Scripts written for Opacus, run under Opacus and here: the table of refusals in docs/how_to/move_from_opacus.md."""

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from opacus import GradSampleModule, PrivacyEngine
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from lightning_dpgen import Account, AccountEngine, Fixed, PrivateOptimizer, PrivateTraining, make_plan, training_stage

N = 60
RECORDS = (
    torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
    torch.arange(N) % 2,
)
SETTINGS = {"n": N, "epsilon": 8.0, "delta": 1e-4, "sample_rate": 0.2, "steps": 3, "clipping": Fixed(1.0)}
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def make_network(norm=None):
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm or nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))


def make_loader(**options):
    return DataLoader(TensorDataset(*RECORDS), **{"batch_size": 12} | options)


class Module(pl.LightningModule):
    def __init__(self, network=None, loss=None, optimizer=torch.optim.Adam, scheduler=None):
        super().__init__()
        self.network, self.loss, self.chosen = network or make_network(), loss or of_each, (optimizer, scheduler)

    def training_step(self, batch, batch_idx):
        return self.loss(self.network, *batch)

    def configure_optimizers(self):
        optimizer, scheduler = self.chosen
        made = optimizer(self.parameters())
        return made if scheduler is None else {"optimizer": made, "lr_scheduler": scheduler(made)}


def of_each(network, x, y):
    return F.cross_entropy(network(x), y, reduction="none")


def contrast(network, x, y):
    codes = network(x)
    return F.cross_entropy(codes @ codes.T, torch.arange(len(x)), reduction="none")


def centred(network, x, y):
    scores = network(x)
    return F.cross_entropy(scores - scores.mean(dim=0), y, reduction="none")


def mixed_up(network, x, y):
    return F.cross_entropy(network(0.9 * x + 0.1 * x[torch.randperm(len(x))]), y, reduction="none")


def looking(network, x, y):
    losses = of_each(network, x, y)
    network.largest = losses.max().item()
    return losses


def fit(module=None, records=RECORDS, loader=None, **options):
    """Fit with a PrivateTraining."""
    private = PrivateTraining(records, **SETTINGS)
    trainer = pl.Trainer(
        callbacks=[private.callback(), *options.pop("callbacks", [])], accelerator="cpu", **QUIET | options
    )
    trainer.fit(module or Module(), loader or private.loader())


def train(step=None, network=None, make_optimizer=None, **arguments):
    """Train by a loop for Opacus under an AccountEngine."""
    account = Account(make_plan([training_stage(Fixed(1.0), n=N, sample_rate=0.2, steps=5)], epsilon=8.0, delta=1e-4))
    network = network or make_network()
    given = {"data_loader": make_loader(), "max_grad_norm": 1.0} | arguments
    made = (make_optimizer or torch.optim.SGD)(network.parameters(), lr=0.1)
    loop(*AccountEngine(account).make_private(module=network, optimizer=made, **given), step or one_step)


def train_by_opacus(step=None, network=None, **arguments):
    """Train by the same loop under Opacus' own engine."""
    network = network or make_network()
    given = {"data_loader": make_loader(), "noise_multiplier": 1.0, "max_grad_norm": 1.0} | arguments
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    made = PrivacyEngine(accountant="rdp").make_private(module=network, optimizer=optimizer, **given)
    loop(*made[:3], step or one_step)


def loop(network, optimizer, loader, step):
    for x, y in loader:
        if len(x):
            step(network, optimizer, x, y)


def one_step(network, optimizer, x, y, loss=of_each):
    optimizer.zero_grad()
    loss(network, x, y).mean().backward()
    optimizer.step()


def with_loss(loss):
    return lambda network, optimizer, x, y: one_step(network, optimizer, x, y, loss)


def two_steps(network, optimizer, x, y):
    one_step(network, optimizer, x, y)
    one_step(network, optimizer, x, y)


def no_step(network, optimizer, x, y):
    optimizer.zero_grad()
    of_each(network, x, y).mean().backward()


def half(network, optimizer, x, y):
    one_step(network, optimizer, x[::2], y[::2])


def of_opacus(parameters, lr=0.1):
    return DPOptimizer(torch.optim.SGD(parameters, lr=lr), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=12)


def less_noise(network, optimizer, x, y):
    one_step(network, optimizer, x, y)
    ExponentialNoise(optimizer, gamma=0.9).step()


def hand_ours_to_opacus():
    account = Account(make_plan([training_stage(Fixed(1.0), n=N, sample_rate=0.2, steps=5)], epsilon=8.0, delta=1e-4))
    network = make_network()
    ours = PrivateOptimizer(torch.optim.SGD(network.parameters(), lr=0.1), account=account, clipping=Fixed(1.0))
    PrivacyEngine().make_private(
        module=network, optimizer=ours, data_loader=make_loader(), noise_multiplier=1.0, max_grad_norm=1.0
    )


def ask_for_epsilon():
    account = Account(make_plan([training_stage(Fixed(1.0), n=N, sample_rate=0.2, steps=5)], epsilon=8.0, delta=1e-4))
    AccountEngine(account).make_private_with_epsilon(target_epsilon=8.0, target_delta=1e-4, epochs=1)


def batch_norm():
    return make_network(nn.BatchNorm2d(4))


def instance_norm():
    return make_network(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))


def weighted():
    return make_loader(sampler=WeightedRandomSampler([1.0] * N, N))


# The first cell of each row of the table, what is done here, and what is done under Opacus (None: nothing like it).
CASES = {
    "`nn.BatchNorm2d` in train mode": (
        lambda: fit(Module(batch_norm())), lambda: train_by_opacus(network=batch_norm()),
    ),
    "`nn.InstanceNorm2d(track_running_stats=True)`": (
        lambda: fit(Module(instance_norm())), lambda: train_by_opacus(network=instance_norm()),
    ),
    "a loss that compares records (contrastive, `z @ z.T`)": (
        lambda: fit(Module(loss=contrast)), lambda: train_by_opacus(with_loss(contrast)),
    ),
    "a mean over the batch within the loss": (
        lambda: fit(Module(loss=centred)), lambda: train_by_opacus(with_loss(centred)),
    ),
    "mixup of the records of a batch": (lambda: fit(Module(loss=mixed_up)), lambda: train_by_opacus(with_loss(mixed_up))),
    "`loss.item()` in `training_step`": (lambda: fit(Module(loss=looking)), lambda: train_by_opacus(with_loss(looking))),
    "a network in `GradSampleModule`": (lambda: fit(Module(GradSampleModule(make_network()))), None),
    "`configure_optimizers` returns Opacus' optimizer": (lambda: fit(Module(optimizer=of_opacus)), None),
    "a `DataLoader` in the place of the records": (lambda: fit(records=make_loader()), None),
    "a `DataLoader` in `Trainer.fit`": (lambda: fit(loader=make_loader()), None),
    "`Trainer(accumulate_grad_batches=4)`": (lambda: fit(accumulate_grad_batches=4), None),
    "`Trainer(gradient_clip_val=1.0)`": (lambda: fit(gradient_clip_val=1.0), None),
    "`EarlyStopping(\"loss\")`": (lambda: fit(callbacks=[pl.callbacks.EarlyStopping("loss")]), None),
    "`make_private_with_epsilon(...)`": (ask_for_epsilon, None),
    "`noise_multiplier=2.5`": (lambda: train(noise_multiplier=2.5), lambda: train_by_opacus(noise_multiplier=2.5)),
    "`ExponentialNoise(optimizer, gamma=0.9)`": (lambda: train(less_noise), lambda: train_by_opacus(less_noise)),
    "`poisson_sampling=False`": (
        lambda: train(poisson_sampling=False), lambda: train_by_opacus(poisson_sampling=False),
    ),
    "`clipping=\"per_layer\"`": (
        lambda: train(clipping="per_layer"), lambda: train_by_opacus(clipping="per_layer", max_grad_norm=[1.0] * 4),
    ),
    "a loader with `WeightedRandomSampler`": (
        lambda: train(data_loader=weighted()), lambda: train_by_opacus(data_loader=weighted()),
    ),
    "two steps with one batch": (lambda: train(two_steps), lambda: train_by_opacus(two_steps)),
    "a batch without a step": (lambda: train(no_step), lambda: train_by_opacus(no_step)),
    "some rows of a batch left out": (lambda: train(half), lambda: train_by_opacus(half)),
    "Opacus' optimizer handed to `AccountEngine`": (lambda: train(make_optimizer=of_opacus), None),
    "a `PrivateOptimizer` handed to `PrivacyEngine`": (hand_ours_to_opacus, None),
}  # fmt: skip
