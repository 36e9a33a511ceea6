"""Buying the number of records: a noisy count, from which the plan is then made."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch

from lightning_dpgen.cli.configuration import Conf
from lightning_dpgen.cli.settings import COUNT, Settings, check_privacy, count_draft, fill
from lightning_dpgen.data.records import Records
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.mechanisms import gaussian
from lightning_dpgen.privacy.plan import Plan, Stage


def count_plan(conf: Conf) -> Plan:
    """The plan of the count alone, before anything else can be planned.

    What does not hang on the number of records is checked here, before the count is paid for.

    Raises:
        Mistake: as `settings.fill`.
    """
    check_privacy(conf)
    draft = count_draft(conf)
    with_count(conf, max(1, int(0.1 / conf.privacy.delta)))  # any number that delta allows
    epsilon = math.inf if conf.privacy.noise == "off" else conf.privacy.epsilon
    stage = Stage(draft.access(draft.noise or 0.0), 1, draft.share)
    return Plan((stage,), epsilon, conf.privacy.delta, max_rows=conf.data.max_rows or 1)


def noisy_count(records: Records, account: Account) -> int:
    """The number of records with noise, rounded, at least 1: public from here on, and all that is known of it.

    One record added or removed changes it by 1, and a person by as many as they have.
    """
    total = torch.tensor([len(records)], dtype=torch.float64)
    with account.open(COUNT) as access:
        return max(1, round(float(gaussian(access, "n", total, sensitivity=1.0))))


def with_count(conf: Conf, n: int) -> Settings:
    """The settings of a run whose number of records has been bought.

    Raises:
        Mistake: as `settings.fill`.
    """
    conf = copy.deepcopy(conf)
    return fill(replace(conf, data=replace(conf.data, n=n)))
