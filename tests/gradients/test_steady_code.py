"""Python of a loss may be left out only if it does the same in every step: tables of losses that must be refused or seen."""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import itertools
import logging
import math
import os
import random
import threading
import time
import types
import warnings
import weakref

import networks
import numpy as np
import peers
import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torchmetrics import MeanMetric

from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.steady_code import SteadyCode
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

ROWS = torch.arange(20.0).view(4, 5).remainder(7.0) / 7


def watch(network, loss, records=ROWS, engine="ghost"):
    steady, term = SteadyCode(network), PerRecord(loss)
    lot = Lot(records, (0, 4))
    with warnings.catch_warnings(action="ignore"), steady.watching(loss):
        term_gradients(network, term, lot, PrivateStream(0), engine=engine)
    return steady


def loss_of(network):
    def loss(lot, _):
        return network(lot.records).square().flatten(1).sum(dim=1)

    return loss


class Base(nn.Module):
    """A network whose loss is in `forward`, with what a test needs beside its layers."""

    def __init__(self, **kept):
        super().__init__()
        self.layer = nn.Linear(5, 3)
        for name, x in kept.items():
            setattr(self, name, x)
        self.prepare()

    def prepare(self):
        pass

    def hidden(self, x):
        return self.layer(x)


# Ordinary networks, which must be accepted.


class Comprehension(Base):
    def prepare(self):
        self.layers = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])

    def forward(self, x):
        return sum([layer(x) for layer in self.layers]) + torch.stack([2 * layer(x) for layer in self.layers]).sum(dim=0)


class Loop(Base):
    def prepare(self):
        self.layers = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])

    def forward(self, x):
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


class Appends(Base):
    def forward(self, x):
        found = []
        for i in range(3):
            found.append(self.layer(x) * i)
        sizes = {}
        sizes["all"] = len(found)
        return torch.cat(found, dim=1) / sizes["all"]


class Shapes(Base):
    def forward(self, x):
        batch, width = x.shape
        assert x.dim() == 2 and width == 5
        return self.layer(x.reshape(batch, -1)) / math.sqrt(width)


class Convolutional(Base):
    def prepare(self):
        self.encoder = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.SiLU())
        self.decoder = nn.Sequential(nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x)) - x


class Frozen(Base):
    """Batch norm by public statistics, a frozen teacher, and dropout."""

    def prepare(self):
        self.norm = nn.BatchNorm1d(5).eval().requires_grad_(False)
        self.teacher = nn.Linear(5, 3).requires_grad_(False)
        self.drop = nn.Dropout(0.2)

    def forward(self, x):
        with torch.no_grad():
            aim = self.teacher(x)
        return self.layer(self.drop(self.norm(x))) - aim


class Buffered(Base):
    def prepare(self):
        self.register_buffer("mean", torch.zeros(5))
        self.scale = nn.Parameter(torch.ones(3))
        self.act = nn.functional.relu
        self.sizes = (2, 3)

    @property
    def factor(self):
        return 2.0

    def forward(self, x):
        if self.training and self.sizes[1] == 3:
            x = x + torch.randn_like(x) * 0.1
        return self.act(self.layer(x - self.mean)) * self.scale * self.factor


@dataclasses.dataclass
class Config:
    beta: float = 0.5
    widths: tuple = (1, 2)


class Configured(Base):
    def prepare(self):
        self.config, self.kind = Config(), Kind.LOUD

    def forward(self, x):
        return self.layer(x) * self.config.beta if self.kind is Kind.LOUD else self.layer(x)


class Kind(enum.Enum):
    LOUD = 1
    SILENT = 2


class VAE(pl.LightningModule):
    def __init__(self, beta=0.5):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
        self.decoder = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 5))
        self.beta = beta

    def encode(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        return mean, log_variance

    def reparametrise(self, mean, log_variance):
        return mean + torch.exp(0.5 * log_variance) * torch.randn(mean.shape, device=self.device)

    def training_step(self, batch, batch_idx):
        mean, log_variance = self.encode(batch)
        code = self.reparametrise(mean, log_variance)
        error = F.mse_loss(self.decoder(code), batch, reduction="none").sum(dim=1)
        kl = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(dim=1)
        return {"loss": error + self.beta * kl}


def step_of(module):
    return lambda lot, _: module.training_step(lot.records, 3)["loss"]


def _pictures():
    return torch.rand(4, 3, 32, 32), torch.randint(10, (4,))


def _of(network, records=ROWS):
    return network, loss_of(network), records


def _pairs(network, records):
    return network, lambda lot, _: network(*lot.records), records


def _lstm():
    net = nn.LSTM(3, 4, batch_first=True)
    return net, lambda lot, _: net(lot.records)[0].square().sum(dim=(1, 2)), torch.rand(4, 5, 3)


def _attention():
    net = nn.MultiheadAttention(4, 2, batch_first=True)
    return net, lambda lot, _: net(lot.records, lot.records, lot.records)[0].square().sum(dim=(1, 2)), torch.rand(4, 5, 4)


def _smoothed(weight=0.3):
    net = nn.Linear(5, 3)

    def loss(lot, _):
        x, y = lot.records
        return F.cross_entropy(net(x), y, reduction="none", label_smoothing=0.1) * weight

    return net, loss, (ROWS, torch.randint(3, (4,)))


def _gpt2():
    net = networks.GPT2(30, 16, 16, 2, 2)
    return net, lambda lot, _: net(lot.records), torch.randint(30, (4, 9))


def _vae():
    net = VAE()
    return net, step_of(net), ROWS


def _partial():
    net = nn.Linear(5, 3)
    return net, functools.partial(_with_net, net), ROWS


def _with_net(net, lot, _):
    return net(lot.records).square().sum(dim=1)


ORDINARY = {
    "MLP": lambda: _of(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 3))),
    "ResNet": lambda: _pairs(networks.Classifier(networks.resnet18(16)), _pictures()),
    "ViT": lambda: _pairs(networks.Classifier(networks.ViT(32, 16, 48, 2, 4)), _pictures()),
    "GPT-2": _gpt2,
    "ELBO": lambda: _of_elbo(),
    "VAE of Lightning": _vae,
    "convolutional": lambda: _of(Convolutional(), torch.rand(4, 1, 8, 8)),
    "LSTM": _lstm,
    "attention": _attention,
    "transformer layer": lambda: _of(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), torch.rand(4, 5, 4)),
    "label smoothing": _smoothed,
    "comprehension": lambda: _of(Comprehension()),
    "loop": lambda: _of(Loop()),
    "appends": lambda: _of(Appends()),
    "shapes": lambda: _of(Shapes()),
    "frozen parts": lambda: _of(Frozen()),
    "buffers": lambda: _of(Buffered()),
    "a dataclass and an enum": lambda: _of(Configured()),
    "a partial": _partial,
    "a parametrization": lambda: _of(parametrizations.weight_norm(nn.Linear(5, 3))),
}


def _of_elbo():
    net = networks.Elbo(peers.linear_vae(8))
    return net, lambda lot, _: net(lot.records), torch.rand(4, 784)


@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_networks_are_accepted(make):
    made = make()
    steady = watch(*made)
    assert steady.reason() is None and steady.changed() is None
