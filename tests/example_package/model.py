"""The simplest mixture: numbers and choices of a record are independent within a component."""

import torch
from torch import nn

from lightning_dpgen import PerRecord, PrivateMixture
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.outputs import cross_entropy, logits, means


class Independent(nn.Module):
    """The network that is released: k rows of logits."""

    kind = "example_package.model:Independent"

    def __init__(self, schema, k, *, sharpness=1.0):
        super().__init__()
        self.schema, self.k, self.settings = schema, k, {"sharpness": sharpness}
        self.logits = nn.Parameter(torch.zeros(k, schema.layout.width))

    @torch.no_grad()
    def start_at(self, means):
        self.logits.copy_(logits(means, self.schema.layout))

    @property
    def term(self):
        return PerRecord(lambda lot, noise: cross_entropy(self._of(lot.offsets), lot.records, self.schema.layout))

    def generate(self, offsets, generator):
        return means(self.settings["sharpness"] * self._of(offsets), self.schema.layout)

    def _of(self, offsets):
        return self.logits[components(offsets, self.logits.device)]


class Independents(PrivateMixture):
    """The model that is trained."""

    def __init__(self, schema, account, clipping, *, n, k, bias, lr, seed, sharpness=1.0):
        network = Independent(schema, k, sharpness=sharpness)
        super().__init__(network, account, clipping, n=n, bias=bias, lr=lr)
