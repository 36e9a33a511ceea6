"""The hooks by which a module or datamodule changes a batch, called for each record by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_dpgen.plugins.namespaces import classes, pl
from lightning_dpgen.sampling.lots import LotBatch

_MOVE = "transfer_batch_to_device"
# In the order in which a batch passes them.
_HOOKS = "on_before_batch_transfer", _MOVE, "on_after_batch_transfer"


class BatchHooks:
    """The hooks of a batch during one fit: a record passes them alone, where its loss is computed.

    A hook that was handed many records could mix them. Here it is handed a batch of one record, which is on the device
    already, so an augmentation draws for each record by itself. Lightning calls the hook of the datamodule where both have
    one, and so does this. Batches of validation pass as ever.

    Args:
        module: the module that is fitted.
        datamodule: that of the Trainer; None for none.
    """

    def __init__(self, module: pl.LightningModule, datamodule: pl.LightningDataModule | None) -> None:
        self._module = module
        self._hooks: list[tuple[str, Callable[..., Any]]] = []
        self._replaced: list[tuple[Any, str]] = []
        for name in _HOOKS:
            overriding = [owner for owner in (datamodule, module) if _overrides(owner, name)]
            if overriding:
                hook = getattr(overriding[0], name)
                self._hooks.append((name, hook))
                self._replaced.append((overriding[0], name))
                setattr(overriding[0], name, _passing_lots(hook))

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The hooks, of which there may be none."""
        return tuple(hook for _, hook in self._hooks)

    def __call__(self, records: Any) -> Any:
        """Return the batch of a record as the hooks change it."""
        for name, hook in self._hooks:
            records = hook(records, self._module.device, 0) if name == _MOVE else hook(records, 0)
        return records

    def check_terms(self) -> None:
        """Refuse hooks where a training step gives terms, which receive records as they are.

        Raises:
            ValueError: naming a hook.
        """
        if self._hooks:
            name, _ = self._hooks[0]
            raise ValueError(
                f"{name} changes a batch, and training_step returns terms, which receive records as they are: leave the "
                "hook out, and change lot.records in the loss of a term"
            )

    def restore(self) -> None:
        """Give module and datamodule back their hooks."""
        for owner, name in self._replaced:
            vars(owner).pop(name, None)
        self._replaced.clear()


def _overrides(owner: Any, name: str) -> bool:
    """Return whether a module or datamodule, or None, has a hook that Lightning's own class does not have."""
    bases = (*classes("LightningModule"), *classes("LightningDataModule"))
    return owner is not None and all(getattr(type(owner), name) is not getattr(kind, name) for kind in bases)


def _passing_lots(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that lets lots pass, whose records are not there yet."""

    def passing(batch: Any, *args: Any, **kwargs: Any) -> Any:
        return batch if isinstance(batch, LotBatch) else hook(batch, *args, **kwargs)

    return passing
