"""The release of any network: its weights, card and certificate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from torch import Tensor, nn

from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.gradients.shards import bytes_of, gathered, has_shards, reshard, unsharded_class
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.stage_spec import declared_records
from lightning_dpgen.privacy.ranks import Ranks
from lightning_dpgen.release.bundle import release_from
from lightning_dpgen.release.drawing.description import PLAIN_WEIGHTS
from lightning_dpgen.release.files import MODEL, WEIGHTS
from lightning_dpgen.release.pages.report import write_pages

_MOST_NAMED = 5


@dataclass(frozen=True)
class FrozenTensors:
    """All buffers and frozen parameters of a network, as they are before it sees a record: public, and to stay as they are.

    What a training changes may have seen records, so `check_public` compares them bit for bit. Make it before the training,
    of a network that no record has gone into: a buffer with the mean of the data would be released without noise. All ranks
    make it, where parameters are sharded.

    Args:
        digests: the digest of each by its name in `state_dict()`; one that has several names stands under each.

    Example:
        >>> network = nn.BatchNorm1d(2).eval().requires_grad_(False)
        >>> frozen = FrozenTensors.of(network)
        >>> list(frozen.digests)
        ['weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked']
        >>> network.running_mean += 1
        >>> frozen.changed(network)
        ['running_mean']
    """

    digests: dict[str, str]

    @classmethod
    def of(cls, network: nn.Module) -> FrozenTensors:
        """Take those of a network as they are now."""
        # Evaluation by FSDP2 leaves parameters whole, in memory that is freed later.
        reshard(network)
        return cls({name: _digest(x) for name, x in _untrained(network).items() if isinstance(x, Tensor)})

    def changed(self, network: nn.Module) -> list[str]:
        """Return the names of those that are no longer what they were, or are gone."""
        now = FrozenTensors.of(network).digests
        return [name for name, digest in self.digests.items() if now.get(name) != digest]


def _digest(tensor: Tensor) -> str:
    """Return a digest of the numbers of a tensor, its shape and its type."""
    digest = hashlib.blake2b(f"{tuple(tensor.shape)} {tensor.dtype} ".encode(), digest_size=16)
    digest.update(bytes_of(tensor))
    return digest.hexdigest()


def _untrained(network: nn.Module) -> dict[str, Any]:
    """Return what the state of a network holds beside its trainable parameters."""
    trained = {name for name, p in network.named_parameters(remove_duplicate=False) if p.requires_grad}
    return {name: value for name, value in network.state_dict().items() if name not in trained}


@dataclass(frozen=True)
class WeightsContent:
    """A `bundle.Content` of tensors by name, and the class of their network in words."""

    tensors: dict[str, Tensor]
    architecture: str

    released: ClassVar[tuple[str, ...]] = (MODEL, WEIGHTS)

    def write(self, folder: Path, *, private: bool) -> None:
        shapes = {name: list(tensor.shape) for name, tensor in self.tensors.items()}
        description = {"model": PLAIN_WEIGHTS, "architecture": self.architecture, "tensors": shapes}
        description |= {} if private else {"private": False}
        (folder / MODEL).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        (folder / WEIGHTS).write_bytes(safetensors.torch.save(self.tensors))
        (folder / WEIGHTS).chmod(0o644)

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        count = sum(tensor.numel() for tensor in self.tensors.values())
        write_pages(folder, certificate, PLAIN_WEIGHTS, architecture=self.architecture, parameters=count)


def check_public(network: nn.Module, public: Sequence[str] | FrozenTensors) -> None:
    """Refuse a network whose release would hold more than what was trained, and what is named as public.

    Args:
        public: names of buffers and frozen parameters that are no function of the records. One that has several names
            (tied weights) is public by each of them. Or all of them (`FrozenTensors`), as they were before the training.

    Raises:
        ValueError: naming the others, or those that have changed.
    """
    if isinstance(public, FrozenTensors):
        if changed := public.changed(network):
            raise ValueError(
                f"{listed(changed)} changed since the training began, so records may have changed them: keep them as they "
                "are (eval(), no_grad), take them out of the network, or name in public=[...] all that is no function of "
                "records"
            )
        public = tuple(public.digests)
    parameters = dict(network.named_parameters(remove_duplicate=False))
    others = set(_untrained(network))
    tensors = parameters | dict(network.named_buffers(remove_duplicate=False))
    named = {id(tensors[name]) for name in public if name in tensors}
    unnamed = {name for name in others if name not in public and id(tensors.get(name)) not in named}
    if unknown := sorted(unnamed):
        more = f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        raise ValueError(
            f"buffers or frozen parameters {unknown[:_MOST_NAMED]}{more} may hold statistics of records, which no account "
            "has paid for: name those that are public constants in public=[...], as here, and take the others out of the "
            "network"
        )
    if wrong := sorted(set(public) - others):
        raise ValueError(
            f"public: {wrong[:_MOST_NAMED]} are no buffers or frozen parameters of the network: expected names among its "
            "state_dict() that are not trained"
        )


def release_weights(
    network: nn.Module,
    account: Account,
    folder: str | Path,
    *,
    data: str,
    n: int | None = None,
    unit: str | None = None,
    declared: dict[str, Any] | None = None,
    public: Sequence[str] | FrozenTensors = (),
) -> dict[str, Any]:
    """Write a release of a network that was trained on an account: weights, description, certificate, report and card.

    A run that was left early is charged what its plan says. A network that `fully_shard` has divided over ranks is released
    by all of them: rank 0 writes its weights, which are whole. Where each rank has all of the network, rank 0 writes
    it, too, and the others may call this or not.

    Args:
        network: the network; released are its trainable parameters, and the other parameters and buffers in `public`.
        account: the account that has paid for its training; nothing else that saw the records may have touched the network.
        folder, data, n, unit, declared: as for `release_mixture`.
        public: names of buffers and frozen parameters that are no function of the records, or all of them, as for
            `check_public`; the certificate lists them as ``declared.public``.

    Returns:
        The certificate; empty on other ranks than 0 of a network that each of them has.

    Raises:
        FileExistsError, PlanMismatch: as `release_mixture`.
        ValueError: for n below 1; if a parameter is not finite, or the network has a buffer or frozen parameter that is not
            named, since statistics of records are kept there.
    """
    check_public(network, public)
    if not has_shards(network) and account.follows:
        return {}
    ranks = Ranks.join() if has_shards(network) else Ranks()
    tensors, bad = {}, []
    for name, tensor in network.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue
        whole = gathered(tensor)
        if whole.is_floating_point() and not torch.isfinite(whole).all():
            bad.append(name)
        if ranks.leads:
            tensors[name] = whole.cpu().contiguous().clone()
    if bad:
        raise ValueError(f"parameters {bad[:5]} are not finite: the training has diverged, and there is nothing to release")
    n = declared_records(account.plan, n)
    own = unsharded_class(network)
    content = WeightsContent(tensors, f"{own.__module__}.{own.__qualname__}")
    names = sorted(public.digests if isinstance(public, FrozenTensors) else public)

    def write() -> dict[str, Any] | None:
        if not ranks.leads:
            return None
        stated = (declared or {}) | ({"public": names} if names else {})
        return release_from(content, account, folder, data=data, n=n, unit=unit, declared=stated)

    return ranks.broadcast_object(ranks.leader_first(write))
