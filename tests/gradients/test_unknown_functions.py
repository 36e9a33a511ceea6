"""Functions that no search has listed for the running torch meet one record at a time, or are refused by their names."""

import ast
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lightning_dpgen.gradients.engine_check import check_exact
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.gradients.isolation import loss_guard as guard
from lightning_dpgen.gradients.isolation import torch_names, unknown_functions
from lightning_dpgen.gradients.isolation.isolation import Isolation
from lightning_dpgen.gradients.isolation.vmap_overrides import COMPUTING, override_for
from lightning_dpgen.gradients.terms import PerRecord
from lightning_dpgen.sampling.lots import Lot

ROOT = Path(__file__).parents[2]
TABLE = torch.arange(12.0).reshape(4, 3).sin()
SHARES = torch.full((4,), 0.3)
# A number on which gradients lead, as to a parameter.
SCALE = torch.tensor(1.5, requires_grad=True)


@pytest.fixture
def unsearched(monkeypatch):
    """Let the installed torch be one that was not searched."""
    known = frozenset(unknown_functions.NO_NUMBERS | unknown_functions._AS_OTHERS)
    monkeypatch.setattr(unknown_functions, "KEEPS_RECORDS_APART", known)
    monkeypatch.setattr(unknown_functions, "MINOR", "99.0")
    unknown_functions._say.cache_clear()
    unknown_functions._say_unsearched.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch .* was not searched")
        yield
    unknown_functions._say.cache_clear()
    unknown_functions._say_unsearched.cache_clear()


def _put(x, place, value):
    x[place] = value
    return x


# Functions of all kinds, those whose own rule for vmap is wrong among them.
FUNCTIONS = {
    "index_fill": lambda x: x.index_fill(0, torch.tensor([1]), 7.0),
    "index_fill_": lambda x: x.clone().index_fill_(0, torch.tensor([1]), 7.0),
    "roll": lambda x: x.sum().roll(1),
    # Its rule for vmap takes the dimension of the lot for one of the record's.
    "a target for several": lambda x: torch._C._nn.binary_cross_entropy(SHARES, x.detach().sum().sigmoid()),
    "solve": lambda x: torch.linalg.solve(torch.eye(3) + x[0].outer(x[1]), x[2]),
    "embedding": lambda x: F.embedding(x.abs().long() % 3, x, padding_idx=1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "linear": lambda x: F.linear(x, TABLE[:3]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1])),
    "several results": lambda x: x.sort(dim=1),
    "a named result": lambda x: torch.linalg.qr(x)[1].abs(),
    "operators": lambda x: -(2 - x) / 3 + x**2 @ x.T,
    "in place": lambda x: x.clone().add_(x.mean()).clamp_(max=1.0),
    "an item": lambda x: _put(x.clone(), (0, slice(None)), x.sum()),
    "an item of zeros": lambda x: _put(torch.zeros(3), 1, x.sum()),
    "an operator of aten": lambda x: torch.ops.aten.mul.Tensor(x, x),
    "no rule": lambda x: torch.nanmedian(x, dim=0).values,
    "trees": lambda x: torch.cat([x, torch.stack([x[0], x[1]])]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_not_listed_meets_one_record(unsearched, monkeypatch, name):
    """Also its gradient is that of one record by itself, and where no one has found its rule for vmap wrong."""
    monkeypatch.setattr(guard, "override_for", lambda function: None)
    torch.manual_seed(0)
    rows = torch.randn(4, 3, 3)

    def function(x: Tensor) -> list[Tensor]:
        return tree_leaves(FUNCTIONS[name](x * SCALE))

    found, alone = Isolation(4).run(function, rows), [function(row) for row in rows]
    for k, result in enumerate(found):
        torch.testing.assert_close(result, torch.stack([own[k] for own in alone]))
        if not (result.is_floating_point() and result.requires_grad):
            continue
        slopes = [torch.autograd.grad(x[k].sum(), SCALE, retain_graph=True, allow_unused=True)[0] for x in (found, *alone)]
        if slopes[0] is not None:
            torch.testing.assert_close(slopes[0], sum(slopes[1:]), rtol=1e-4, atol=1e-5)


def test_what_a_correction_computes_is_covered():
    names = {"index_fill", "index_fill_", "roll", "solve", "embedding"}
    found = {override_for(getattr(place, name, None)) for name in names for place in (torch, Tensor, torch.linalg, F)}
    assert found | {override_for(torch.embedding)} >= COMPUTING


class _Own(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient


MEANS = torch.zeros(2)
# Functions whose results follow from the values of a record, so that no made-up record can be handed to them.
READING = {
    "equal": (lambda x: x.sum() * torch.equal(x, x * 1), r"aten::equal\) whose result follows from the values"),
    "unique": (lambda x: x.sum() * torch.unique(x).numel(), r"aten::_unique2\) whose result follows from the values"),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x), "unique_consecutive.* follows from the values"),
    "dlpack": (lambda x: torch.from_dlpack(x), r"takes a value of a record out of torch \(from_dlpack"),
    "np.mean": (lambda x: np.mean(x), r"hands a record to numpy \(mean\)"),
    "np.std": (lambda x: np.std(x), r"hands a record to numpy \(std\)"),
    "np.median": (lambda x: np.median(x), "takes a value of a record out of torch"),
    "np.asarray": (lambda x: x * np.asarray(x), "takes a value of a record out of torch"),
    "version": (lambda x: x.sum() + x._version, "the loss calls _version, which was not seen"),
    "output_nr": (lambda x: x.sum() + x.output_nr, "the loss calls output_nr, which was not seen"),
}
REFUSED = {
    **READING,
    "address": (lambda x: x.sum() + x.data_ptr(), "data_ptr"),
    "bool": (lambda x: x.sum() if x.sum() > 0 else -x.sum(), "looks at a value"),
    "item": (lambda x: x.sum() * x.sum().item(), "looks at a value"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "a buffer": (lambda x: F.instance_norm(x[None], MEANS, torch.ones(2)), "instance_norm, which writes"),
    "torch.func": (torch.func.grad(lambda x: x.square().sum()), "requires_grad_, which was not seen.*torch.func"),
    "an autograd.Function": (_Own.apply, "exp, which was not seen.*autograd.Function"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_so_is_refused_by_name(unsearched, name):
    function, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        Isolation(3).run(function, torch.rand(3, 2, 3) + 1)
    assert not MEANS.any()


@pytest.mark.parametrize("name", READING)
def test_no_example_is_asked_for_where_none_can_help(name):
    function, words = READING[name]
    layer, lot = nn.Linear(3, 2), Lot(torch.rand(4, 3), (0, 4))
    term = PerRecord(lambda lot, _: layer(lot.records).square().sum(dim=1) * function(lot.records).sum())
    with pytest.raises(ValueError, match=words) as told:
        check_exact(ENGINES["ghost"], layer, term, lot, torch.zeros(4, 0))
    assert "example=" not in str(told.value) and "\n" not in str(told.value)


def test_it_says_once_that_a_torch_was_not_searched_and_how_slow_a_function_is(unsearched, monkeypatch):
    def run(function):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            Isolation(2).run(function, torch.ones(2, 2))
        return [str(warning.message) for warning in said]

    (said,) = run(lambda x: x.exp().log())
    assert "was not searched" in said and ", ".join(unknown_functions.read_listed()) in said
    assert run(lambda x: x.exp().sin()) == []
    monkeypatch.setattr(unknown_functions, "MINOR", next(iter(unknown_functions.read_listed())))
    unknown_functions._say.cache_clear()
    assert [words.split()[3] for words in run(lambda x: x.exp() + x.exp().log())] == ["exp,", "log,", "add,"]


def test_a_network_learns_the_same_without_the_list(unsearched):
    """Parameters have rules of their own, which need no rule of vmap."""
    from lightning_dpgen.gradients.engines import term_gradients
    from lightning_dpgen.privacy.noise.stream import PrivateStream
    from lightning_dpgen.sampling.lots import Lot

    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    rows = torch.rand(5, 3)
    term = PerRecord(lambda lot, _: layers(lot.records).square().sum(dim=1))
    found = term_gradients(layers, term, Lot(rows, (0, 5)), PrivateStream(0), engine="ghost")
    total = {p: torch.zeros_like(p) for p in layers.parameters()}
    found.weighted_sum(torch.ones(5), total)
    plain = torch.autograd.grad(layers(rows).square().sum(), list(layers.parameters()))
    for p, gradient in zip(layers.parameters(), plain, strict=True):
        torch.testing.assert_close(total[p], gradient)


def test_the_list_is_of_this_torch_and_the_cap_is_the_newest_searched():
    listed = unknown_functions.read_listed()
    assert len(listed[unknown_functions.MINOR]) > 800
    assert [name for name in listed[unknown_functions.MINOR] if torch_names.find(name) is None] == []
    (cap,) = re.findall(r'"torch>=[\d.]+,<2\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert max(int(version.split(".")[1]) for version in listed) == int(cap) - 1


@pytest.mark.parametrize("kind", [torch.float32, torch.int64, torch.complex64, torch.bool])
def test_a_function_that_looks_at_no_number_answers_as_for_one_record(kind):
    rows = torch.ones(4, 2, 3).to(kind)
    for function in unknown_functions.NO_NUMBERS:
        told = []
        Isolation(4).run(lambda x, f=function, told=told: (told.append(f(x)), x)[1], rows)
        assert told[0] == function(rows[0].clone()), function


def test_private_names_of_torch_are_looked_for_at_import():
    with pytest.raises(ImportError, match=r"lacks torch\._C\._nothing"):
        torch_names.check(("torch._C", "torch._C._nothing"))
    texts = (path.read_text() for path in (ROOT / "lightning_dpgen").rglob("*.py"))
    # To parse all files would take ten seconds.
    texts = (text for text in texts if "torch" in text and re.search(r"\b(?!self\b|cls\b)\w+(\.\w+)*\._(?!_)\w", text))
    lacking = {name for text in texts for name in _private_names(text)}
    assert len(torch_names._NAMES) > 30 and lacking - set(torch_names._NAMES) == set()


def _private_names(text):
    """Give the names of torch, private to it, that a file reaches by attributes; an import of one tells by itself."""
    tree = ast.parse(text)
    known = {"torch": "torch"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}

    def dotted(node):
        if isinstance(node, ast.Name):
            return known.get(node.id)
        place = dotted(node.value) if isinstance(node, ast.Attribute) else None
        return place and f"{place}.{node.attr}"

    names = {name for node in ast.walk(tree) if isinstance(node, ast.Attribute) and (name := dotted(node))}
    private = {name for name in names if re.search(r"\._(?!_)", name)}
    modules = {"torch._C", "torch._C._functorch", "torch._C._nn", "torch._C._autograd", "torch._tensor_str"}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)} - modules
