"""The label of a table on top of a network that is trained already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from lightning_dpgen.measure.labels import LABELS, LabelRegression, check_sharpness, label_workload, made_up
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.statistics import Statistic
from lightning_dpgen.measure.workload import State, Workload
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed
from lightning_dpgen.privacy.plan import Plan

# The ridge of the regression, for 10,000 records that the mixture makes up: from 0.0002 to 0.005 scores are level.
_RIDGE = 1e-3


@dataclass(frozen=True)
class LabelRecipe(Recipe):
    """A few accesses, after which the label of a mixture is drawn given all other columns (`LabelRegression`).

    Nothing besides the columns counts. Components of a network are clusters, which labels help to make, so a label that
    followed its component would be told twice: by the columns, and by what made them.

    Args:
        mixture: the mixture, of any network whose records take a label (`models.labelled.takes_label`); public.
        n: the declared number of records.
        sharpness: factor of the differences between the logits of labels; above 1 labels are more predictable than real
            ones.
        seed: seed of the records that the mixture makes up; public.

    Guarantee:
        See `Recipe.measure`: a record's part of the gradient is shortened to a bound that follows from records that the
        mixture makes up.

    Raises:
        ValueError: for a mixture of other records, an n below 1, or a sharpness outside 0.1 to 100; Diverged for a mixture
            that is not finite.

    Example:
        >>> import torch
        >>> from lightning_dpgen.data.tables.schema_file import schema_of
        >>> from lightning_dpgen.models.products import StackedProducts
        >>> schema = schema_of({"label": "ill", "columns": {"smoker": {"type": "boolean"}, "ill": {"type": "boolean"}}})
        >>> recipe = LabelRecipe(Mixture(StackedProducts(schema, 2), torch.ones(2)), n=1000)
        >>> [(spec.stage, spec.count, spec.share) for spec in recipe.specs(0.3)]
        [('labels', 4, 0.3)]
    """

    mixture: Mixture
    n: int
    sharpness: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sharpness("sharpness", self.sharpness)
        check_seed(self.seed)
        # Records that take no label are refused here.
        LabelledNetwork(self.mixture.network)
        self.mixture.check_finite()

    @property
    def k(self) -> int:
        """The number of components."""
        return self.mixture.network.k

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """The accesses of the label."""
        return (label_workload(self.n, 1.0, agreement=False),)

    def statistics(self, stage: str, state: State) -> Mapping[str, Statistic]:
        """Return `gradient`, at the weights that have been reached."""
        return self._regression.statistics(state.get(stage, ()))

    def warnings(self, plan: Plan) -> list[str]:
        """Return none: a gradient that is nothing but noise is shrunk to what the mixture says."""
        return []

    def fitted(self, state: State) -> Mixture:
        """Draw the label of the mixture as these measurements say; see `Recipe.fitted`.

        The run that has paid for the label is that of the result if it has paid for the network, too; else it is not known.
        """
        found = super().fitted(state)
        return Mixture(found.network, found.weights, found.run if found.run == self.mixture.run else "", self.mixture.init)

    def _mixture(self, state: State) -> Mixture:
        return self._regression.labelled(self.mixture, state[LABELS], self.sharpness)

    @cached_property
    def _regression(self) -> LabelRegression:
        return LabelRegression(self.mixture.network.schema.layout, made_up(self.mixture, self.seed), self.n, _RIDGE)
