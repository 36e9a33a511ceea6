"""A program of an engineer, as a type checker reads it: no name and no result is `Any`. It is never run."""

from typing import Any, assert_type

import numpy as np
import pytorch_lightning as pl
import torch

from lightning_dpgen import (
    Account,
    DPNorm,
    Fitted,
    MomentsAccountant,
    PrivateOptimizer,
    PrivateTraining,
    StageSpec,
    clipping,
    fit,
    load_release,
    make_plan,
    measure,
    models,
    poisson_loader,
    privacy,
    release_weights,
    training_stage,
    verify,
)
from lightning_dpgen.data.layout import Layout
from lightning_dpgen.models.bases import Basis
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.projected import ProjectedRows
from lightning_dpgen.sampling.lots import LotLoader


def facade(images: torch.Tensor, model: pl.LightningModule) -> None:
    private = PrivateTraining(images, n=1800, epsilon=8, delta=1e-5, sample_rate=0.2, steps=40, clipping=DPNorm(c_max=10))
    assert_type(private.account, Account)
    assert_type(private.plan, privacy.Plan)
    assert_type(private.loader(), LotLoader)
    assert_type(private.callback(), MomentsAccountant)
    assert_type(private.release(model, "release/"), dict[str, Any])
    assert_type(load_release("release/"), Release | ProjectedRows)
    assert_type(verify("release/").good, bool)
    assert_type(fit("people.csv", "people.schema.yaml", epsilon=1.0, n=10), Fitted)
    assert_type(fit("people.csv", "people.schema.yaml", epsilon=1.0, n=10).release, Release)
    assert_type(models.cosines(Layout(units=6), (6, 1), 2), Basis)


def explicit(images: torch.Tensor, model: pl.LightningModule) -> None:
    rule = clipping.Fixed(1.0)
    stage = training_stage(rule, n=np.int64(1800), sample_rate=0.2, steps=40)
    assert_type(stage, StageSpec)
    plan = make_plan([stage], epsilon=8.0, delta=1e-5)
    assert_type(plan.epsilon, float)
    account = Account(plan)
    optimizer = PrivateOptimizer(torch.optim.Adam(model.parameters()), account=account, clipping=rule)
    assert_type(optimizer, PrivateOptimizer)
    assert_type(optimizer.account.remaining("training"), int)
    assert_type(poisson_loader(images, account), LotLoader)
    assert_type(release_weights(model, account, "release/", data="images"), dict[str, Any])
    workload = measure.Workload("counts", {"counts": 1.0}, max_noise=10.0)
    assert_type(workload.spec(1.0), StageSpec)


def mistakes() -> None:
    """Make mistakes that a checker sees; it would complain of an ignore without one."""
    training_stage(clipping.Fixed(1.0), n="many", sample_rate=0.2, steps=40)  # type: ignore[arg-type]
    training_stage("flat", n=10, sample_rate=0.2, steps=40)  # type: ignore[arg-type]
    make_plan([], epsilon=1.0)  # type: ignore[call-arg]
    fit(5, "people.schema.yaml", epsilon=1.0, n=10)  # type: ignore[arg-type]
    clipping.Fixd(1.0)  # type: ignore[attr-defined]
    privacy.Plam  # type: ignore[attr-defined]  # noqa: B018
