from .embedding_gradients import EmbeddingGradients as EmbeddingGradients
from .engines import term_gradients as term_gradients
from .micro_batches import MicroBatches as MicroBatches
from .records import RecordGradients as RecordGradients
from .terms import DataFree as DataFree
from .terms import PerGroup as PerGroup
from .terms import PerRecord as PerRecord
