"""Search the installed torch for functions that keep the records of a lot apart, and list them for the package.

    python -m tests.gradients.search_torch        (10 to 20 minutes; writes the list and the cap in pyproject.toml)

Torch's own test database gives arguments for some 700 functions, and each is called by all of its names: as a function, a
method, an operator, in place. A tensor among the arguments becomes a lot in two ways: as it is, so that a record has one
dimension fewer than the function asks for, and three times beside itself. A function is listed if calls of it were accepted
and no record changed the result of another, nor its gradient, nor did a record's place in the lot. Each entry of the
database runs in a child, since a few functions follow numbers to any place in memory.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import json
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lightning_dpgen.gradients.isolation import unknown_functions
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.isolation.loss_guard import LossGuard
from lightning_dpgen.gradients.isolation.torch_names import find

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
# Samples of each function, at most: by the name that the database has, and by its other names.
SAMPLES, OTHER_SAMPLES, GRADIENTS = 12, 4, 2
# Products round a row in ways that depend on the number of rows.
TOLERANCE = {"rtol": 1e-3, "atol": 1e-4, "equal_nan": True}
_SECONDS = 300


class _Any:
    """All functions, so that the search calls those that are not listed, too."""

    def __contains__(self, function: Callable) -> bool:
        return True


@dataclass
class Finding:
    """Counts of accepted calls, and the faults that were found, each by the name of the function."""

    accepted: Counter = field(default_factory=Counter)
    # Functions that were all of an accepted call.
    by_itself: set[str] = field(default_factory=set)
    faults: list[tuple[str, set[str]]] = field(default_factory=list)

    def __iadd__(self, other: Finding) -> Finding:
        self.accepted += other.accepted
        self.by_itself |= other.by_itself
        self.faults += other.faults
        return self

    @property
    def blamed(self) -> set[str]:
        """Functions that have a fault: not those that only stand beside one in a call, and have none by themselves."""
        single = set().union(*(names for _, names in self.faults if len(names) == 1))
        sound = self.by_itself - single
        return single.union(*(names - sound or names for _, names in self.faults))


Job = tuple[str, Callable[[], Finding]]
_met: set[Callable] = set()
_SEEDED = torch.Generator().manual_seed(0).get_state()


def _watch_all() -> None:
    """Let every function be called as vmap has it, and note those that meet a record."""
    unknown_functions.KEEPS_RECORDS_APART, usual = _Any(), LossGuard.call

    def call(self: LossGuard, function: Callable, args: tuple, kwargs: dict[str, Any], **options: Any) -> Any:
        if any(
            isinstance(x, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(x)
            for x in tree_leaves((args, kwargs))
        ):
            _met.add(function)
        return usual(self, function, args, kwargs, **options)

    LossGuard.call = call


def name_of(function: Callable) -> str | None:
    """Return a dotted name by which the package finds the function; None where there is none."""
    words = {getattr(function, "__name__", ""), getattr(function, "__qualname__", "")}
    places = (
        getattr(function, "__module__", None),
        "torch",
        "torch.Tensor",
        "torch.nn.functional",
        "torch._C._nn",
        "torch.ops",
    )
    resolved = torch.overrides.resolve_name(function)
    names = [resolved, f"torch.ops.{resolved}", *(f"{place}.{word}" for place in places for word in sorted(words))]
    return next((name for name in names if name and name[:6] == "torch." and find(name) == function), None)


def _others(rows: Tensor, i: int) -> Iterator[Tensor]:
    """Give lots with the same i-th record and other records beside it."""
    for change in (lambda x: ~x if x.dtype == torch.bool else x + 1, lambda x: x.flip(0), torch.zeros_like):
        changed = change(rows)
        changed[i] = rows[i]
        yield changed


def _placed(sample, place):
    """Give a tensor of a sample, and the sample's arguments with another one in its place, which may be first in a list."""
    if place == "input":
        return sample.input, lambda x: ((x, *sample.args), sample.kwargs)
    if isinstance(place, int):
        return sample.args[place], lambda x: (
            (sample.input, *sample.args[:place], x, *sample.args[place + 1 :]),
            sample.kwargs,
        )
    return sample.kwargs[place], lambda x: ((sample.input, *sample.args), sample.kwargs | {place: x})


def _lots(x: Tensor) -> Iterator[Tensor]:
    if x.dim() and 2 <= x.shape[0] <= 12 and x.numel():
        yield x.clone()
    if 0 < x.numel() < 500:
        yield torch.stack([x, ~x if x.dtype == torch.bool else x + 1, x])


def _isolated(function: Callable, rows: Tensor) -> list[Any]:
    torch.default_generator.manual_seed(0)
    # `run` does more than to hide records, which would take most of the time.
    return tree_leaves(Isolation(len(rows))._run(function, (rows,)))


def _alike(found: list[Any], other: list[Any], i: int, j: int | None = None) -> bool:
    """Compare the results of the i-th record with those of the j-th in another lot; its own place by default."""
    wide, j = torch.complex128, i if j is None else j
    return all(
        x[i].shape == y[j].shape and torch.allclose(x[i].to(wide), y[j].to(wide), **TOLERANCE)
        if isinstance(x, Tensor)
        else x == y
        for x, y in zip(found, other, strict=True)
        if not isinstance(x, Tensor) or x.numel() or y.numel()
    )


def look(function: Callable, rows: Tensor, what: str, thorough: bool = True) -> Finding:
    """Call a function of one record with a lot, and with other records beside each."""
    found, compared = Finding(), 0
    _met.clear()
    try:
        results = _isolated(function, rows.clone())
    except Exception:
        return found
    drawn = not torch.equal(torch.default_generator.get_state(), _SEEDED)
    names = {name for met in _met if (name := name_of(met)) is not None}
    # An answer that is no tensor is the same for all records, and so must be the one that each has by itself.
    if any(x is not None and not isinstance(x, Tensor) for x in results):
        alone = tree_leaves(function(rows[0].clone()))
        if [x for x in alone if not isinstance(x, Tensor)] != [x for x in results if not isinstance(x, Tensor)]:
            found.faults.append((f"{what}: answers for the lot", names))
    # Numbers are drawn one after the other, and how many a record takes may follow from it: only the first is comparable.
    lots = [(i, other) for i in ((0,) if drawn else (0, len(rows) - 1)) for other in _others(rows, i)]
    for i, other in lots if thorough else (lots[0], lots[-2]):
        try:
            beside = _isolated(function, other)
        except Exception:
            continue
        compared += 1
        if not _alike(results, beside, i):
            found.faults.append((what, names))
    if compared and results:
        found.accepted.update(names)
        found.by_itself |= names if len(names) == 1 else set()
    if not thorough or drawn:
        return found
    try:
        turned = _isolated(function, rows.flip(0))
    except Exception:
        return found
    if not all(_alike(results, turned, i, -1 - i) for i in range(len(rows))):
        found.faults.append((f"{what}: by its place in the lot", names))
    return found


def _slope(function: Callable) -> Callable:
    """Return the gradient of the numbers that a function gives, by its one argument."""

    def total(x: Tensor) -> Tensor:
        results = [y for y in tree_leaves(function(x)) if isinstance(y, Tensor) and y.is_floating_point()]
        return sum((y * y).sum() for y in results)

    return torch.func.grad(total)


def variants(operator: Any) -> Iterator[tuple[Callable, int]]:
    """Give a function of the database under each name that torch has for it, with how many samples to try."""
    yield operator.op, SAMPLES
    names, known = {operator.name.split(".")[-1].strip("_")}, {operator.op}
    for own in (operator, *operator.aliases):
        names.add(own.name.split(".")[-1].strip("_"))
        for kind in ("op", "method_variant", "inplace_variant", "operator_variant", "inplace_operator_variant"):
            if (function := getattr(own, kind, None)) is not None and function not in known:
                known.add(function)
                yield function, OTHER_SAMPLES
    places = (torch, Tensor, F, torch.special, torch.linalg, torch._C._nn)
    words = [word for name in sorted(names) for word in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")]
    for place, word in itertools.product(places, words):
        function = getattr(place, word, None)
        if callable(function) and function not in known:
            known.add(function)
            yield function, OTHER_SAMPLES


def search(operator: Any) -> Finding:
    """Look at all calls of one entry of the database."""
    finding = Finding()
    for (function, most), dtype in itertools.product(variants(operator), (torch.float32, torch.int64)):
        if dtype not in operator.supported_dtypes("cpu"):
            continue
        samples = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=False), 400))
        # Spread over all, since options come one after the other.
        for number, sample in enumerate(samples[:: max(1, len(samples) // most)][:most]):
            for place in ["input", *range(len(sample.args)), *sample.kwargs]:
                x, arguments = _placed(sample, place)
                if isinstance(x, list | tuple) and x:
                    x, rest = x[0], x[1:]
                    arguments = lambda row, of=arguments, rest=rest: of([row, *rest])  # noqa: E731
                if not isinstance(x, Tensor) or x.layout != torch.strided:
                    continue

                def of_row(row, arguments=arguments, function=function):
                    args, kwargs = arguments(row)
                    return function(*args, **kwargs)

                for rows in _lots(x):
                    called = getattr(function, "__name__", function)
                    what = f"{called} ({operator.full_name}): {place}, {tuple(rows.shape)}, {sample.kwargs}"
                    seen = look(of_row, rows, what, thorough=function is operator.op)
                    finding += seen
                    if seen.accepted and number < GRADIENTS and x.is_floating_point() and operator.supports_autograd:
                        slope = look(_slope(of_row), rows, what, thorough=False)
                        finding.faults += [(f"gradient of {fault}", set(seen.accepted)) for fault, _ in slope.faults]
    return finding


def _in_children(jobs: list[Job]) -> Finding:
    """Do jobs in one child; where it ends early, each half in one of its own."""
    found = _in_a_child(jobs)
    if found is not None or len(jobs) == 1:
        return found or Finding(faults=[(f"{jobs[0][0]}: the process ended", set())])
    middle, both = len(jobs) // 2, Finding()
    for part in (jobs[:middle], jobs[middle:]):
        both += _in_children(part)
    return both


def _in_a_child(jobs: list[Job]) -> Finding | None:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(_SECONDS)
        warnings.simplefilter("ignore")
        _watch_all()
        found = Finding()
        for _, job in jobs:
            found += job()
        with os.fdopen(writing, "wb") as file:
            pickle.dump(found, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        told = file.read()
    _, status = os.waitpid(child, 0)
    return pickle.loads(told) if told and not status else None


def search_all() -> Finding:
    """Look at all calls of torch's own test database, and at `_calls`, which it has not."""
    # The import takes seconds.
    from torch.testing._internal.common_methods_invocations import op_db

    torch.set_num_threads(1)
    finding = Finding()
    jobs = [(operator.full_name, lambda operator=operator: search(operator)) for operator in op_db]
    jobs += [(name, lambda call=call, name=name: search_call(call, name)) for name, call in _calls()]
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as workers:
        for found in workers.map(_in_children, [jobs[i : i + 12] for i in range(0, len(jobs), 12)]):
            finding += found
    return finding


def search_call(call: Callable, name: str) -> Finding:
    """Look at a call of one record's tensor, which may be of several shapes and types."""
    finding = Finding()
    for shape, kind in itertools.product(SHAPES, (torch.float32, torch.int64, torch.bool)):
        numbers = torch.arange(4 * torch.Size(shape).numel()).reshape(4, *shape) * 7 % 11
        finding += look(call, (numbers / 4 - 1 if kind.is_floating_point else numbers % 5).to(kind), f"{name} {shape}")
    return finding


SHAPES = ((), (3,), (2, 3), (3, 3), (2, 1, 3), (1, 2, 4, 4))


def _calls() -> Iterator[tuple[str, Callable]]:
    """Give calls that the database does not hold, each with a name for messages."""
    for word in ("T", "mT", "H", "mH", "real", "imag", "data", "grad"):
        yield word, lambda x, word=word: getattr(x, word)
    for word in METHODS:
        yield word, lambda x, word=word: getattr(x, word)()
    for word in OPERATORS:
        yield word, lambda x, word=word: getattr(x.clone(), f"__{word}__")(x)
        yield f"{word} 2", lambda x, word=word: getattr(x.clone(), f"__{word}__")(2)
        yield f"2 {word}", lambda x, word=word: getattr(torch.full((3,), 2), f"__{word}__")(x)
    for word in ("abs", "neg", "pos", "invert", "reversed"):
        yield word, lambda x, word=word: getattr(x, f"__{word}__")()
    for name, layer in LAYERS.items():
        yield name, layer
    for name, call in OTHERS.items():
        yield name, call


METHODS = (
    "clone", "contiguous", "detach", "detach_", "bool", "byte", "char", "short", "int", "long", "half", "bfloat16", "float",
    "double", "cfloat", "cdouble", "cpu", "requires_grad_", "stride", "is_contiguous", "is_same_size", "logical_not_", "t",
    "t_", "squeeze_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_", "cauchy_", "log_normal_",
    "relu_", "softmax", "log_softmax", "ravel", "nonzero", "norm", "cov", "corrcoef", "storage_offset", "retain_grad",
    "positive", "adjoint", "isreal", "nan_to_num_", "sigmoid_", "tanh_", "numpy", "data_ptr", "__reversed__",
    "resolve_conj", "resolve_neg", "new_empty", "new_zeros", "new_ones", "new_tensor", "type", "view", "item", "tolist",
    "unique", "unique_consecutive", "values", "indices", "untyped_storage", "storage", "argwhere",
)  # fmt: skip
OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift", "eq", "ne",
    "lt", "le", "gt", "ge", "radd", "rsub", "rmul", "rtruediv", "rfloordiv", "rmod", "rpow", "rmatmul", "rand", "ror",
    "rxor", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift",
    "div", "idiv", "rdiv", "rlshift", "rrshift", "contains",
)  # fmt: skip
_WEIGHTS = [
    torch.arange(1.0, 1 + torch.Size(shape).numel()).sin().reshape(shape)
    for shape in ((3, 3), (12, 3), (12, 3), (12,), (12,), (3, 3, 3), (9, 3), (3, 3), (9,), (3,))
]
_SQUARE, _W_IN, _W_HIDDEN, _B_IN, _B_HIDDEN, _CUBE, _W_ATTENTION, _W_OUT, _B_ATTENTION, _B_OUT = _WEIGHTS
_GRU = [_W_IN[:9], _W_HIDDEN[:9], _B_IN[:9], _B_HIDDEN[:9]]
_RNN = [_W_IN[:3], _W_HIDDEN[:3], _B_IN[:3], _B_HIDDEN[:3]]


def _unbatched(function: Callable, weights: list[Tensor], cells: bool) -> Callable:
    def call(x: Tensor) -> Any:
        start = torch.zeros(1, x.shape[-2], 3)
        return function(x, (start, start) if cells else start, weights, True, 1, 0.0, False, False, True)

    return call


LAYERS = {
    "lstm": _unbatched(torch.lstm, [_W_IN, _W_HIDDEN, _B_IN, _B_HIDDEN], True),
    "gru": _unbatched(torch.gru, _GRU, False),
    "rnn_tanh": _unbatched(torch.rnn_tanh, _RNN, False),
    "rnn_relu": _unbatched(torch.rnn_relu, _RNN, False),
    "lstm_cell": lambda x: torch.lstm_cell(x, (x, x), _W_IN, _W_HIDDEN, _B_IN, _B_HIDDEN),
    "gru_cell": lambda x: torch.gru_cell(x, x, *_GRU),
    "rnn_tanh_cell": lambda x: torch.rnn_tanh_cell(x, x, *_RNN),
    "rnn_relu_cell": lambda x: torch.rnn_relu_cell(x, x, *_RNN),
    "attention": lambda x: F.multi_head_attention_forward(
        x, x, x, 3, 1, _W_ATTENTION, _B_ATTENTION, None, None, False, 0.0, _W_OUT, _B_OUT, training=True
    ),
    "batch_norm": lambda x: F.batch_norm(x, torch.ones(x.shape[1]), torch.ones(x.shape[1])),
    "dropout": lambda x: F.dropout(x, 0.5),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu_": lambda x: torch.rrelu_(x * 1, training=True),
    "torch.rrelu": lambda x: torch.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x, hard=True),
    "embedding": lambda x: F.embedding(x % 3, _SQUARE),
    "torch.embedding": lambda x: torch.embedding(_SQUARE, x % 3),
    "embedding_bag": lambda x: F.embedding_bag(x % 3, nn.Parameter(_SQUARE)),
    "one_hot": lambda x: F.one_hot(x % 3, 3),
    "fold": lambda x: F.fold(x[:, 0], 1, 1),
}
OTHERS: dict[str, Callable] = {
    "slope": lambda x: torch.func.grad(lambda y: y.square().sum())(x),
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
    "add to constants": lambda x: torch._foreach_add([x, x], 1.0),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.zeros(2, 3)),
    "one row": lambda x: x[0],
    "a row more": lambda x: x[None],
    "the last": lambda x: x[..., -1:],
    "by index": lambda x: torch.arange(3)[x % 3],
    "rows": lambda x: list(x),
    "put": lambda x: _put(torch.zeros(4, 3), 1, x),
    "put a number": lambda x: _put(x, 0, 1),
    "copied": lambda x: torch.zeros(2, 3).copy_(x),
    "exp of base": lambda x: 2**x,
    "set": lambda x: x.masked_fill_(x > 1, 0),
    "moved": lambda x: x.to(torch.float64),
    "like": lambda x: x.to(torch.zeros(1, dtype=torch.float64)),
    "type_as": lambda x: x.type_as(torch.zeros(1)),
    "split": lambda x: torch.split(x, 1),
    "sections": lambda x: torch.split(x, [1, 2], dim=-1),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "binomial": lambda x: torch.binomial(x.abs() + 3, x.sigmoid()),
    "poisson": lambda x: torch.poisson(x.abs()),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 1),
    "dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 1),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 1),
    "mean of normals": lambda x: torch.normal(x, 1.0),
    "both of normals": lambda x: torch.normal(x, x.abs() + 1),
    "weight_norm": lambda x: torch._weight_norm(x, x[:1], 0),
    "shape": torch._shape_as_tensor,
    "gradient": lambda x: torch.gradient(x, dim=-1),
    "stft": lambda x: torch.stft(x.flatten(), 2, return_complex=True, window=torch.ones(2)),
    "grid": lambda x: F.grid_sample(x, torch.zeros(1, 2, 2, 2), align_corners=False),
    "affine_grid": lambda x: F.affine_grid(x, [1, 1, 2, 2], align_corners=False),
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, dim=-1),
    "cdist": lambda x: torch.cdist(x, x + 1),
    "einsum": lambda x: torch.einsum("...i,ij->...j", x, _SQUARE),
    "tensordot": lambda x: torch.tensordot(x, _SQUARE, dims=1),
    "result_type": lambda x: torch.result_type(x, 1.0),
    "can_cast": lambda x: x.is_same_size(x),
    **{
        name: lambda x, name=name: getattr(torch, name)(x)
        for name in (
            "detach",
            "detach_copy",
            "imag",
            "view_as_real",
            "view_as_real_copy",
            "is_tensor",
            "is_same_size",
            "nonzero",
            "norm",
            "frobenius_norm",
            "nuclear_norm",
            "max_pool1d",
            "is_conj",
            "is_neg",
            "is_inference",
        )
    },
    **{name: lambda x, name=name: getattr(torch, name)(x, 2) for name in ("max_pool1d", "max_pool2d", "max_pool3d")},
    **{
        name: lambda x, name=name: getattr(torch, name)(x, 0.5, True)
        for name in (
            "dropout",
            "dropout_",
            "alpha_dropout",
            "feature_dropout",
            "feature_alpha_dropout",
            "native_dropout",
        )
    },
    **{
        name: lambda x, name=name: getattr(torch, name)(x, x + 1)
        for name in (
            "kl_div",
            "hinge_embedding_loss",
            "is_same_size",
            "equal",
            "allclose",
        )
    },
    "poisson_nll_loss": lambda x: torch.poisson_nll_loss(x, x + 1, True, False, 1e-8, 1),
    "margin_ranking_loss": lambda x: torch.margin_ranking_loss(x, x + 1, x.sign()),
    "cosine_embedding_loss": lambda x: torch.cosine_embedding_loss(x, x + 1, x[:, 0].sign()),
    "torch.batch_norm": lambda x: torch.batch_norm(
        x, None, None, torch.ones(x.shape[1]), torch.ones(x.shape[1]), False, 0.1, 1e-5, False
    ),
    "torch.instance_norm": lambda x: torch.instance_norm(x, None, None, None, None, True, 0.1, 1e-5, False),
    **{name: lambda x, name=name: getattr(F, name)(x, 2.0, 2) for name in ("lp_pool1d", "lp_pool2d", "lp_pool3d")},
    **{
        name: lambda x, name=name: getattr(F, name)(x)
        for name in ("sigmoid", "tanh", "dropout1d", "dropout2d", "alpha_dropout")
    },
    **{
        name: lambda x, name=name: getattr(F, name)(x, scale_factor=2)
        for name in (
            "upsample",
            "upsample_nearest",
            "upsample_bilinear",
        )
    },
    "columns": lambda x: F.fold(x[:, :1, 0], (2, 2), (1, 1)),
    "roll": lambda x: x.roll(1),
    "roll rows": lambda x: x.roll(1, 0),
    "lists": lambda x: torch.stack([x, x + 1]),
    "lists of one": lambda x: torch.hstack([x, x]),
    "new_tensor": lambda x: x.new_tensor(2.0),
    "slices": lambda x: x.slice_scatter(x[:1] + 1, 0, 0, 1),
    "copied slices": lambda x: torch.slice_copy(x, 0, 0, 1),
    "float_power_": lambda x: x.float_power_(2.0),
    "fill_diagonal_": lambda x: x.fill_diagonal_(2.0),
    "triplets": lambda x: F.triplet_margin_with_distance_loss(x, x + 1, x - 1),
    "grid_theta": lambda x: F.affine_grid(x[:1], [1, 1, 2, 2], align_corners=False),
    "many products": lambda x: torch.linalg.multi_dot([x, _SQUARE, _SQUARE]),
}


def _put(x: Tensor, place: int, value: Any) -> Tensor:
    x = x.clone()
    x[place] = value
    return x


def write(version: str, names: set[str]) -> None:
    """Put the functions of a version of torch into the package's list, and raise the cap to the newest there."""
    listed = unknown_functions.read_listed() if unknown_functions.LISTED.exists() else {}
    listed[version] = names
    order = sorted(listed, key=lambda minor: [int(part) for part in minor.split(".")])
    by_versions: dict[str, dict[str, list[str]]] = {}
    for name in sorted(set().union(*listed.values())):
        place, _, word = name.rpartition(".")
        if name.startswith("torch.Tensor."):
            place, word = "torch.Tensor", name.removeprefix("torch.Tensor.")
        versions = " ".join(minor for minor in order if name in listed[minor])
        by_versions.setdefault(versions, {}).setdefault(place, []).append(word)
    text = {
        versions: {place: " ".join(words) for place, words in places.items()} for versions, places in by_versions.items()
    }
    unknown_functions.LISTED.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")
    major, minor = map(int, order[-1].split("."))
    told = re.sub(r'"torch>=([\d.]+),<[\d.]+"', rf'"torch>=\1,<{major}.{minor + 1}"', PROJECT.read_text())
    PROJECT.write_text(told)


def main() -> int:
    begun = time.monotonic()
    finding = search_all()
    listed = set(finding.accepted) - finding.blamed
    for fault, names in finding.faults:
        print(f"{fault}: {', '.join(sorted(names))}")
    write(unknown_functions.MINOR, listed)
    print(
        f"torch {torch.__version__}: {sum(finding.accepted.values())} calls in {time.monotonic() - begun:.0f} s; "
        f"{len(listed)} functions listed, {len(finding.blamed)} not: {' '.join(sorted(finding.blamed))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
