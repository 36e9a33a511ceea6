"""Tensors kept for parts of records: no more than so many bytes, as long as the records, and never in a pickle."""

import gc
import pickle

import numpy as np
import torch

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.measure.statistics import KeptParts


def test_parts_are_kept_with_their_records_within_bounds_and_never_pickled():
    kept, computed = KeptParts(100), []

    def ones(records):
        def compute():
            computed.append(records.codes.shape)
            return torch.ones(10)

        return kept.get(records, compute)

    first, second, third = (Encoded(np.zeros((5, 0), np.float32), np.zeros((5, 1), np.uint8)) for _ in range(3))
    assert [len(ones(records)) for records in (first, first, second, second)] == [10] * 4 and len(computed) == 2
    # A third one of forty bytes does not fit.
    assert torch.equal(ones(third), ones(third)) and len(computed) == 4
    copied = pickle.loads(pickle.dumps(kept))
    assert copied.get(first, lambda: torch.zeros(1)).item() == 0.0
    del first
    gc.collect()
    assert torch.equal(ones(third), ones(third)) and len(computed) == 5
