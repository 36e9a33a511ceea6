"""The other engine: bounded statistics of records, measured once with noise, and generators fitted to them."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.measure.basket_mixture import BasketRecipe as BasketRecipe
    from lightning_dpgen.measure.baskets import ItemsBySize as ItemsBySize
    from lightning_dpgen.measure.baskets import PairsBySize as PairsBySize
    from lightning_dpgen.measure.gaussians import GaussianRecipe as GaussianRecipe
    from lightning_dpgen.measure.products import ProductRecipe as ProductRecipe
    from lightning_dpgen.measure.recipe import MostlyNoise as MostlyNoise
    from lightning_dpgen.measure.recipe import Recipe as Recipe
    from lightning_dpgen.measure.statistics import Counts as Counts
    from lightning_dpgen.measure.statistics import Histogram as Histogram
    from lightning_dpgen.measure.statistics import Marginals as Marginals
    from lightning_dpgen.measure.statistics import MeanEmbeddings as MeanEmbeddings
    from lightning_dpgen.measure.statistics import Means as Means
    from lightning_dpgen.measure.statistics import Squares as Squares
    from lightning_dpgen.measure.statistics import Statistic as Statistic
    from lightning_dpgen.measure.workload import Measured as Measured
    from lightning_dpgen.measure.workload import Workload as Workload
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "basket_mixture": ["BasketRecipe"],
            "baskets": ["ItemsBySize", "PairsBySize"],
            "gaussians": ["GaussianRecipe"],
            "products": ["ProductRecipe"],
            "recipe": ["MostlyNoise", "Recipe"],
            "statistics": ["Counts", "Histogram", "Marginals", "MeanEmbeddings", "Means", "Squares", "Statistic"],
            "workload": ["Measured", "Workload"],
        },
    )
