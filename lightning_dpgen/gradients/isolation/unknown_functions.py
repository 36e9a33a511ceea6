"""The functions of torch that keep the records of a lot apart where `torch.vmap` hides them; all others meet one record.

``known_functions.json`` lists functions that a search has called with other records beside one, by the minor versions of
torch that it was run on (``python -m tests.gradients.search_torch`` runs it for the installed one). A function that is not
listed for the running version is computed for each record alone, outside of vmap, or refused by its name. So no rule of
vmap is relied upon that was not looked at.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._functorch.autograd_function import custom_function_call
from torch.utils._pytree import tree_flatten, tree_unflatten

from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.gradients.isolation.refusals import WRITES, explained
from lightning_dpgen.gradients.isolation.torch_names import find

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation.isolation import Isolation

LISTED = Path(__file__).with_name("known_functions.json")
MINOR = ".".join(torch.__version__.split(".")[:2])


def read_listed() -> dict[str, set[str]]:
    """Return the names of the functions that are listed for each minor version of torch."""
    listed: dict[str, set[str]] = {}
    for versions, by_place in json.loads(LISTED.read_text()).items():
        names = {f"{place}.{word}" for place, words in by_place.items() for word in words.split()}
        for version in versions.split():
            listed.setdefault(version, set()).update(names)
    return listed


def _named(names: Iterable[str]) -> set[Callable]:
    return {function for name in names if (function := find(name)) is not None}


# Functions that look at no number: torch answers from the shape and the type that a tensor has for the code that holds it.
NO_NUMBERS = _named(f"torch.Tensor.{word}.__get__" for word in (
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "itemsize", "nbytes", "is_cuda", "is_cpu",
    "is_mps", "is_xpu", "is_meta", "is_sparse", "is_sparse_csr", "is_quantized", "is_mkldnn", "is_nested",
)) | _named(f"torch.Tensor.{word}" for word in (
    "size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_signed",
    "get_device", "is_inference", "is_conj", "is_neg", "__len__",
)) | _named(f"torch.{word}" for word in (
    "numel", "is_floating_point", "is_complex", "is_signed", "get_device",
))  # fmt: skip
# A move to another device is one of `Tensor.to`, and an `autograd.Function` has a guard of its own for what it calls.
_AS_OTHERS = _named(["torch.Tensor.cuda"]) | {custom_function_call}
_LISTS = read_listed()
# Functions that may be called where vmap hides the records.
KEEPS_RECORDS_APART = frozenset(_named(_LISTS.get(MINOR, ())) | NO_NUMBERS | _AS_OTHERS)


def loop_over_records(isolation: Isolation | None, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a function for each record alone, where no level of vmap hides others, and hide what it returns.

    It is called of shapes first. So neither the shape of a result nor whether there is one follows from a record's numbers.

    Raises:
        ValueError: naming the function, where it cannot be computed so.
    """
    name = _name_of(function)
    leaves, structure = tree_flatten((args, kwargs))

    def call(tensors: list[Any]) -> tuple[list[Any], Any]:
        own_args, own_kwargs = tree_unflatten(tensors, structure)
        return tree_flatten(function(*own_args, **own_kwargs))

    shapes = _of_shapes(name, call, leaves)
    if isolation is None or not isolation.is_innermost:
        raise _refusal(name, "that is not possible inside an autograd.Function or a transform of torch.func")
    places = [i for i, x in enumerate(leaves) if is_hidden(x)]
    level, lots = isolation.lots([leaves[i] for i in places])
    _say(name)
    # Versions, which tell what a function writes into, are not counted in inference mode.
    with isolation.outside(), torch.set_grad_enabled(torch.is_grad_enabled()), torch.inference_mode(False):
        shared = [x.clone() if isinstance(x, Tensor) and i not in places else x for i, x in enumerate(leaves)]
        rows, results = [], []
        for i in range(len(lots[0])):
            # Clones, since a view leads to the memory of other records.
            copies = {
                place: lot[i].clone(memory_format=torch.contiguous_format) for place, lot in zip(places, lots, strict=True)
            }
            rows.append([copies.get(k, x) for k, x in enumerate(shared)])
            result, form = call(rows[-1])
            if list(map(_shape, result)) != shapes:
                raise _refusal(name, "the shape of its result follows from a record's numbers")
            results.append(result)
        if any(isinstance(x, Tensor) and x._version for x in shared if not is_hidden(x)):
            raise ValueError(f"the loss calls {name}, which {WRITES}")
        for place, lot in zip(places, lots, strict=True):
            if any(row[place]._version for row in rows):
                lot.copy_(torch.stack([row[place] for row in rows]))
        outputs: list[Any] = []
        for k, x in enumerate(results[0]):
            # A function that writes into an argument returns it.
            given = next((leaves[place] for place in places if x is rows[0][place]), None)
            outputs.append(given if given is not None or x is None else torch.stack([result[k] for result in results]))
    out = [isolation.hide(x, level) if isinstance(x, Tensor) and not is_hidden(x) else x for x in outputs]
    return tree_unflatten(out, form)


def _of_shapes(name: str, call: Callable, leaves: list[Any]) -> list[torch.Size | None]:
    """Return the shape of each result, None for one that is None, from arguments that have no numbers."""
    empty = [torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x for x in leaves]
    try:
        result, _ = call(empty)
    except Exception as error:
        if explained(error) is not None:
            # `Isolation.run` says it in terms of the loss.
            said = "data-dependent control flow" if name == "__bool__" else str(error)
            raise RuntimeError(said) from error
        raise _refusal(name, f"torch refuses it for a shape alone ({str(error).splitlines()[0]})") from error
    if not all(x is None or isinstance(x, Tensor) for x in result):
        raise _refusal(name, "it returns something else than tensors")
    return list(map(_shape, result))


def _name_of(function: Callable) -> str:
    """Return the name of a function; of one that reads an attribute, the attribute's."""
    name = getattr(function, "__name__", str(function))
    owner = getattr(function, "__self__", None)
    return getattr(getattr(owner, "fget", owner), "__name__", name) if name == "__get__" else name


def _shape(x: Tensor | None) -> torch.Size | None:
    return None if x is None else x.shape


def _refusal(name: str, reason: str) -> ValueError:
    return ValueError(
        f"the loss calls {name}, which was not seen to keep records apart in torch {torch.__version__}. It would be "
        f"computed for each record alone, and {reason}: use other functions of torch"
    )


@functools.cache
def _say(name: str) -> None:
    """Warn once of each function, or else once of a version of torch that was not searched."""
    if MINOR not in _LISTS:
        return _say_unsearched()
    warnings.warn(
        f"the loss calls {name}, which was not seen to keep records apart in torch {torch.__version__}: it is computed for "
        "one record after the other, which is slow",
        stacklevel=2,
    )


@functools.cache
def _say_unsearched() -> None:
    warnings.warn(
        f"torch {torch.__version__} was not searched for functions that let records meet: what has no rule here is "
        f"computed for one record after the other, which is slow. Searched: torch {', '.join(_LISTS)}",
        stacklevel=2,
    )
