"""Generators of adversarial networks, one for each component of a mixture: a normal code to the means of a record."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.isolation.isolation import HiddenOffsets
from lightning_dpgen.gradients.stacked import StackedLinear
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.networks import PictureDecoder, StackedMLP, check_layers, check_sizes
from lightning_dpgen.models.outputs import held_bias, logits, means

# Waves by which a cell knows the time: of the whole length, and of its half.
_WAVES = 2


class SeriesDecoder(nn.Module):
    """k LSTMs: a code at each time, beside slow waves that tell the time, to the readings; the label by a linear layer.

    It is trained on no record, so it need not have gradients of single ones.

    Args:
        schema: series.
        inputs: width of the code.
        hidden: units of a cell.
        generator: public generator of the initial weights.

    Raises:
        ValueError: for records of another kind.

    Example:
        >>> from lightning_dpgen.data.series.schema import SeriesSchema
        >>> network = SeriesDecoder(SeriesSchema(length=3, low=0.0, high=1.0), 2, inputs=4, hidden=5)
        >>> network(torch.zeros(6, 4), (0, 2, 6)).shape
        torch.Size([6, 3])
    """

    def __init__(
        self, schema: Schema, k: int, inputs: int, hidden: int, *, generator: torch.Generator | None = None
    ) -> None:
        if schema.dimensions != 1:
            raise ValueError(
                f"records of kind {schema.kind}: network='lstm' needs series; network='dense' takes any records"
            )
        super().__init__()
        self._length, channels = schema.axes
        self.cells = nn.ModuleList(nn.LSTM(inputs + 2 * _WAVES, hidden, batch_first=True) for _ in range(k))
        with torch.no_grad():
            for parameter in self.cells.parameters():
                parameter.uniform_(-1.0 / math.sqrt(hidden), 1.0 / math.sqrt(hidden), generator=generator)
        self.readings = StackedLinear(k, hidden, channels, bias=False, generator=generator)
        labels = sum(schema.layout.groups)
        self.label = StackedLinear(k, inputs, labels, bias=False, generator=generator) if labels else None

    def forward(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        """Map (B, inputs), sorted by component, to (B, width)."""
        # A cell goes through the lot of its component, of which a private loss shows one record alone.
        return offsets.call(self._decode, z) if isinstance(offsets, HiddenOffsets) else self._decode(z, offsets)

    def _decode(self, z: Tensor, offsets: Sequence[int]) -> Tensor:
        length = self._length
        turns = torch.arange(length, device=z.device, dtype=z.dtype)[:, None] * torch.arange(1, _WAVES + 1, device=z.device)
        waves = torch.cat([torch.cos(2.0 * math.pi * turns / length), torch.sin(2.0 * math.pi * turns / length)], dim=1)
        steps = torch.cat([z[:, None].expand(-1, length, -1), waves.expand(len(z), -1, -1)], dim=2)
        segments = zip(self.cells, itertools.pairwise(offsets), strict=True)
        # A cell takes no empty batch.
        parts = [cell(steps[start:end])[0] for cell, (start, end) in segments if end > start]
        hidden = torch.cat(parts or [steps[..., : self.readings.weight.shape[2]]]).flatten(0, 1)
        readings = self.readings(hidden, [length * end for end in offsets]).unflatten(0, (len(z), length)).flatten(1)
        return readings if self.label is None else torch.cat([readings, self.label(z, offsets)], dim=1)


# The slope of the leaky rectifiers.
SLOPE = 0.2
SAMPLINGS = ("softmax", "straight_through")
# The least share of a label: noisy shares may be 0, or below.
_LEAST = 1e-4


class StackedGenerator(nn.Module):
    """k generators: a standard normal code to the mean of each unit, and the shares of the choices of each group.

    A code holds all that a record is made from, in this order: `latent` numbers for the network, one for the label where it
    is conditional, and one for each choice where choices are sampled.

    Args:
        schema: the public description of a record.
        network: ``dense``, ``conv`` (two transposed convolutions, for pictures) or ``lstm`` (for series).
        hidden: units of each hidden layer of a dense network, or of a cell.
        layers: hidden layers of a dense network.
        latent: numbers of a code that the network sees.
        conditional: whether the label is drawn first, by the component's shares (`start_at`), and the rest given it.
        sampling: records as a critic sees them: shares of choices (``softmax``), or choices drawn by these shares, through
            which gradients pass as if they were the shares (``straight_through``, Bengio et al. 2013).
        generator: public generator of the initial weights.

    Raises:
        ValueError: for another network or sampling, records that the network does not take, or conditional records without
            a label.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedGenerator(ImageSchema(2, 2, levels=1, classes=3), k=2, hidden=4, latent=2)
        >>> network(torch.zeros(3, 2), (0, 1, 3)).shape
        torch.Size([3, 7])
    """

    kind = "wgan_mixture"

    def __init__(
        self,
        schema: Schema,
        k: int,
        *,
        network: str = "dense",
        hidden: int = 128,
        layers: int = 2,
        latent: int = 16,
        conditional: bool = False,
        sampling: str = "softmax",
        generator: torch.Generator | None = None,
    ) -> None:
        check_sizes(k=k, hidden=hidden, layers=layers, latent=latent)
        check_layers(layers)
        if sampling not in SAMPLINGS:
            raise ValueError(f"sampling={sampling!r}: expected one of {', '.join(SAMPLINGS)}")
        layout = schema.layout
        if conditional and layout.label is None:
            raise ValueError("conditional=True: expected records with a label, and these have none")
        super().__init__()
        self.schema, self.k, self.network, self.hidden, self.latent = schema, k, network, hidden, latent
        self.depth, self.conditional, self.sampling = layers, conditional, sampling
        self._classes = layout.groups[layout.label] if conditional else 0
        inputs = latent + self._classes
        if network == "dense":
            widths = (inputs, *[hidden] * layers, layout.width)
            self.layers = StackedMLP(k, widths, slope=SLOPE, last_bias=False, generator=generator)
        elif network == "conv":
            self.layers = PictureDecoder(schema, k, inputs, slope=SLOPE, generator=generator)
        elif network == "lstm":
            self.layers = SeriesDecoder(schema, k, inputs, hidden, generator=generator)
        else:
            raise ValueError(f"network={network!r}: expected dense, conv or lstm")
        self.output_bias = nn.Parameter(torch.zeros(k, layout.width))
        if conditional:
            self.register_buffer("label_shares", torch.full((k, self._classes), 1.0 / self._classes))

    @property
    def settings(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("network", "hidden", "latent", "conditional", "sampling")}
        return named | {"layers": self.depth}

    @property
    def code(self) -> int:
        """The length of a code."""
        drawn = sum(self.schema.layout.groups) if self.sampling == "straight_through" else 0
        return self.latent + self.conditional + drawn

    @torch.no_grad()
    def start_at(self, means: Tensor) -> None:
        """Set the output bias so that each component first generates its cluster's mean; see `StackedVAE.start_at`.

        Labels of conditional networks are drawn by their shares in these means from here on.
        """
        self.output_bias.copy_(logits(means, self.schema.layout))
        self._share_labels(means)

    def _share_labels(self, means: Tensor) -> None:
        if self.conditional:
            shares = means[:, self.schema.layout.labels].clamp(min=_LEAST)
            self.label_shares.copy_(shares / shares.sum(dim=1, keepdim=True))

    @torch.no_grad()
    def hold_at(self, means: Tensor, noise: Tensor) -> None:
        """Set the output bias so that each component generates its cluster's mean; see `StackedVAE.hold_at`.

        Labels of conditional networks are drawn by their shares in these means, as after `start_at`.
        """
        self._share_labels(means)
        layout, seen = self.schema.layout, self.latent + self.conditional
        bias = held_bias(self._decode, self.output_bias, means, noise, seen, layout)
        self.output_bias.copy_(bias)

    def _decode(self, code: Tensor, offsets: Sequence[int], labels: Tensor | None = None) -> Tensor:
        """Map codes to logits (B, width) without the output bias."""
        z = code[:, : self.latent]
        if self.conditional:
            z = torch.cat([z, self.labels(code, offsets) if labels is None else labels], dim=1)
        return self.layers(z, offsets)

    def labels(self, code: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return the labels of codes (B, classes), as one-hot, drawn by the shares of each component."""
        uniform = torch.special.ndtr(code[:, self.latent : self.latent + 1])
        edges = self.label_shares.cumsum(dim=1)[components(offsets, code.device)]
        chosen = (edges <= uniform * edges[:, -1:]).sum(dim=1).clamp(max=self._classes - 1)
        return F.one_hot(chosen, self._classes).to(code.dtype)

    def shares(self, code: Tensor, offsets: Sequence[int], labels: Tensor | None = None) -> Tensor:
        """Map codes (B, code), sorted by component, to means and shares (B, width).

        Args:
            labels: (B, classes) the labels of conditional records, as one-hot; None draws them.
        """
        layout = self.schema.layout
        if self.conditional and labels is None:
            labels = self.labels(code, offsets)
        logits_of = self._decode(code, offsets, labels) + self.output_bias[components(offsets, code.device)]
        record = means(logits_of, layout)
        if labels is None:
            return record
        return torch.cat([record[:, : layout.labels.start], labels, record[:, layout.labels.stop :]], dim=1)

    def forward(self, code: Tensor, offsets: Sequence[int], labels: Tensor | None = None) -> Tensor:
        """Map codes to records (B, width) in [0, 1], as a critic sees them; arguments as for `shares`."""
        shares = self.shares(code, offsets, labels)
        if self.sampling == "softmax":
            return shares
        layout, start = self.schema.layout, self.latent + self.conditional
        # Negative logarithms of exponential numbers: the largest sum is of a choice that is drawn by its share.
        gumbel = -torch.log(-_log_uniform(code[:, start:]).clamp(max=-1e-30))
        scores, parts = torch.log(shares[:, layout.units :].detach().clamp(min=1e-30)) + gumbel, [shares[:, : layout.units]]
        for span in layout.spans:
            shares_of_group = shares[:, span]
            inside = slice(span.start - layout.units, span.stop - layout.units)
            drawn = F.one_hot(scores[:, inside].argmax(dim=1), shares_of_group.shape[1]).to(shares_of_group.dtype)
            parts.append(drawn + shares_of_group - shares_of_group.detach())
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component."""
        code = torch.randn(offsets[-1], self.latent + self.conditional, generator=generator)
        return self.shares(code, offsets)


def _log_uniform(normal: Tensor) -> Tensor:
    """Return the logarithm of the distribution function at normal numbers from -12 up, accurate in both tails.

    `torch.special.log_ndtr` has no rule for `torch.vmap`.
    """
    tail = 0.5 * torch.special.erfc(normal.abs() / math.sqrt(2.0))
    return torch.where(normal > 0.0, torch.log1p(-tail), torch.log(tail.clamp(min=1e-37)))
