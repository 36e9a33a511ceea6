"""The public parts of a network that is trained: buffers and frozen parameters, by name or all as they were at first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import nn

from lightning_dpgen.plugins.namespaces import MisconfigurationException
from lightning_dpgen.plugins.training_ledger import digest_of
from lightning_dpgen.release.weights import FrozenTensors, check_public

# The value of ``public`` for all that is frozen, and the key of a checkpoint under which its digests stand.
FROZEN, _KEY = "frozen", "lightning_dpgen_frozen"


class PublicParts:
    """The buffers and frozen parameters of one training that are no function of the records.

    Args:
        public: their names; ``frozen`` for all of them, as they are when the first fit starts.
    """

    def __init__(self, public: Sequence[str] | Literal["frozen"]) -> None:
        if public != FROZEN and isinstance(public, str):
            raise ValueError(f"public={public!r}: expected a list of names, or {FROZEN!r}")
        self._names = None if public == FROZEN else tuple(public)
        self._frozen: FrozenTensors | None = None

    def begin(self, network: nn.Module) -> None:
        """Take what is frozen as it is, and refuse a network that has more than what is public.

        Raises:
            MisconfigurationException: naming what it has, or what an earlier fit has changed.
        """
        if self._names is None and self._frozen is None:
            self._frozen = FrozenTensors.of(network)
        try:
            check_public(network, self.of(network))
        except ValueError as error:
            more = (
                f"; public={FROZEN!r} names all of them; a moving average of the parameters is kept by averaging=0.999, "
                "and not by the module"
            )
            raise MisconfigurationException(f"{error}{'' if self._names is None else more}") from None

    def of(self, network: nn.Module) -> tuple[str, ...] | FrozenTensors:
        """Return what is public; of a network that an earlier program has fitted, all that is frozen now."""
        if self._names is not None:
            return self._names
        return self._frozen or FrozenTensors.of(network)

    def digest_of(self, network: nn.Module) -> str:
        """Return a digest of what is released: trained parameters as they are, frozen ones as they were at the start."""
        public = self.of(network)
        return digest_of(network, public if isinstance(public, FrozenTensors) else None)

    def record(self, checkpoint: dict[str, Any]) -> None:
        """Add to a checkpoint how frozen tensors were at the start."""
        if self._frozen is not None:
            checkpoint[_KEY] = self._frozen.digests

    def go_on(self, checkpoint: dict[str, Any]) -> None:
        """Take what is frozen as it was when the first fit started.

        Raises:
            MisconfigurationException: for a checkpoint that does not say it.
        """
        if self._names is None:
            if _KEY not in checkpoint:
                raise MisconfigurationException(
                    f"public={FROZEN!r}: the checkpoint does not say what was frozen when its fit began: name it in "
                    "public=[...], as then"
                )
            self._frozen = FrozenTensors(dict(checkpoint[_KEY]))
