"""Laws of numbers that are bought of records: of the lots of a training, and of validation records."""

from __future__ import annotations

import math
import warnings

import pytorch_lightning as pl
import torch
from contracts.door import given_the_answers, overspent, parts_add_up
from contracts.laws.accounts import account_of
from torch import nn

from lightning_dpgen.clipping import Fixed
from lightning_dpgen.plugins.noisy_metrics import LotMetrics, NoisyMetrics
from lightning_dpgen.plugins.private_training import PrivateTraining
from lightning_dpgen.plugins.private_validation import PrivateValidation
from lightning_dpgen.sampling.lots import Lot

BOUNDS = {"loss": (0.0, 4.0), "hit": (0.0, 1.0), "score": (-1e-3, 1e3)}
ROWS = torch.rand(7, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([4.0, 1.0, 1e3])
# The farthest corners, what is not finite, and a record in the middle.
FAR = torch.tensor(
    [[1e9, 1.0, -1e9], [-5.0, -5.0, 2e3], [math.inf, math.nan, -math.inf], [math.nan] * 3, [2.0, 0.5, 500.0]]
)


def _of_lot(rows):
    """Return the means of the lots of two steps, of which the second has the records in another order, and in parts."""
    account = account_of({"metrics": 1.0}, count=2)
    metrics = LotMetrics(NoisyMetrics(BOUNDS, every=2), account, "training")
    for parts in ([rows], [rows[3:], rows[:3]]):
        metrics.begin()
        for number, part in enumerate(parts):
            # A made-up record takes the place of none.
            logged = part if len(part) else torch.full((1, 3), 77.0)
            metrics.take(number, dict(zip(BOUNDS, logged.T, strict=True)), None, Lot(part, (0, len(part))))
        with account.open("training") as access:
            metrics.release(access)
    return metrics.due()


def no_record_costs_a_bought_mean_more_than_its_access() -> None:
    for record in FAR:
        assert max(overspent(_of_lot, ROWS, torch.cat([record[None], ROWS]))) <= 1.0
        assert max(overspent(_of_lot, record[None], ROWS[:0])) <= 1.0


def a_far_record_costs_a_bought_mean_all_that_was_paid() -> None:
    """Check that the bound is met, so that noise for less of it would be noticed."""
    assert max(overspent(_of_lot, ROWS, torch.cat([ROWS, FAR[:1]]))) > 0.999


def what_is_bought_of_a_lot_is_a_sum_over_its_records() -> None:
    parts_add_up(_of_lot, torch.cat([ROWS, FAR]), ROWS, FAR)
    parts_add_up(_of_lot, ROWS, ROWS, ROWS[:0])


def given_the_answers_bought_means_are_the_same_for_any_lot() -> None:
    first, *others = given_the_answers(_of_lot, ROWS, FAR, ROWS[:0], torch.cat([ROWS, ROWS]))
    assert all(other == first for other in others) and len(first) == 2 * len(BOUNDS)


class _Network(pl.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 3))

    def training_step(self, batch):
        self.log("norm", self.net(batch).norm())
        return (self.net(batch) - batch).square().mean()

    def validation_step(self, batch):
        self.log_dict({"score": (self.net(batch) - batch).mean(), "size": batch.square().sum()})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def _fit(data):
    """Return what a fit on training records and validation records shows, and the parameters that it leaves."""
    rows, others = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private = PrivateTraining(
            rows, n=8, epsilon=8.0, delta=1e-5, sample_rate=1.0, steps=2, clipping=Fixed(1.0),
            metrics=NoisyMetrics({"loss": (0.0, 1.0), "norm": (0.0, 2.0)}, share=0.2, every=2),
            validation=PrivateValidation(others, {"score": (-1.0, 1.0), "size": (0.0, 2.0)}, n=8, share=0.3, every=1),
        )  # fmt: skip
        trainer = pl.Trainer(
            callbacks=[private.callback()], accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model := _Network(), private.loader())
    shown = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return shown, [p.detach().clone() for p in model.parameters()]


_TRAINING, _OTHERS = ROWS / torch.tensor([4.0, 1.0, 1e3]), ROWS.flip(1) / torch.tensor([1e3, 1.0, 4.0])
_MORE = 30.0 * torch.ones(1, 3)


def no_record_costs_a_fit_with_bought_numbers_more_than_its_accesses() -> None:
    """Check it for one record more among those of the training, and among those of validation, and in both."""
    with_one = [torch.cat([_MORE, rows]) for rows in (_TRAINING, _OTHERS)]
    pairs = (with_one[0], _OTHERS), (_TRAINING, with_one[1]), tuple(with_one)
    moves = overspent(_fit, (_TRAINING, _OTHERS), *pairs)
    # The rehearsal of the noise, and two steps with a look at the validation records behind each.
    assert len(moves) == 3 * 5 and max(moves) <= 1.0 + 1e-5
    assert moves[5 + 2] > 0.99, "noise for less than the bound of validation would be noticed"


def given_the_answers_a_fit_with_bought_numbers_is_the_same_for_any_records() -> None:
    (shown, weights), *others = given_the_answers(_fit, (_TRAINING, _OTHERS), (_OTHERS, _TRAINING[:2]))
    assert len(shown) == 8
    for other, its in others:
        assert other == shown and all(torch.equal(a, b) for a, b in zip(weights, its, strict=True))
