"""Mixtures of product distributions, and of forests: columns that hang on trees, which components share and each tilts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.gradients.stacked_ops import components
from lightning_dpgen.models.mixture import Diverged
from lightning_dpgen.models.networks import check_sizes
from lightning_dpgen.models.outputs import chosen, chosen_in


class StackedProducts(nn.Module):
    """k components, in each of which all numbers of a record are independent.

    Args:
        schema: the public description of a record.
        k: number of components.

    Raises:
        ValueError: for k below 1.

    Example:
        >>> from lightning_dpgen.data.pictures.schema import ImageSchema
        >>> network = StackedProducts(ImageSchema(1, 2, levels=1), k=3)
        >>> network.generate((0, 2, 2, 5), torch.Generator()).shape
        torch.Size([5, 2])
    """

    kind = "product_mixture"

    def __init__(self, schema: Schema, k: int) -> None:
        check_sizes(k=k)
        super().__init__()
        self.schema, self.k = schema, k
        self.register_buffer("means", torch.zeros(k, schema.layout.width))

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate means of units and shares of choices (n, width), for records sorted by component."""
        return self.means[components(offsets, self.means.device)]

    @property
    def log_evidence(self) -> Tensor:
        """Return rows (width, k), float64, the logarithms of shares of choices: see `StackedForests.log_evidence`."""
        return self.means.double().clamp(min=1e-9).log().T

    @property
    def label_table(self) -> Tensor:
        """Return the shares (1, k, labels) of labels, in float64."""
        return self.means[None, :, self.schema.layout.labels].double()

    def label_rows(self, records: Encoded) -> Tensor:
        """Return 0 (B,) for each record, int64: components alone tell of its label."""
        return torch.zeros(len(records), dtype=torch.int64)


# A choice that a component does not have at all counts as so likely where components are compared.
_LEAST = 1e-30


class StackedForests(nn.Module):
    """k components of records of choices alone, in each of which a group follows from its parent in a forest.

    A component z draws group g by ``P_z(x_g | x_p) = T_g[x_p, x_g] u_z[x_g] / N_z[x_p]``: T_g is the table of g and its
    parent p, which all components share, u_z are the component's factors, and N_z makes shares of them. A group without a
    parent has a table of one row. Where no group has one, this is a mixture of products (`StackedProducts`).

    Args:
        schema: the public description of a record.
        k: number of components.
        parents: for each group its parent, or -1 for none.

    Attributes:
        table_0, table_1, ...: (choices of the parent, choices) the tables, 0 or more.
        tilts: (k, width) the factors, above 0.
        order: all groups, each after its parent.

    Raises:
        ValueError: for k below 1, records with units, or parents that are not those of a forest.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {smoker: {type: boolean}, ill: {type: boolean}}")
        >>> network = StackedForests(schema, k=3, parents=[-1, 0])
        >>> _ = network.table_1.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        >>> drawn = network.generate((0, 2, 2, 5), torch.Generator().manual_seed(0))
        >>> torch.equal(drawn[:, :2], drawn[:, 2:])
        True
    """

    kind = "forest_mixture"

    def __init__(self, schema: Schema, k: int, parents: Sequence[int]) -> None:
        check_sizes(k=k)
        layout = schema.layout
        if layout.units or not layout.groups:
            raise ValueError(f"records of {layout.units} units: expected choices alone")
        super().__init__()
        self.schema, self.k, self.parents = schema, k, tuple(parents)
        self.order = forest_order(self.parents, len(layout.groups))
        self._kept: dict[int, tuple[tuple[int, int], Tensor]] = {}
        for group, (parent, choices) in enumerate(zip(self.parents, layout.groups, strict=True)):
            rows = 1 if parent < 0 else layout.groups[parent]
            self.register_buffer(f"table_{group}", torch.full((rows, choices), 1.0 / choices))
        self.register_buffer("tilts", torch.ones(k, layout.width))

    @property
    def settings(self) -> dict[str, Any]:
        return {"parents": list(self.parents)}

    @property
    def tables(self) -> list[Tensor]:
        """The table of each group."""
        return [self.get_buffer(f"table_{group}") for group in range(len(self.parents))]

    def generate(self, offsets: Sequence[int], generator: torch.Generator) -> Tensor:
        """Generate shares of choices (n, width), for records sorted by component; a group that has children is drawn."""
        component, layout, tables = components(offsets, self.tilts.device), self.schema.layout, self.tables
        record = torch.empty(len(component), layout.width, device=component.device)
        codes: dict[int, Tensor] = {}
        for group in self.order:
            span, parent = layout.spans[group], self.parents[group]
            shares = tables[group][codes[parent] if parent >= 0 else torch.zeros_like(component)]
            shares = shares * self.tilts[component, span]
            shares /= shares.sum(dim=1, keepdim=True)
            if group in self.parents:
                codes[group] = chosen(shares, torch.rand(len(shares), generator=generator).to(shares))
                # Numbers that are not finite are left for the reader of a release to find.
                shares = torch.where(shares.isfinite(), F.one_hot(codes[group], layout.groups[group]).to(shares), shares)
            record[:, span] = shares
        return record

    def shares(self, group: int, component: Tensor, codes: Tensor) -> Tensor:
        """Return what shares (n, choices) of a group are in proportion to, given these components (n,) and their choices.

        Args:
            codes: (n, groups) int64, of which that of the group's parent counts.
        """
        parent = self.parents[group]
        rows = codes[:, parent] if parent >= 0 else torch.zeros_like(component)
        return self.tables[group][rows] * self.tilts[component, self.schema.layout.spans[group]]

    def draw(self, component: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the choices (n, groups), int64, of a record of each of these components (n,): on the CPU, in their order.

        Raises:
            Diverged: for numbers that are not finite, or give no shares.
        """
        uniform = torch.rand(len(self.parents), len(component), generator=generator)
        codes = torch.zeros(len(component), len(self.parents), dtype=torch.int64)
        for group in self.order:
            parent, sums = self.parents[group], self._sums(group)
            rows = component if parent < 0 else component * len(self.tables[group]) + codes[:, parent]
            totals = sums[:, -1][rows]
            if not (totals.isfinite() & (totals > 0.0)).all():
                raise Diverged("mixture: holds numbers that are not finite, or too large: it has no shares of choices")
            codes[:, group] = chosen_in(sums, rows, uniform[group])
        return codes

    def _sums(self, group: int) -> Tensor:
        """Return sums of shares (components x choices of the parent, choices) of a group, kept while nothing is changed."""
        table, versions = self.tables[group], (self.tables[group]._version, self.tilts._version)
        if self._kept.get(group, (None,))[0] != versions:
            shares = table * self.tilts[:, None, self.schema.layout.spans[group]]
            self._kept[group] = (versions, shares.cumsum(dim=2).flatten(0, 1))
        return self._kept[group][1]

    @property
    def log_evidence(self) -> Tensor:
        """Return rows (width, k), float64: those of a record's choices, but for its label, tell which component made it.

        They add up to the logarithm of the probability of all other groups less what components have in common. The label
        has to be a group without children.
        """
        layout, tilts = self.schema.layout, self.tilts.double().clamp(min=_LEAST)
        rows = tilts.log().T.clone()
        for group, (span, parent) in enumerate(zip(layout.spans, self.parents, strict=True)):
            if group != layout.label:
                sums = (tilts[:, span] @ self.tables[group].double().T).clamp(min=_LEAST).log().T
                rows[span if parent < 0 else layout.spans[parent]] -= sums
        return rows

    @property
    def label_table(self) -> Tensor:
        """Return the shares (choices of the label's parent, k, labels) of labels, in float64; one row without a parent."""
        label = self.schema.layout.label
        tilts = self.tilts[:, self.schema.layout.spans[label]].double()
        shares = self.tables[label].double()[:, None] * tilts
        return shares / shares.sum(dim=2, keepdim=True).clamp(min=_LEAST)

    def label_rows(self, records: Encoded) -> Tensor:
        """Return the row (B,) of `label_table` of each record, int64."""
        parent = self.parents[self.schema.layout.label]
        codes = records.codes[:, parent] if parent >= 0 else np.zeros(len(records))
        return torch.from_numpy(codes.astype(np.int64))


def forest_order(parents: Sequence[int], groups: int) -> list[int]:
    """Return all groups, each after its parent.

    Raises:
        ValueError: for another number of parents, one that is no group, or groups that are their own ancestors.

    Example:
        >>> forest_order([2, 0, -1], 3)
        [2, 0, 1]
    """
    if len(parents) != groups or not all(type(parent) is int and -1 <= parent < groups for parent in parents):
        raise ValueError(f"parents: expected for each of {groups} groups the number of another one, or -1")
    order = [group for group, parent in enumerate(parents) if parent < 0]
    children: dict[int, list[int]] = {}
    for group, parent in enumerate(parents):
        children.setdefault(parent, []).append(group)
    for group in order:
        order += children.get(group, [])
    if len(order) < groups:
        raise ValueError("parents: expected a forest, in which no group is its own ancestor")
    return order
