"""Python of a loss is left out only if it does the same in every step: losses that must be refused, or seen to change."""

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import gc
import importlib
import itertools
import logging
import math
import os
import random
import sys
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
from marks import only
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torchmetrics import MeanMetric

from lightning_dpgen.gradients import steady_code
from lightning_dpgen.gradients.engines import term_gradients
from lightning_dpgen.gradients.isolation import loss_call
from lightning_dpgen.gradients.steady_code import SteadyCode
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.sampling.lots import Lot

ROWS = torch.arange(20.0).view(4, 5).remainder(7.0) / 7


def watch(network, loss, records=ROWS, engine="ghost", steady=None):
    steady, term = steady or SteadyCode(network), PerRecord(loss)
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


class Weighted(Base):
    """Adds up in place, beside a list that lives on."""

    def prepare(self):
        self.weights, self.layers = [0.5, 2.0], nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])

    def forward(self, x):
        total, parts = 0.0, []
        for weight, layer in zip(self.weights, self.layers, strict=True):
            total += weight * layer(x)
            parts.append(total)
        return torch.cat(parts, dim=1)


class Shapes(Base):
    def forward(self, x):
        batch, width = x.shape
        if x.dim() != 2 or width != 5:
            raise ValueError(f"{x.shape}: expected (B, 5)")
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
    "weights in a list": lambda: _of(Weighted()),
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


@pytest.mark.parametrize("make", only(ORDINARY, *list(ORDINARY)[::5]))
def test_ordinary_networks_are_accepted(make):
    made = make()
    steady = watch(*made)
    if "lives on" in (steady.reason() or ""):
        watch(*made, steady=steady)
    assert steady.reason() is None and steady.changed() is None


# Losses that would do something else in a later step: refused, or seen to change by what happens to them.

SEEN: dict[str, object] = {}
STEP, SCALES, HISTORY, COUNTS, COUNTER = 1, [1.0, 2.0], [], {}, itertools.count()
GENERATOR = (x for x in itertools.count())
NUMPY = np.random.default_rng(0)


def net_of(forward, **kept):
    """Make a network of a class of its own from its `forward`."""
    return type("Net", (Base,), {"forward": forward})(**kept)


def seen(name):
    """Enter what makes a network, its loss and what happens to it later (or None) into the table."""

    def enter(make):
        SEEN[name] = make
        return make

    return enter


def forward(name, change=None, **kept):
    """Enter a `forward` into the table."""

    def enter(run):
        def make():
            net = net_of(run, **{key: x() if callable(x) and key[0] == "m" else x for key, x in kept.items()})
            return net, loss_of(net), None if change is None else functools.partial(change, net)

        SEEN[name] = make
        return run

    return enter


@forward("counts its calls")
def _(self, x):
    self.steps = getattr(self, "steps", 0) + 1
    return self.layer(x) * self.steps


@forward("a counter of a callback", lambda net: setattr(net, "steps", 2), steps=1)
def _(self, x):
    return self.layer(x) * self.steps


@forward("a name that may be another one", steps=1, word="steps")
def _(self, x):
    return self.layer(x) * getattr(self, self.word)


@forward("an attribute that appears later", lambda net: setattr(net, "extra", 2))
def _(self, x):
    return self.layer(x) * getattr(self, "extra", 1)


@forward("a class attribute that appears later", lambda net: setattr(type(net), "extra", 2))
def _(self, x):
    return self.layer(x) * (2 if hasattr(self, "extra") else 1)


@forward("vars", steps=1)
def _(self, x):
    return self.layer(x) * vars(self)["steps"]


@forward("__dict__", steps=1)
def _(self, x):
    return self.layer(x) * self.__dict__["steps"]


@forward("a list that changes", lambda net: net.scales.append(3), scales=[1, 2])
def _(self, x):
    return self.layer(x) * self.scales[-1]


@forward("a list that is written", scales=[1, 2])
def _(self, x):
    self.scales.append(1)
    return self.layer(x) * len(self.scales)


@forward("a list that is written through another name", scales=[1, 2])
def _(self, x):
    scales = self.scales
    scales += [1]
    return self.layer(x) * len(scales)


@forward("a dict that changes", lambda net: net.scales.update(a=3), scales={"a": 1})
def _(self, x):
    return self.layer(x) * self.scales["a"]


@forward("a dict that is written", scales={"a": 1})
def _(self, x):
    self.scales["a"] += 1
    return self.layer(x) * self.scales["a"]


@forward("a dict within a tuple", lambda net: net.scales[0].update(a=3), scales=({"a": 1},))
def _(self, x):
    return self.layer(x) * self.scales[0]["a"]


@forward("a deque", scales=collections.deque([1]))
def _(self, x):
    return self.layer(x) * self.scales[0]


@forward("a default dict", scales=collections.defaultdict(int))
def _(self, x):
    return self.layer(x) * (1 + self.scales["a"])


@forward("a dict of a class of its own", scales=type("Settings", (dict,), {})(a=1))
def _(self, x):
    return self.layer(x) * self.scales["a"]


@forward("a set", scales={1})
def _(self, x):
    return self.layer(x) * len(self.scales)


@forward("a set that is made", steps=1)
def _(self, x):
    return sum([self.layer(x) * y for y in {1, x.shape[1]}])


@forward("a settings object", lambda net: setattr(net.config, "beta", 2.0), config=Config())
def _(self, x):
    return self.layer(x) * self.config.beta


@forward("settings that are replaced", lambda net: setattr(net, "config", Config(2.0)), config=Config())
def _(self, x):
    return self.layer(x) * self.config.beta


@forward("a namespace", config=types.SimpleNamespace(beta=1))
def _(self, x):
    return self.layer(x) * self.config.beta


class Slotted:
    __slots__ = ("beta",)

    def __init__(self):
        self.beta = 1


@forward("an object with slots", config=Slotted())
def _(self, x):
    return self.layer(x) * self.config.beta


@forward("a global number", lambda net: globals().update(STEP=STEP + 1000))
def _(self, x):
    return self.layer(x) * STEP


@forward("a global list", lambda net: SCALES.append(1))
def _(self, x):
    return self.layer(x) * SCALES[-1]


@forward("a global that is written")
def _(self, x):
    global STEP
    STEP += 1
    return self.layer(x) * STEP


@forward("a global list that is written")
def _(self, x):
    HISTORY.append(1)
    return self.layer(x) * len(HISTORY)


@forward("an iterator")
def _(self, x):
    return self.layer(x) * next(COUNTER)


@forward("a generator")
def _(self, x):
    return self.layer(x) * (1 + next(GENERATOR))


@forward("a generator of its own", mgenerator=lambda: iter([1.0] * 100))
def _(self, x):
    return self.layer(x) * next(self.mgenerator)


@forward("random")
def _(self, x):
    return self.layer(x) * random.random()


@forward("a random choice")
def _(self, x):
    return self.layer(x) * random.choice((1, 2))


@forward("numpy's random numbers")
def _(self, x):
    return self.layer(x) * float(np.random.rand())


@forward("a generator of numpy")
def _(self, x):
    return self.layer(x) * float(NUMPY.random())


@forward("time")
def _(self, x):
    return self.layer(x) * (time.time() % 2)


@forward("the environment")
def _(self, x):
    return self.layer(x) * float(os.environ.get("SCALE", "1"))


@forward("print")
def _(self, x):
    print(x.shape)
    return self.layer(x)


@forward("logging")
def _(self, x):
    logging.getLogger().debug("here")
    return self.layer(x)


@forward("warnings", mseen=lambda: 1)
def _(self, x):
    with warnings.catch_warnings(action="ignore"):
        warnings.warn("here", stacklevel=1)
    return self.layer(x)


@forward("a thread")
def _(self, x):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    return self.layer(x)


@forward("an import")
def _(self, x):
    import fractions

    return self.layer(x) * float(fractions.Fraction(1, 2))


@forward("an import by a function")
def _(self, x):
    return self.layer(x) * importlib.import_module("math").pi


@forward("arguments of the program", lambda net: sys.argv.append("more"))
def _(self, x):
    return self.layer(x) * len(sys.argv)


@forward("an identity")
def _(self, x):
    return self.layer(x) * (1 + id(x) % 2)


@forward("the size of memory")
def _(self, x):
    return self.layer(x) * (1 + (gc.get_count()[0] > 100))


@functools.lru_cache
def _cached(n):
    return n * STEP


@forward("a function with a cache")
def _(self, x):
    return self.layer(x) * _cached(1)


@forward("a property with a cache", mseen=lambda: 1)
def _(self, x):
    return self.layer(x) * Cached().number


class Cached:
    @functools.cached_property
    def number(self):
        return STEP


def counting(f):
    calls = [0]

    @functools.wraps(f)
    def call(*args):
        calls[0] += 1
        return f(*args) * calls[0]

    return call


@forward("a decorator that counts")
@counting
def _(self, x):
    return self.layer(x)


def annealed(f):
    calls = 0

    @functools.wraps(f)
    def call(*args):
        nonlocal calls
        calls += 1
        return f(*args) * calls

    return call


@forward("a decorator with a number of its own")
@annealed
def _(self, x):
    return self.layer(x)


@forward("a decorator of torch around one that counts")
@torch.enable_grad()
@counting
def _(self, x):
    return self.layer(x)


def _scale(x, by=1.0, *, plus=0.0):
    return x * by + plus


def _set(name, value):
    return lambda net: setattr(_scale, name, value)


@forward("defaults", _set("__defaults__", (2.0,)))
def _(self, x):
    return _scale(self.layer(x))


@forward("defaults by name", lambda net: _scale.__kwdefaults__.update(plus=2.0))
def _(self, x):
    return _scale(self.layer(x))


@forward("another code", lambda net: setattr(_scale, "__code__", (lambda x, by=1.0, *, plus=0.0: x).__code__))
def _(self, x):
    return _scale(self.layer(x))


@forward("another function", lambda net: globals().update(_rebound=_scale))
def _(self, x):
    return _rebound(self.layer(x))


def _rebound(x):
    return x


@forward("a builtin that is hidden", lambda net: globals().update(sum=max))
def _(self, x):
    return sum([self.layer(x)])


@forward("an attribute of a function", lambda net: setattr(_rebound_with, "by", 3.0))
def _(self, x):
    return self.layer(x) * _rebound_with.by


def _rebound_with(x):
    return x


_rebound_with.by = 2.0


@forward("a partial with keywords", lambda net: net.scale.keywords.update(by=2.0), scale=functools.partial(_scale, by=1.0))
def _(self, x):
    return self.scale(self.layer(x))


@forward("a list within a partial", lambda net: net.scale.args[0].append(3), scale=functools.partial(max, [1, 2]))
def _(self, x):
    return self.layer(x) * self.scale()[-1] if False else self.layer(x) * len(self.scale.args[0])


class Scale:
    total = 1.0

    def __init__(self, by=1.0):
        self.by = by

    def __call__(self):
        return self.by

    def number(self):
        return self.by * self.total


class Counts(Scale):
    def __call__(self):
        self.by += 1.0
        return self.by


class Hidden:
    """Attributes that are found by code."""

    def __init__(self):
        self.values = {"by": 1.0}

    def __getattr__(self, name):
        return self.values[name]


class Intercepts:
    def __init__(self):
        self.by = 1.0

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@seen("a method of an object")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale(), scale=Scale().number)
    return net, loss_of(net), lambda: setattr(net.scale.__self__, "by", 2.0)


@seen("a class attribute of an object")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale.number(), scale=type("S", (Scale,), {})())
    return net, loss_of(net), lambda: setattr(type(net.scale), "total", 2.0)


@seen("an object that is called")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale(), scale=Scale())
    return net, loss_of(net), lambda: setattr(net.scale, "by", 2.0)


@seen("an object that counts")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale(), scale=Counts())
    return net, loss_of(net), None


@seen("__getattr__")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale.by, scale=Hidden())
    return net, loss_of(net), lambda: net.scale.values.update(by=2.0)


@seen("__getattribute__")
def _():
    net = net_of(lambda self, x: self.layer(x) * self.scale.by, scale=Intercepts())
    return net, loss_of(net), None


@seen("a loss that is an object with a state")
def _():
    net = nn.Linear(5, 3)

    class Loss:
        weight = 1.0

        def __call__(self, lot, _):
            return net(lot.records).square().sum(dim=1) * self.weight

    loss = Loss()
    return net, loss, lambda: setattr(loss, "weight", 2.0)


@seen("a method of an object as a loss")
def _():
    net = nn.Linear(5, 3)

    class Loss:
        def __init__(self):
            self.steps = 0

        def loss(self, lot, _):
            self.steps += 1
            return net(lot.records).square().sum(dim=1) * self.steps

    return net, Loss().loss, None


def _closure(change):
    def make():
        net, weight, settings = nn.Linear(5, 3), 1.0, {"weight": 1.0}

        def weighted(x):
            return x * weight * settings["weight"]

        def loss(lot, _):
            return weighted(net(lot.records).square().sum(dim=1))

        def later():
            nonlocal weight
            if change == "number":
                weight = 2.0
            elif change == "dict":
                settings["weight"] = 2.0
            else:
                weighted.__closure__[1].cell_contents = 3.0

        return net, loss, later

    return make


SEEN["a number in the closure of another function"] = _closure("number")
SEEN["a dict in a closure"] = _closure("dict")
SEEN["a cell that is written"] = _closure("cell")


@seen("a keyword of a partial that is the loss")
def _():
    net = nn.Linear(5, 3)

    def loss(lot, _, square=True):
        return net(lot.records).square().sum(dim=1) if square else net(lot.records).abs().sum(dim=1)

    partial = functools.partial(loss, square=True)
    return net, partial, lambda: partial.keywords.update(square=False)


@seen("another network in a closure")
def _():
    nets = [nn.Linear(5, 3), nn.Linear(5, 3).requires_grad_(False)]
    net, teacher = nets

    def loss(lot, _):
        return (net(lot.records) - teacher(lot.records)).square().sum(dim=1)

    def later():
        teacher.weight = nn.Parameter(torch.zeros(3, 5), requires_grad=False)

    return net, loss, later


@seen("a groups of an optimizer")
def _():
    net = nn.Linear(5, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return net, lambda lot, _: net(lot.records).square().sum(dim=1) * optimizer.param_groups[0]["lr"], None


# Changes of a network.


def _plain(self, x):
    return self.layer(x)


def _buffered(self, x):
    return self.layer(x) * self.scale


CHANGES = {
    "a layer that is replaced": lambda net: setattr(net, "layer", nn.Linear(5, 3)),
    "a parameter that is replaced": lambda net: setattr(net.layer, "weight", nn.Parameter(torch.ones(3, 5))),
    "a frozen parameter": lambda net: setattr(net, "held", nn.Parameter(torch.ones(3), requires_grad=False)),
    "weights that are tied": lambda net: setattr(net.layer, "weight", net.other.weight),
    "requires_grad": lambda net: net.layer.weight.requires_grad_(False),
    "another size": lambda net: setattr(net.layer.weight, "data", net.layer.weight.data[:2]),
    "other memory": lambda net: setattr(net.layer.weight, "data", torch.ones(3, 5)),
    "no bias": lambda net: setattr(net.layer, "bias", None),
    "a buffer that is replaced": lambda net: setattr(net, "scale", torch.tensor(1.0)),
    "a buffer more": lambda net: net.layer.register_buffer("more", torch.ones(1)),
    "a mode": lambda net: net.layer.eval(),
    "a hook": lambda net: net.layer.register_forward_hook(lambda *_: None),
    "a hook before": lambda net: net.layer.register_forward_pre_hook(lambda *_: None),
    "a parametrization": lambda net: parametrize.register_parametrization(net.layer, "weight", nn.Identity()),
    "another forward": lambda net: setattr(net.layer, "forward", lambda x: x[:, :3]),
    "another forward of its own": lambda net: setattr(net, "forward", lambda x: x[:, :3]),
    "another class": lambda net: setattr(net.layer, "__class__", type("Other", (nn.Linear,), {})),
    "another class of its own": lambda net: setattr(net, "__class__", type("Other", (type(net),), {})),
    "another method of the class": lambda net: setattr(type(net), "forward", lambda self, x: x[:, :3]),
    "a method of a base": lambda net: setattr(type(net), "hidden", lambda self, x: 2 * self.layer(x)),
    "a probability": lambda net: setattr(net.drop, "p", 0.9),
    "a deleted attribute": lambda net: delattr(net, "layer"),
    "all in half": lambda net: net.half(),
    "new memory of all": lambda net: net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True),
    "a module of its own": lambda net: net.add_module("more", nn.Linear(1, 1)),
    "eval": lambda net: net.eval(),
}


@pytest.mark.parametrize("change", only(CHANGES, *list(CHANGES)[::3]))
def test_a_network_that_changes(change):
    class Net(Base):
        def prepare(self):
            self.other, self.drop = nn.Linear(5, 3), nn.Dropout(0.1)
            self.held = nn.Parameter(torch.ones(3), requires_grad=False)
            self.register_buffer("scale", torch.tensor(1.0))

        def forward(self, x):
            return self.drop(self.hidden(x)) * self.scale * self.held + 0 * self.other(x)

    net = Net()
    steady = watch(net, loss := loss_of(net))
    assert steady.reason() is None and steady.changed() is None
    change(net)
    assert loss is not None and steady.changed() is not None


def test_torch_that_changes():
    net = nn.Linear(5, 3)
    steady = watch(net, loss := loss_of(net))
    assert loss is not None and steady.changed() is None
    with torch.no_grad():
        assert "state of torch" in steady.changed()
    with torch.autocast("cpu"):
        assert "state of torch" in steady.changed()
    with torch.device("meta"):
        assert "state of torch" in steady.changed()
    torch.set_default_dtype(torch.float64)
    try:
        assert "state of torch" in steady.changed()
    finally:
        torch.set_default_dtype(torch.float32)
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert "hook" in steady.changed()
    hook.remove()
    assert steady.changed() is None


# Numbers that are read, and what becomes part of the trained function.


@forward("a parameter's number", mscale=lambda: nn.Parameter(torch.tensor(2.0), requires_grad=False))
def _(self, x):
    return self.layer(x) * self.mscale.item()


@forward("a float of a tensor", mscale=lambda: torch.tensor(2.0))
def _(self, x):
    return self.layer(x) * float(self.mscale)


@forward("a condition on a tensor", mscale=lambda: torch.tensor(2.0))
def _(self, x):
    return self.layer(x) if self.mscale > 1 else self.layer(x) * 2


@forward("a tensor as a size", mscale=lambda: torch.tensor(2))
def _(self, x):
    return self.layer(x) * len(range(self.mscale))


@forward("a tensor as an index", mscale=lambda: torch.tensor(1))
def _(self, x):
    return self.layer(x) * (1.0, 2.0)[self.mscale]


@forward("a tensor as text", mscale=lambda: torch.tensor(1.0))
def _(self, x):
    return self.layer(x) * len(f"{self.mscale:.3f}")


@forward("a tensor as a list", mscale=lambda: torch.ones(2))
def _(self, x):
    return self.layer(x) * self.mscale.tolist()[0]


@forward("a tensor of numpy", mscale=lambda: torch.ones(2))
def _(self, x):
    return self.layer(x) * float(self.mscale.numpy()[0])


@forward("a tensor by numpy", mscale=lambda: torch.ones(2))
def _(self, x):
    return self.layer(x) * float(np.asarray(self.mscale)[0])


@forward("dlpack", mscale=lambda: torch.ones(2))
def _(self, x):
    return self.layer(x) * float(np.from_dlpack(self.mscale)[0])


@forward("a number as an argument", mscale=lambda: torch.tensor(0.1))
def _(self, x):
    return F.leaky_relu(self.layer(x), self.mscale)


@forward("a tensor of a tensor", mscale=lambda: torch.tensor(0.1))
def _(self, x):
    return self.layer(x) * torch.tensor([self.mscale, self.mscale, 1.0])


@forward("a mask of public numbers", mscale=lambda: torch.arange(3.0))
def _(self, x):
    return self.layer(x)[:, :2] * self.mscale[self.mscale > 0.5]


@forward("equal", mscale=lambda: torch.arange(3.0))
def _(self, x):
    return self.layer(x) if torch.equal(self.mscale, self.mscale) else x


@forward("an array", scale=np.ones(3, dtype=np.float32))
def _(self, x):
    return self.layer(x) * torch.from_numpy(self.scale)


@forward("a moving average", mscale=lambda: nn.Buffer(torch.ones(3)))
def _(self, x):
    self.mscale.mul_(0.9)
    return self.layer(x) * self.mscale


@forward("an element of a buffer", mscale=lambda: nn.Buffer(torch.ones(3)))
def _(self, x):
    self.mscale[1] = 0.5
    return self.layer(x) * self.mscale


@forward("a buffer that counts", mscale=lambda: nn.Buffer(torch.ones(())))
def _(self, x):
    self.mscale += 1
    return self.layer(x) * self.mscale


@forward("a mode that is set")
def _(self, x):
    self.train(not self.training)
    return self.layer(x)


@forward("a hook that is set")
def _(self, x):
    self.layer.register_forward_hook(lambda *_: None)
    return self.layer(x)


@forward("a buffer that is registered")
def _(self, x):
    self.register_buffer("last", torch.zeros(1))
    return self.layer(x)


@forward("a metric", mmetric=MeanMetric)
def _(self, x):
    self.mmetric.update(1.0)
    return self.layer(x)


@forward("memory")
def _(self, x):
    return self.layer(x) * (1 + torch.cuda.memory_allocated() % 2)


@forward("a file of torch")
def _(self, x):
    return self.layer(x) * torch.load("there")


@forward("a spectral norm", mnormed=lambda: parametrizations.spectral_norm(nn.Linear(5, 3)))
def _(self, x):
    return self.layer(x) + self.mnormed(x)


@forward("an average of a network", maverage=lambda: torch.optim.swa_utils.AveragedModel(nn.Linear(5, 3)))
def _(self, x):
    return self.layer(x) + self.maverage(x)


class Threads(nn.DataParallel):
    """A layer of torch whose code runs in threads, under another name."""


@forward("threads of torch", mthreads=lambda: Threads(nn.Linear(5, 3)))
def _(self, x):
    return self.layer(x) + self.mthreads(x)


@forward("the standard library called by a library")
def _(self, x):
    with contextlib.ExitStack() as stack:
        stack.callback(random.seed, 1)
        return self.layer(x)


@forward("a tensor kept aside", lambda net: net.kept.update(a=torch.ones(3)), kept={"a": torch.zeros(3)})
def _(self, x):
    return self.layer(x) + self.kept["a"]


@forward("a tensor that is replaced", lambda net: setattr(net, "kept", torch.ones(3)), kept=torch.zeros(3))
def _(self, x):
    return self.layer(x) + self.kept


@forward("modules in a list", lambda net: net.others.reverse(), others=[nn.Tanh(), nn.ReLU()])
def _(self, x):
    return self.others[0](self.layer(x))


@forward("a hook on a gradient")
def _(self, x):
    y = self.layer(x)
    y.register_hook(lambda g: g * STEP)
    return y


class Own(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * STEP

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * STEP


@forward("a function with a backward pass of its own")
def _(self, x):
    return Own.apply(self.layer(x))


@contextlib.contextmanager
def _counted():
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    yield


@forward("a context that counts")
def _(self, x):
    with _counted():
        return self.layer(x) * COUNTS["calls"]


@forward("code as text")
def _(self, x):
    return self.layer(x) * eval("STEP")


@forward("globals")
def _(self, x):
    return self.layer(x) * globals()["STEP"]


@forward("a frame")
def _(self, x):
    import sys

    return self.layer(x) * len(sys._getframe().f_code.co_name)


# Training steps of Lightning.

# Stand-ins for code of this package: the call of a training step with the number of the lot, and its log.
_OURS = {"__name__": "lightning_dpgen.plugins.automatic_module", "numbers": itertools.count()}
exec(
    "def stand_in(step):\n    def loss(lot, noise):\n        return step(lot.records, next(numbers))\n    return loss\n"
    "def log(*_):\n    pass\n",
    _OURS,
)


def lightning(name, step, change=None, **kept):
    def make():
        module = type("Module", (VAE,), {"training_step": step})()
        for key, x in kept.items():
            setattr(module, key, x)
        return (
            module,
            lambda lot, _: module.training_step(lot.records, len(HISTORY)),
            change and functools.partial(change, module),
        )

    SEEN[f"Lightning: {name}"] = make


class _Trainer:
    current_epoch = global_step = 0


def _error(self, batch):
    return (self.decoder(self.encode(batch)[0]) - batch).square().sum(dim=1)


lightning(
    "the number of a tensor in a log",
    lambda self, batch, i: (self.log("a", float(batch.sum())), _error(self, batch))[1],
    log=_OURS["log"],
)
lightning("epoch", lambda self, batch, i: _error(self, batch) * (1 + self.current_epoch), _trainer=_Trainer())
lightning("steps", lambda self, batch, i: _error(self, batch) * (1 + self.global_step), _trainer=_Trainer())
lightning("trainer", lambda self, batch, i: _error(self, batch) * (1 + self.trainer.current_epoch), _trainer=_Trainer())
lightning(
    "kept trainer", lambda self, batch, i: _error(self, batch) * (1 + self.own.current_epoch), own=pl.Trainer(logger=False)
)
lightning("hparams", lambda self, batch, i: _error(self, batch) * self.hparams.get("beta", 1.0))
lightning("a number", lambda self, batch, i: _error(self, batch) * self.beta, lambda net: setattr(net, "beta", 0.9))


@forward("a tensor as an index of a tensor", mscale=lambda: torch.tensor(1))
def _(self, x):
    return self.layer(x)[:, self.mscale, None]


@forward("a tensor as the end of a slice", mscale=lambda: torch.tensor(1))
def _(self, x):
    return self.layer(x)[:, : self.mscale]


@forward("a tensor as a shape", mscale=lambda: torch.tensor(3))
def _(self, x):
    return self.layer(x).view(-1, self.mscale)


@forward("a tensor as a shape of zeros", mscale=lambda: torch.tensor(3))
def _(self, x):
    return self.layer(x) + torch.zeros(self.mscale)


@forward("the old way to make a tensor", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) * torch.Tensor([self.mscale, 1.0, 1.0])


@forward("a new tensor of a tensor", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) * x.new_tensor([self.mscale, 1.0, 1.0])


@forward("filled with a tensor", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) * torch.full((3,), self.mscale)


@forward("a range of a tensor", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) * torch.arange(self.mscale)


@forward("alpha", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return torch.add(self.layer(x), 1.0, alpha=self.mscale)


@forward("max of tensors", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) * max(self.mscale, 2.0)


@forward("a tensor in a list", mscale=lambda: torch.tensor(3.0))
def _(self, x):
    return self.layer(x) if self.mscale in [1.0, 3.0] else x


@forward("where", mscale=lambda: torch.tensor([3.0, 0.0]))
def _(self, x):
    return self.layer(x) * len(torch.where(self.mscale)[0])


@forward("repeated by a tensor", mscale=lambda: torch.tensor([1, 2]))
def _(self, x):
    return self.layer(x) * torch.repeat_interleave(torch.ones(2), self.mscale)


@forward("split by a tensor", mscale=lambda: torch.tensor([1, 2]))
def _(self, x):
    return torch.tensor_split(self.layer(x), self.mscale, dim=1)[0]


@forward("one hot", mscale=lambda: torch.tensor([1, 2]))
def _(self, x):
    return self.layer(x) * F.one_hot(self.mscale).sum()


# The default suite has every eighth.
@pytest.mark.parametrize("make", only(SEEN, *list(SEEN)[::8]))
def test_losses_that_change_are_refused_or_seen(make):
    before = {name: globals()[name] for name in ("STEP", "_rebound")}
    arguments, parts = list(sys.argv), (_scale.__code__, _scale.__defaults__, dict(_scale.__kwdefaults__))
    net, loss, change = make()
    try:
        try:
            steady = watch(net, loss)
            # A second call decides what one leaves open.
            steady = steady if steady.reason() is None else watch(net, loss, steady=steady)
        except (ValueError, RuntimeError, FileNotFoundError, TypeError):
            # The engine refuses it itself.
            return
        if change is None:
            assert steady.reason() is not None
        elif steady.reason() is None:
            assert steady.changed() is None
            change()
            assert steady.changed() is not None
    finally:
        globals().update(before)
        globals().pop("sum", None)
        sys.argv[:] = arguments
        _scale.__code__, _scale.__defaults__, _scale.__kwdefaults__ = parts


# The number of a lot, which the stand-in of a training step hands on.


def _to_text(self, batch, batch_idx):
    return _error(self, batch) * len(f"{batch_idx}")


def _as_range(self, batch, batch_idx):
    return _error(self, batch) * (1 + len(range(batch_idx)))


def _as_index(self, batch, batch_idx):
    return _error(self, batch) * (1.0, 2.0)[batch_idx % 2]


def _as_bits(self, batch, batch_idx):
    return _error(self, batch) if batch_idx & 1 else 2 * _error(self, batch)


def _in_a_tuple(self, *both):
    return _error(self, both[0]) * (1 + both[1])


def _by_default(self, batch, batch_idx=0):
    return _error(self, batch) * (1 + batch_idx)


def _to_another(self, batch, batch_idx):
    return _times(_error(self, batch), batch_idx)


def _times(x, number):
    return x * (1 + number)


def _inside(self, batch, batch_idx):
    return (lambda x: x * (1 + batch_idx))(_error(self, batch))


@torch.enable_grad()
def _decorated(self, batch, batch_idx):
    return _error(self, batch) * (1 + batch_idx)


NUMBERED = [_to_text, _as_range, _as_index, _as_bits, _in_a_tuple, _by_default, _to_another, _inside, _decorated]


@pytest.mark.parametrize("step", NUMBERED)
def test_the_number_of_a_lot(step):
    module = type("Module", (VAE,), {"training_step": step})()
    loss = _OURS["stand_in"](module.training_step)
    try:
        steady = watch(module, loss)
    except ValueError:
        return
    assert "batch" in steady.reason()


def _unread(self, batch, batch_idx):
    del batch_idx
    return _error(self, batch)


@pytest.mark.parametrize("step", [VAE.training_step, _unread])
def test_a_number_that_is_not_read(step):
    class Module(VAE):
        def training_step(self, batch, batch_idx):
            found = super().training_step(batch, None)
            return found["loss"] if isinstance(found, dict) else found

    module = Module() if step is VAE.training_step else type("Module", (VAE,), {"training_step": step})()
    loss = _OURS["stand_in"](module.training_step)
    steady = watch(module, loss)
    assert steady.reason() is None and steady.changed() is None


def test_nothing_is_kept_alive():
    class Net(Base):
        def prepare(self):
            self.drop, self.kept = nn.Dropout(0.1), {"a": torch.ones(3)}
            self.others = [nn.Tanh()]

        def forward(self, x):
            return self.others[0](self.drop(self.layer(x))) * self.kept["a"]

    net = Net()
    records = torch.rand(4, 5)
    alive = [weakref.ref(x) for x in (*net.modules(), *net.parameters(), net.others[0], net.kept["a"], records)]
    steady = watch(net, loss := loss_of(net), records)
    assert steady.changed() is None
    del net, loss, records
    gc.collect()
    assert [x() for x in alive] == [None] * len(alive)
    assert "gone" in steady.changed()


def test_nothing_was_watched():
    steady = SteadyCode(nn.Linear(1, 1))
    assert steady.reason() == steady.changed() == "no loss was watched"


def test_an_earlier_profiler_is_put_back():
    calls, net = [], nn.Linear(5, 3)
    loss, before = loss_of(net), sys.getprofile()

    def profiler(*event):
        calls.append(event)

    sys.setprofile(profiler)
    try:
        steady = watch(net, loss)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert steady.reason() is None


def test_a_profiler_that_the_loss_starts():
    net = nn.Linear(5, 3)

    def loss(lot, _):
        sys.setprofile(None)
        return net(lot.records).square().sum(dim=1)

    assert watch(net, loss).reason() is not None


def test_a_file_named_like_one_of_python(tmp_path):
    """Code of ``profile.py`` beside a script is not that of the standard library."""
    (tmp_path / "profile.py").write_text("steps = [0]\ndef loss(x):\n    steps[0] += 1\n    return x * steps[0]\n")
    space = {"__name__": "profile", "__file__": str(tmp_path / "profile.py")}
    exec(compile((tmp_path / "profile.py").read_text(), space["__file__"], "exec"), space)
    net, scale = nn.Linear(5, 3), space["loss"]
    assert "profile.py:3" in watch(net, lambda lot, _: scale(net(lot.records).square().sum(dim=1))).reason()


def test_reasons_name_the_line():
    net, scales = nn.Linear(5, 3), []

    def loss(lot, _):
        scales.append(1)
        return net(lot.records).square().sum(dim=1) * len(scales)

    line = loss.__code__.co_firstlineno + 1
    assert watch(net, loss).reason() == (
        f"test_steady_code.py:{line} (loss) may write into a list or dict, and scales lives on: make that a tuple, or "
        "build the other one without writing into it"
    )


def test_a_list_that_is_filled_once():
    net, found = nn.Linear(5, 3), {}

    def loss(lot, _):
        if "scale" not in found:
            found["scale"] = 2.0
        return net(lot.records).square().sum(dim=1) * found["scale"]

    steady = watch(net, loss)
    assert "lives on" in steady.reason()
    assert watch(net, loss, steady=steady).reason() is None
    found["scale"] = 3.0
    assert "found" in steady.changed()


def test_a_number_drawn_on_the_processor():
    """It would be a constant of what is captured on a device, for which "meta" stands here."""
    net, told = nn.Linear(2, 2, device="meta"), []
    with steady_code._Operations(net, told.append):
        net(torch.ones(1, 2, device="meta") * torch.tensor(2.0))
        assert told == []
        torch.rand(())
        torch.tensor(2.0).to("meta")
        torch.ones(2).to("meta")
    assert len(told) == 3 and all("on the processor" in what for what in told)


def test_an_attribute_of_lightning_that_appears_later():
    class Module(VAE):
        def training_step(self, batch, batch_idx):
            return _error(self, batch) * getattr(self, "scale", 1.0)

    module = Module()
    loss = _OURS["stand_in"](module.training_step)
    steady = watch(module, loss)
    module.other = 1.0
    assert steady.changed() is None
    module.scale = 2.0
    assert steady.changed() == "a name that the loss looks up was added"


def test_watching_several_losses():
    net, parts = nn.Linear(5, 3), [1.0]

    def first(lot, _):
        return net(lot.records).square().sum(dim=1)

    def second(lot, _):
        return net(lot.records).abs().sum(dim=1) * parts[0]

    steady = SteadyCode(net)
    for loss in (first, second):
        with steady.watching(first, second), warnings.catch_warnings(action="ignore"):
            term_gradients(net, PerRecord(loss), Lot(ROWS, (0, 4)), PrivateStream(0))
    assert steady.reason() is None and steady.changed() is None
    parts[0] = 2.0
    assert steady.changed() == "parts has changed"


def test_code_that_a_collection_of_garbage_runs_is_no_part_of_a_loss(monkeypatch):
    """Finalisers and callbacks of the collector run wherever it starts, which is before a lot."""
    counts = []

    def count(phase, info):
        counts.append(phase)

    monkeypatch.setattr(loss_call, "_YOUNG", -1)
    network = nn.Linear(5, 3)
    gc.callbacks.append(count)
    try:
        steady = watch(network, loss := loss_of(network))
    finally:
        gc.callbacks.remove(count)
    assert counts and steady.reason() is None, loss


def test_named_tuples_that_a_library_makes_are_no_part_of_a_loss():
    """Their constructor has a namespace of its own, and libraries make some once, such as signatures."""
    pair = collections.namedtuple("pair", "a b")
    frame = []
    constructor = pair.__new__

    def profile(seen, event, argument):
        if event == "call" and seen.f_code is constructor.__code__:
            frame.append(seen)

    sys.setprofile(profile)
    pair(1, 2)
    sys.setprofile(None)
    assert frame and not steady_code._is_user(frame[0], set())
