"""Lightning under its two names: the packages `pytorch_lightning` and `lightning` hold the same classes twice.

The callbacks and loggers of this package work in a Trainer of either. Modules, datamodules, progress bars and plugins have
to be of the Trainer's own namespace, which Lightning checks. No class is written twice here: those of this package derive
from `pl`, and what a user hands over is compared with the classes of each namespace that the program has imported.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, Any

PLAIN, JOINT = "pytorch_lightning", "lightning.pytorch"


def _chosen() -> str:
    """Return the name that classes of this package derive from: of the one that is imported, or else installed."""
    if PLAIN in sys.modules or (JOINT not in sys.modules and find_spec(PLAIN) is not None):
        return PLAIN
    return JOINT if find_spec("lightning") is not None else PLAIN


if TYPE_CHECKING:
    import pytorch_lightning as pl
    from lightning.pytorch import Callback as _CallbackOfLightning

    class Callback(pl.Callback, _CallbackOfLightning):
        """A callback that a Trainer of either namespace takes: Lightning calls its hooks, and asks for no class."""
else:
    pl = import_module(_chosen())
    Callback = pl.Callback

rank_zero_info, rank_zero_only = pl.utilities.rank_zero_info, pl.utilities.rank_zero_only


def classes(name: str) -> tuple[Any, ...]:
    """Return a class of each namespace that the program has imported, for `isinstance` and ``in``.

    Args:
        name: of the class within a namespace.

    Example:
        >>> issubclass(pl.strategies.DDPStrategy, classes("strategies.DDPStrategy"))
        True
    """
    spaces = [sys.modules[space] for space in (PLAIN, JOINT) if space in sys.modules]
    return tuple(map(attrgetter(name), spaces))


def lightning_class(module: Any) -> Any:
    """Return the `LightningModule` that a module derives from."""
    return next(kind for kind in type(module).__mro__ if kind in classes("LightningModule"))


class MisconfigurationException(pl.utilities.exceptions.MisconfigurationException):
    """A refusal of a fit, which ``except MisconfigurationException`` catches with the class of either namespace."""

    def __new__(cls, *args: Any) -> MisconfigurationException:
        return super().__new__(_caught_as(classes("utilities.exceptions.MisconfigurationException")), *args)

    def __reduce__(self) -> tuple[Any, ...]:
        return MisconfigurationException, self.args


@cache
def _caught_as(kinds: tuple[type, ...]) -> type[MisconfigurationException]:
    ours = MisconfigurationException
    others = [kind for kind in kinds if not issubclass(ours, kind)]
    return type(ours.__name__, (ours, *others), {}) if others else ours
