"""Private synthetic tables and pictures without training, which a generative model must beat.

Each measures once, through a plan, an account and the Gaussian mechanism, under add or remove one. The noise is seeded, so
that a table of results can be made again; the data are public. Those of baskets are in `dpgm/baselines.py`.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from experiments.dpgm.baselines import Budget
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.privacy.mechanisms import gaussian, noisy_histogram

# For class means: the budget's part for counts of classes; the L2 norm to which longer pictures in [0, 1] are shortened.
COUNTS_PART, RADIUS = 0.1, 10.0


def naive_bayes(real: Records, n: int, budget: Budget) -> Encoded:
    """Draw n records of independent columns given the label, from a noisy table of the label and each other column.

    A record is in one cell of each of T tables: sensitivity sqrt T.
    """
    layout, codes = real.schema.layout, real.encoded.codes.astype(np.int64)
    label, choices = layout.label, layout.groups[layout.label]
    columns = [column for column in range(len(layout.groups)) if column != label]
    tables = [
        np.bincount(codes[:, column] * choices + codes[:, label], minlength=layout.groups[column] * choices)
        for column in columns
    ]
    account = budget.account("tables", {"tables": 1.0}, n)
    with account.open("tables") as access:
        counts = torch.from_numpy(np.concatenate(tables).astype(np.float64))
        noisy = gaussian(access, "tables", counts, sensitivity=math.sqrt(len(columns))).numpy()
    account.verify_complete()
    ends = np.cumsum([len(table) for table in tables])[:-1]
    found = [part.reshape(-1, choices) for part in np.split(noisy, ends)]
    random, made = budget.random, np.zeros((n, len(layout.groups)), real.encoded.codes.dtype)
    # Each table tells how many records have which label.
    made[:, label] = random.choice(choices, n, p=_shares(np.mean([table.sum(axis=0) for table in found], axis=0)))
    for column, table in zip(columns, found, strict=True):
        for choice in range(choices):
            of_label = np.flatnonzero(made[:, label] == choice)
            made[of_label, column] = random.choice(len(table), len(of_label), p=_shares(table[:, choice]))
    return Encoded(np.zeros((n, 0), real.encoded.units.dtype), made)


def class_means(real: Records, n: int, budget: Budget) -> Encoded:
    """Draw n pictures of independent pixels, 0 or the highest level, each at the noisy mean of its class.

    A picture is in one class, and its pixels, in [0, 1], are shortened to `RADIUS`: sensitivities 1 and `RADIUS`.
    """
    layout, encoded = real.schema.layout, real.encoded
    labels, classes = encoded.codes[:, layout.label].astype(np.int64), layout.groups[layout.label]
    sums = np.stack([_shortened(encoded.units[labels == label] / layout.levels).sum(axis=0) for label in range(classes)])
    account = budget.account("means", {"counts": COUNTS_PART, "sums": 1.0 - COUNTS_PART}, n)
    with account.open("means") as access:
        counts = noisy_histogram(access, "counts", torch.from_numpy(labels), classes).numpy()
        noisy = gaussian(access, "sums", torch.from_numpy(sums), sensitivity=RADIUS).numpy()
    account.verify_complete()
    means = np.clip(noisy / np.maximum(counts, 1.0)[:, None], 0.0, 1.0)
    random = budget.random
    drawn = random.choice(classes, n, p=_shares(counts))
    ink = random.random((n, layout.units), np.float32) < means.astype(np.float32)[drawn]
    return Encoded(ink.astype(np.uint8) * layout.levels, drawn[:, None].astype(encoded.codes.dtype))


def _shares(noisy: np.ndarray) -> np.ndarray:
    """Return probabilities in proportion to noisy counts; all alike where none is above 0.

    Example:
        >>> _shares(np.array([-1.0, 1.0, 3.0])).tolist(), _shares(np.array([-1.0, 0.0])).tolist()
        ([0.0, 0.25, 0.75], [0.5, 0.5])
    """
    counts = np.maximum(noisy, 0.0)
    return counts / counts.sum() if counts.any() else np.full(len(counts), 1.0 / len(counts))


def _shortened(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * (RADIUS / np.maximum(norms, RADIUS))
