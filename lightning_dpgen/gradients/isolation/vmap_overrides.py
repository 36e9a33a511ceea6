"""Functions of torch whose rule for `torch.vmap` lets records meet: they are computed in another way, or refused.

Most of them take shapes that the function itself refuses: for a record that has one dimension too few, the rule takes the
dimension of the lot for one of the record's. Most were found by calling the functions of torch's own test database with
other records beside one (``tests/gradients/test_every_function.py``), some by calls that the database does not hold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._pytree import tree_map_only

from lightning_dpgen.gradients.isolation.hidden import is_hidden
from lightning_dpgen.sampling.trees import leaves_of

if TYPE_CHECKING:
    from lightning_dpgen.gradients.isolation.loss_guard import LossGuard


@functools.lru_cache(maxsize=4096)
def override_for(function: Callable) -> Callable | None:
    """Return the replacement of a function, called as ``f(guard, function, *args, **kwargs)``, or None.

    An operator of torch (``torch.ops.aten``) is found by the name of its function.
    """
    if isinstance(function, OpOverload):
        function = function.overloadpacket
    is_operator = isinstance(function, OpOverloadPacket)
    found = _BY_NAME.get(function.__name__) if is_operator else _CORRECTED.get(function)
    if found is not None or not isinstance(function, OpOverloadPacket | BuiltinFunctionType | MethodDescriptorType):
        return found
    name = function.__name__
    return _PRIVATE if name[0] == "_" and name[1] != "_" and name not in _KNOWN_PRIVATE else None


def _any_hidden(*tensors: Any) -> bool:
    return any(map(is_hidden, leaves_of(tensors)))


def _hits(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """Return where positions of a dimension are among the indices, in a shape that broadcasts with x."""
    count, index = x.shape[dim], index.reshape(-1, 1)
    positions = torch.arange(count, device=x.device)
    # An index beyond the end is no position. In memory it would be one of the next record.
    found = ((positions == index) | (positions == index + count)).any(dim=0)
    return found.view([count if i == dim % x.dim() else 1 for i in range(x.dim())])


def _index_fill(guard: LossGuard, function: Callable, x, dim, index, value):
    if not _any_hidden(x, index, value):
        return NotImplemented
    value = value.to(x.dtype) if isinstance(value, Tensor) else torch.full((), value, dtype=x.dtype, device=x.device)
    return torch.where(_hits(x, dim, index), value, x) if x.dim() else value + 0 * x


def _index_fill_(guard: LossGuard, function: Callable, x, dim, index, value):
    """Fill in place: a tensor without a record becomes one of each record's own, if the loss has made it."""
    if not _any_hidden(x, index, value):
        return NotImplemented
    guard.write(function, x, index, value)
    if not is_hidden(x):
        raise RuntimeError("vmap: inplace is not possible because there exists a Tensor of records")
    return x.copy_(_index_fill(guard, function, x, dim, index, value))


def _roll(guard: LossGuard, function: Callable, x, *shifts, **options):
    """Leave a single number as it is; vmap would roll it over the records."""
    return x.clone() if is_hidden(x) and x.dim() == 0 else NotImplemented


def _of_vectors(guard: LossGuard, function: Callable, *args, **kwargs):
    """Refuse single numbers where a function expects several: vmap would take those of all records."""
    if any(is_hidden(x) and x.dim() == 0 for x in leaves_of((args, kwargs))):
        raise ValueError(f"the loss calls {function.__name__} of a single number: give it a vector, as in x[None]")
    return NotImplemented


def _normalised(guard: LossGuard, function: Callable, input, normalized_shape, *rest, **options):
    """Refuse a normalisation over more dimensions than a record has."""
    if is_hidden(input) and input.dim() < len(normalized_shape):
        raise ValueError(
            f"the loss calls {function.__name__} over {list(normalized_shape)}, and a record there is {list(input.shape)}"
        )
    return NotImplemented


def _shapes_first(guard: LossGuard, function: Callable, *args, **kwargs):
    """Call the function of shapes alone first, so that it refuses those which vmap's rule would take."""
    if _any_hidden(args, kwargs):
        shapes = tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype, device="meta"), (args, kwargs))
        function(*shapes[0], **shapes[1])
    return NotImplemented


def _solve(guard: LossGuard, function: Callable, A, B, *, left=True, **options):
    """Solve for a matrix, so that the shape of the lot cannot make a matrix of a vector, or the other way round."""
    if not _any_hidden(A, B) or any(type(x) not in (Tensor, nn.Parameter) for x in (A, B)):
        return NotImplemented
    _shapes_first(guard, function, A, B, left=left)
    vector = B.dim() == 1 or B.shape == A.shape[:-1]
    # A record's own zeros, added to a tensor that all share, make one of each record's own.
    zero = sum(torch.zeros_like(x.detach()).sum() for x in (A, B) if is_hidden(x))
    own = [x if is_hidden(x) else x + zero for x in (A, B.unsqueeze(-1) if vector else B)]
    most = max(x.dim() for x in own)
    solution = function(*(x[(None,) * (most - x.dim())] for x in own), left=left, **options)
    if not vector:
        return solution
    return solution.squeeze(-1) if isinstance(solution, Tensor) else type(solution)((solution[0].squeeze(-1), solution[1]))


def _embedding(
    guard, function, input, weight, padding_idx=None, max_norm=None, norm_type=2.0, scale_grad_by_freq=False, sparse=False
):
    """Look words up in a table of each record's own, where vmap's rule forgets the padding, and lets an index that is out
    of range lead into the table of another record."""
    check_embedding(max_norm, scale_grad_by_freq)
    if not is_hidden(weight):
        return NotImplemented
    # An index below 0 would count from the end in brackets; here it must be an error.
    rows = weight[torch.where(input < 0, weight.shape[0], input)]
    if padding_idx is None:
        return rows
    return torch.where((input == padding_idx % weight.shape[0]).unsqueeze(-1), rows.detach(), rows)


def _embedding_operator(guard, function, weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    """Look words up as `F.embedding` does, by the operator behind it, to which -1 says that there is no padding."""
    padding = None if padding_idx == -1 else padding_idx
    return _embedding(guard, function, indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq)


def check_embedding(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    """Check that an embedding depends on no other lookup.

    Raises:
        ValueError: naming the argument to leave out.
    """
    if max_norm is not None:
        raise ValueError("an embedding with max_norm rescales the rows that a lot looks up, without noise: leave it out")
    if scale_grad_by_freq:
        raise ValueError("an embedding with scale_grad_by_freq divides by counts over the lot: leave it out")


def _stride(guard: LossGuard, function: Callable, x, *args, **kwargs):
    """Return the strides of one record alone; those of all records would tell how many there are."""
    return function(torch.empty(x.shape, device="meta"), *args, **kwargs) if is_hidden(x) else NotImplemented


def _empty(guard: LossGuard, function: Callable, *args, **kwargs):
    """Fill with zeros a tensor that would hold what was left in memory, numbers of earlier records among it."""
    tensor = guard.remember(function, *args, **kwargs)
    if kwargs.get("out") is None:
        with torch.no_grad():
            tensor.zero_()
    return tensor


def _new(guard: LossGuard, function: Callable, x, *sizes, **kwargs):
    """Make zeros of the sizes, as `_empty` does."""
    sizes = (kwargs["size"],) if "size" in kwargs else sizes
    if not sizes or not all(isinstance(size, int | tuple) for size in sizes):
        return NotImplemented
    return guard.remember(Tensor.new_zeros, x, torch.Size(sizes[0] if isinstance(sizes[0], tuple) else sizes))


def _between(guard: LossGuard, function: Callable, *args, **kwargs):
    """Refuse ends of a range that are not single numbers, as torch does for one record."""
    if any(is_hidden(x) and x.dim() for x in leaves_of((args, kwargs))):
        raise ValueError(f"the loss calls {function.__name__} between vectors: give it single numbers of a record")
    return NotImplemented


def _dual(guard: LossGuard, function: Callable, *args, **kwargs):
    """Refuse a derivative in forward mode that is not one of torch.func: no record would have it."""
    if (guard.isolation is None or guard.isolation.is_innermost) and _any_hidden(args, kwargs):
        raise ValueError(
            "the loss takes a derivative in forward mode (forward_ad.make_dual), which is lost where each record is alone: "
            "use torch.func.jvp with engine='func'"
        )
    return NotImplemented


def _refused(reason: str) -> Callable:
    def refuse(guard: LossGuard, function: Callable, *args, **kwargs):
        if _any_hidden(args, kwargs):
            raise ValueError(f"the loss {reason}")
        return NotImplemented

    return refuse


_PRIVATE = _refused("calls a function of torch that is not public (its name begins with _): call the public one")
_KNOWN_PRIVATE = {
    "_standard_gamma", "_standard_gamma_grad", "_sample_dirichlet", "_dirichlet_grad", "_weight_norm", "_unpack_dual",
    "_shape_as_tensor", "_assert_async", "_is_view", "_softmax", "_log_softmax",
}  # fmt: skip
_BY_POSITION = _refused("reads a record by positions in memory (as_strided): use unfold, narrow or an index")
_LEAST_SQUARES = _refused(
    "calls lstsq, whose residuals are empty for all records if one of them is short of rank: use torch.linalg.solve or "
    "torch.linalg.pinv"
)
_PACKED = _refused(
    "pads or packs sequences (pad_sequence, pack_padded_sequence), whose lengths are a record's own: give records padded "
    "to a public length to the recurrent layer, and take the output at a record's end by torch.gather"
)
_RESIZED = _refused("changes the size of a tensor in its memory (resize_): use reshape, or a new tensor")


def _named(*names: str) -> list[Callable]:
    """Return the functions of these names that torch has, as its own and as methods."""
    places = (torch, Tensor, torch.linalg)
    return [getattr(place, name) for name in names for place in places if hasattr(place, name)]


_CORRECTED: dict[Callable, Callable] = {
    **dict.fromkeys(_named("index_fill"), _index_fill),
    **dict.fromkeys(_named("index_fill_"), _index_fill_),
    **dict.fromkeys(_named("roll"), _roll),
    **dict.fromkeys(
        _named("multinomial", "searchsorted", "bucketize", "_sample_dirichlet", "_dirichlet_grad"), _of_vectors
    ),
    **dict.fromkeys([F.layer_norm, F.rms_norm, *_named("layer_norm", "native_layer_norm", "rms_norm")], _normalised),
    **dict.fromkeys(_named("tril", "triu", "tril_", "triu_", "constant_pad_nd", "addbmm_"), _shapes_first),
    **dict.fromkeys(_named("solve", "solve_ex"), _solve),
    F.embedding: _embedding,
    torch.embedding: _embedding_operator,
    **dict.fromkeys(_named("stride", "is_contiguous"), _stride),
    **dict.fromkeys(
        _named("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"), _empty
    ),
    Tensor.new: _new,
    **dict.fromkeys(_named("linspace", "logspace"), _between),
    **dict.fromkeys(_named("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"), _BY_POSITION),
    **dict.fromkeys(_named("resize_", "resize_as_", "resize", "resize_as", "set_"), _RESIZED),
    **dict.fromkeys(_named("lstsq"), _LEAST_SQUARES),
    **dict.fromkeys((torch._pack_padded_sequence, torch._C._nn.pad_sequence), _PACKED),
    **dict.fromkeys(
        _named("batch_norm_update_stats"),
        _refused("calls batch_norm_update_stats, which writes statistics of records into its buffers: leave it out"),
    ),
    **dict.fromkeys(
        _named("segment_reduce", "lu_unpack"),
        _refused(
            "calls segment_reduce or lu_unpack, which follow a record's numbers to any place in memory: use "
            "scatter_reduce, or torch.linalg.lu"
        ),
    ),
    torch._make_dual: _dual,
}  # fmt: skip
# They compute by other functions under vmap; all others only refuse, or return no number of a record.
COMPUTING = {_index_fill, _index_fill_, _roll, _solve, _embedding, _embedding_operator}
_BY_NAME = {function.__name__: instead for function, instead in _CORRECTED.items()} | {
    "embedding": _embedding_operator,
    "embedding_bag": _refused("calls an operator behind F.embedding_bag: call that"),
    "resize": _RESIZED,
    "resize_as": _RESIZED,
    "linalg_solve": _solve,
    "linalg_solve_ex": _solve,
    "linalg_lstsq": _LEAST_SQUARES,
}
