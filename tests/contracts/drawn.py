"""Lots that an account has drawn, for tests that choose the records of a step themselves."""

import numpy as np
import torch

from lightning_dpgen.gradients.per_sample_gradients import materialised
from lightning_dpgen.privacy.access import LotId
from lightning_dpgen.sampling.lots import Lot, PoissonLots


def drawn(account, records, offsets=None, stage="training") -> Lot:
    """Return all of these records, in their order, as the account draws them for a stage at rate 1.

    Args:
        account: an account whose stage takes all records.
        records: a tensor (B, ...), or anything else that `PoissonLots` takes.
        offsets: where components begin and end.
    """
    clusters, k = None, 1
    if offsets is not None:
        clusters, k = torch.from_numpy(np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))), len(offsets) - 1
    return PoissonLots(records, account, stage=stage, clusters=clusters, k=k).draw()


def draw_of(account, size, stage="training") -> LotId:
    """Return the draw of a lot of so many records."""
    return drawn(account, torch.zeros(size, 1), stage=stage).draw


def handed(account, gradients):
    """Return gradients (B, *parameter) by parameter as those of a lot of B records that the account has drawn."""
    return materialised(gradients, draw_of(account, len(next(iter(gradients.values())))))


class ChosenLots:
    """A batch sampler of lots that a test chooses, which tells the optimizer of each as `AccountEngine`'s loader does."""

    def __init__(self, account, optimizer, lots) -> None:
        self._account, self._optimizer, self._lots = account, optimizer, lots

    def __len__(self) -> int:
        return len(self._lots)

    def __iter__(self):
        this = object()
        for lot in self._lots:
            self._optimizer.expect(draw_of(self._account, len(lot)), this)
            yield lot
