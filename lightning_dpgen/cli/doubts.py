"""What is allowed and rarely meant: sentences for whoever asked for it, before anything is spent."""

from __future__ import annotations

from lightning_dpgen.cli.configuration import Conf
from lightning_dpgen.cli.settings import Settings
from lightning_dpgen.privacy.plan import Plan

# Centres of clear clusters are about so far apart, those of MNIST's digits, in few directions and in all features; noise of
# that length hides them.
_APART = {True: 0.9, False: 0.4}


def seed_warning(conf: Conf) -> str | None:
    """Of noise that is repeatable."""
    if conf.debug.private_seed is not None:
        return f"debug.private_seed={conf.debug.private_seed}: NOT PRIVATE, since who has the seed can remove the noise"
    return None


def delta_warning(conf: Conf) -> str | None:
    """Of a delta that is large."""
    if conf.privacy.noise != "off" and conf.privacy.delta > 0.1 / conf.data.n:
        return (
            f"privacy.delta={conf.privacy.delta:g} is above 1/(10 n) = {0.1 / conf.data.n:.3g}: "
            "a smaller delta is the custom"
        )
    return None


def split_warning(settings: Settings, plan: Plan) -> str | None:
    """Of more clusters than the budget can tell apart."""
    noise = settings.split.centre_noise(plan, settings.conf.data.n)
    apart = _APART[settings.split.projects]
    if noise <= apart:
        return None
    smaller = "split.dimensions" if settings.split.projects else "split.features"
    return (
        f"split.k={settings.split.k}: the noise of a centre is about {noise:.2g} long, and centres of clear clusters are "
        f"about {apart:g} apart: expect clusters by chance; set a smaller split.k or {smaller}, or a larger "
        "split.lloyd_share"
    )
