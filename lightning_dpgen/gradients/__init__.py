"""The way of gradients into the public: terms, per-record engines, clipping rules, and the one page `privatize`."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients as EmbeddingGradients
    from lightning_dpgen.gradients.engines import term_gradients as term_gradients
    from lightning_dpgen.gradients.micro_batches import MicroBatches as MicroBatches
    from lightning_dpgen.gradients.records import RecordGradients as RecordGradients
    from lightning_dpgen.gradients.terms import DataFree as DataFree
    from lightning_dpgen.gradients.terms import PerGroup as PerGroup
    from lightning_dpgen.gradients.terms import PerRecord as PerRecord
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "embedding_gradients": ["EmbeddingGradients"],
            "engines": ["term_gradients"],
            "micro_batches": ["MicroBatches"],
            "records": ["RecordGradients"],
            "terms": ["DataFree", "PerGroup", "PerRecord"],
        },
    )
