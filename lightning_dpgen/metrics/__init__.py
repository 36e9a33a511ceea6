"""The closeness of synthetic records to real ones, as torchmetrics. Every value is computed from real records: private."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.metrics.baskets import BasketDistance as BasketDistance
    from lightning_dpgen.metrics.clustering import ClusteringAccuracy as ClusteringAccuracy
    from lightning_dpgen.metrics.correlation import AssociationDistance as AssociationDistance
    from lightning_dpgen.metrics.counting_queries import CountingQueryError as CountingQueryError
    from lightning_dpgen.metrics.evaluation import Evaluation as Evaluation
    from lightning_dpgen.metrics.labels import LabelDistance as LabelDistance
    from lightning_dpgen.metrics.labels import TrainOnSynthetic as TrainOnSynthetic
    from lightning_dpgen.metrics.marginals import MarginalDistance as MarginalDistance
    from lightning_dpgen.metrics.moments import MomentDistance as MomentDistance
    from lightning_dpgen.metrics.neighbours import NearestNeighbourDistance as NearestNeighbourDistance
    from lightning_dpgen.metrics.series import SeriesDistance as SeriesDistance
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "baskets": ["BasketDistance"],
            "clustering": ["ClusteringAccuracy"],
            "correlation": ["AssociationDistance"],
            "counting_queries": ["CountingQueryError"],
            "evaluation": ["Evaluation"],
            "labels": ["LabelDistance", "TrainOnSynthetic"],
            "marginals": ["MarginalDistance"],
            "moments": ["MomentDistance"],
            "neighbours": ["NearestNeighbourDistance"],
            "series": ["SeriesDistance"],
        },
    )
