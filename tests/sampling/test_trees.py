"""Trees of tensors are walked as torch walks them."""

import collections

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from lightning_dpgen.sampling.trees import leaves_of, map_tree

Point = collections.namedtuple("Point", "x y")
ONE, TWO = torch.ones(2), torch.nn.Parameter(torch.zeros(1))
TREES = [
    ONE,
    TWO,
    (),
    (ONE, [TWO, {"b": 1, "a": (None, 2.0)}]),
    Point(ONE, (TWO, [3])),
    collections.OrderedDict(z=ONE, a=[TWO]),
    [torch.Size([2]), slice(None, 3), torch.float32, "text", (collections.deque([ONE, 4]),)],
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_trees_are_those_of_torch(tree):
    def change(x):
        return x + 1 if isinstance(x, int | torch.Tensor) else x

    assert all(a is b for a, b in zip(leaves_of(tree), tree_leaves(tree), strict=True))
    found, expected = map_tree(change, tree), tree_map(change, tree)
    assert type(found) is type(expected) and str(found) == str(expected)
