"""Wherever records are kept, lots are the same; what cannot be sampled is refused, without a word about a record."""

import random
from collections import namedtuple

import numpy as np
import pytest
import scipy.sparse
import torch
from contracts.laws.accounts import account_of
from contracts.laws.lots import CLUSTERS, inclusion_is_independent_with_the_public_rate, lots_of, numbers_in
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import check_finite
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.sampling.lots import PoissonLots
from lightning_dpgen.sampling.randomness import randomness_of_their_own

Row = namedtuple("Row", "x y")
# A number that no message may hold.
SECRET = 7331


class Items(Dataset):
    """A data set of the items that a function makes from rows."""

    def __init__(self, rows, item=lambda row: row):
        self.rows, self.item = rows, item

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.item(self.rows[i])


def _file(folder, array):
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    return path


def _mapped(folder, array):
    return np.load(_file(folder, array), mmap_mode="r")


def _raw(folder, array):
    array.tofile(folder / "raw")
    return np.memmap(folder / "raw", array.dtype, "r", shape=array.shape)


def _parts(folder, rows):
    """Split every entry of a csr matrix into two halves in the same place; return data, indices and indptr."""
    whole = scipy.sparse.csr_array(rows.numpy())
    parts = np.repeat(whole.data / 2, 2), np.repeat(whole.indices, 2), 2 * whole.indptr
    return tuple(_mapped(folder, part) for part in parts)


def _csr(folder, rows, make=scipy.sparse.csr_array):
    return make(_parts(folder, rows), shape=rows.shape)


# Each store keeps a float32 matrix of whole numbers from 0 to 127.
KEPT = {
    "tensor": lambda folder, x: x,
    "tensor in columns": lambda folder, x: x.T.contiguous().T,
    "float64": lambda folder, x: x.double(),
    "bfloat16": lambda folder, x: x.bfloat16(),
    "int64": lambda folder, x: x.long(),
    "array": lambda folder, x: x.numpy().astype(np.float16),
    "array from behind": lambda folder, x: x.flip(0).numpy()[::-1],
    "memory-mapped": lambda folder, x: _mapped(folder, x.numpy()),
    "memory-mapped in columns": lambda folder, x: _mapped(folder, np.asfortranarray(x.numpy())),
    "memmap": lambda folder, x: _raw(folder, x.numpy()),
    "bytes": lambda folder, x: store_of((2 * x).to(torch.uint8), scale=2.0),
    "memory-mapped bytes": lambda folder, x: store_of(_mapped(folder, x.numpy().astype(np.uint8)), scale=1),
    "csr_matrix": lambda folder, x: scipy.sparse.csr_matrix(x.numpy()),
    "csr_array of int64": lambda folder, x: scipy.sparse.csr_array(x.numpy().astype(np.int64)),
    "memory-mapped csr": _csr,
    "memory-mapped csr_matrix": lambda folder, x: _csr(folder, x, scipy.sparse.csr_matrix),
    "tuple": lambda folder, x: (x, x[:, 0].numpy()),
    "named tuple": lambda folder, x: Row(_mapped(folder, x.numpy()), scipy.sparse.csr_array(x.numpy())),
    "dict": lambda folder, x: {"x": store_of(x.numpy().astype(np.uint8), scale=1), "y": (x, x)},
    "TensorDataset": lambda folder, x: TensorDataset(x, x[:, 0]),
    "Dataset": lambda folder, x: Items(x),
    "Dataset of dicts": lambda folder, x: Items(x, lambda row: {"x": row.numpy(), "y": float(row[0])}),
    "Subset": lambda folder, x: Subset(Items(x), range(len(x))),
}


@pytest.fixture(params=KEPT)
def kept(request, tmp_path):
    """Return a function that puts a matrix where it is to be kept."""
    return lambda rows: KEPT[request.param](tmp_path, rows)


ROWS = torch.randint(0, 128, (40, 6), generator=torch.Generator().manual_seed(0)).float()
ROWS[7] = 0.0


def test_records_are_fetched_as_they_are(kept):
    """Records are copies, in the order asked for; types and sizes are the same where none is asked for."""
    store = store_of(kept(ROWS))
    assert len(store) == 40
    none = store.take(np.zeros(0, np.int64))
    for positions in ([], [3], [39, 0, 7, 21], range(40)):
        taken = store.take(np.array(positions, dtype=np.int64))
        leaves, forms = tree_flatten(taken)
        assert forms == tree_flatten(none)[1]
        for leaf, empty in zip(leaves, tree_leaves(none), strict=True):
            expected = ROWS[list(positions)] if leaf.dim() == 2 else ROWS[list(positions), 0]
            torch.testing.assert_close(leaf, expected.to(leaf.dtype), rtol=0, atol=0)
            assert (leaf.dtype, leaf.shape[1:]) == (empty.dtype, empty.shape[1:])
            leaf.fill_(99)
    torch.testing.assert_close(tree_leaves(store.take(np.array([3])))[0].float(), ROWS[3:4])


def test_a_lot_is_the_lot_of_the_dense_records(kept):
    """The same numbers of the private stream give the same records in the same components, whatever keeps them."""
    numbers = torch.arange(120) % 5
    plain, same = lots_of(0.1, numbers, seed=3), lots_of(0.1, numbers, seed=3, kept=kept)
    for _ in range(20):
        lot, expected = same.draw(), plain.draw()
        assert lot.offsets == expected.offsets and len(lot) == len(expected)
        assert torch.equal(numbers_in(lot), numbers_in(expected))
        assert {len(x) for x in lot.tensors} == {len(lot)}


@pytest.mark.slow
def test_inclusion_is_independent_with_the_public_rate(kept):
    """Each of 23 stores has a false alarm of 2e-6, so 5e-5 in all, over choices of the seed.

    It follows from the test above and from that of plain records (`statistical/test_lots.py`).
    """
    inclusion_is_independent_with_the_public_rate(kept=kept, draws=6_000)


def test_no_records_give_empty_lots():
    for keep in (lambda x: x, lambda x: scipy.sparse.csr_array(x.numpy()), lambda x: {"x": x, "y": x[:, 0]}):
        lot = lots_of(0.5, CLUSTERS[:0], k=2, kept=keep).draw()
        assert lot.offsets == (0, 0, 0) and lot.tensors[0].shape == (0, 1)


def test_nothing_on_disk_is_read_into_memory(tmp_path):
    rows = ROWS.numpy().astype(np.float32)
    for array in (_mapped(tmp_path, rows), _mapped(tmp_path, np.asfortranarray(rows)), _raw(tmp_path, rows)):
        assert np.shares_memory(store_of(array).values.numpy(), array)
        assert np.shares_memory(store_of(array[:, 1:3]).values.numpy(), array)
    parts = _parts(tmp_path, ROWS)
    store = store_of(scipy.sparse.csr_array(parts, shape=ROWS.shape))
    assert all(map(np.shares_memory, parts, (store.data, store.indices, store.indptr)))
    tensor = torch.rand(4, 3)
    assert store_of(tensor).values.data_ptr() == tensor.data_ptr() == store_of(tensor.numpy()).values.data_ptr()


def test_order_of_components_copies_no_records():
    numbers = torch.tensor([1, 0, 1, 0])
    lots = PoissonLots(ROWS[:4], account_of({"gradient": 1.0}), clusters=numbers, k=2)
    assert lots._store.values.data_ptr() == ROWS.data_ptr()
    assert torch.equal(lots.draw().records, ROWS[[1, 3, 0, 2]])


# Not finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 150_000, 299_999])
def test_a_value_that_is_not_finite_is_found_wherever_it_is(value, place, tmp_path):
    rows = np.ones((100_000, 3), np.float32)
    rows.reshape(-1)[place] = value
    for records in (
        torch.from_numpy(rows),
        rows.astype(np.float64),
        _mapped(tmp_path, rows),
        scipy.sparse.csr_array(rows),
        {"x": np.zeros(100_000), "y": rows},
    ):
        with pytest.raises(BadRecords) as refused:
            check_finite(store_of(records))
        assert not any(c.isdigit() for c in str(refused.value))


def test_what_is_finite_passes(kept):
    check_finite(store_of(kept(ROWS)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_is_large_is_finite(dtype):
    check_finite(store_of(torch.full((1000, 3), torch.finfo(dtype).max, dtype=dtype)))


def test_a_sparse_value_that_float32_does_not_hold_is_not_finite():
    store = store_of(scipy.sparse.csr_array([[1e300]]))
    assert store.take(np.array([0])).isinf().all()
    with pytest.raises(BadRecords):
        check_finite(store)


# Records that cannot be sampled


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1.0])


class Endless(Dataset):
    def __getitem__(self, i):
        return 1.0


def _damaged():
    matrix = scipy.sparse.csr_array(np.eye(3))
    matrix.indices[1] = SECRET
    return matrix


REFUSED = {
    "loader": (lambda: DataLoader(TensorDataset(ROWS)), "own sampling.*|pass the data set"),
    "loader among columns": (lambda: (ROWS, DataLoader(TensorDataset(ROWS))), r"^records\[1\] is a DataLoader"),
    "batch sampler": (lambda: BatchSampler(RandomSampler(ROWS), 3, False), "is a BatchSampler.* without a sampler"),
    "iterable": (lambda: Stream(), r"IterableDataset \(Stream\): expected a map-style.*by its position; give it"),
    "no length": (lambda: Endless(), "Endless without __len__"),
    "ragged list": (lambda: [torch.ones(2), torch.ones(SECRET)], "padded to one public length"),
    "ragged objects": (lambda: np.array([np.ones(2), np.ones(3)], object), "padded to one public length"),
    "nested": (
        lambda: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "a nested tensor.*padded to one public",
    ),
    "ragged items": (lambda: Items([1, 2, 3], torch.ones), r"collated \(RuntimeError\).*padded to one public length"),
    "list": (lambda: [1.0] * SECRET, "is a list: expected a tensor.*numpy.stack"),
    "generator": (lambda: iter(ROWS), "expected a tensor"),
    "None": (lambda: None, "is a NoneType"),
    "objects": (lambda: np.array([SECRET, None]), "dtype object: expected float16.*; convert it"),
    "words": (lambda: np.array([str(SECRET)] * 2), "dtype <U4: expected"),
    "complex": (lambda: np.ones(2) * 1j, "dtype complex128: expected"),
    "complex tensor": (lambda: torch.ones(2) * 1j, "dtype complex64: expected"),
    "times": (lambda: np.array(["2020-01-01"], "datetime64[D]"), "dtype datetime64"),
    "fields": (lambda: np.zeros(2, [("a", "f4")]), "expected float16"),
    "long words": (lambda: np.zeros(2, np.uint64), "dtype uint64: expected"),
    "byte order": (lambda: np.zeros((2, 2), np.dtype("f4").newbyteorder()), r"byte order.*astype\('float32'\)"),
    "masked": (lambda: np.ma.masked_equal(np.array([SECRET, 1]), 1), "masked array: expected a value"),
    "number": (lambda: torch.tensor(float(SECRET)), r"shape \(\): expected \(N, ...\)"),
    "sparse tensor": (lambda: torch.eye(3).to_sparse(), "layout torch.sparse_coo: expected a dense one"),
    "elsewhere": (lambda: torch.ones(3, 2, device="meta"), "on meta: expected the CPU"),
    "csc": (lambda: scipy.sparse.csc_array(np.eye(3)), r"sparse csc of 2 dimensions: expected csr.*\.tocsr\(\)"),
    "complex csr": (lambda: scipy.sparse.csr_array(np.eye(3) * 1j), "dtype complex128: expected real numbers"),
    "damaged csr": (_damaged, "damaged csr matrix"),
    "no column": (lambda: {}, "empty dict: expected at least one column"),
    "lengths": (
        lambda: {"a": np.ones(SECRET), "b": (np.ones(SECRET), np.ones(3))},
        r"^records\['b'\]\[1\] and records\['b'\]\[0\] have different numbers of rows",
    ),
    "no item": (lambda: Items([]), "without items: expected at least one"),
    "items of words": (lambda: Items([SECRET], lambda x: {"name": str(x)}), "hold str: expected numbers; encode"),
    "items of objects": (
        lambda: Items([SECRET], lambda x: object()),
        "whose items hold object: expected numbers, arrays or tensors; encode",
    ),
    "items that fail": (lambda: Items([SECRET], lambda x: {}[x]), r"fetched and collated \(KeyError\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    make, sentence = REFUSED[case]
    with pytest.raises(BadRecords, match=sentence) as refused:
        PoissonLots(make(), account_of({"gradient": 1.0}))
    assert str(refused.value).startswith(("records", "items of the data set")), "names the argument"
    assert str(SECRET) not in str(refused.value)
    assert refused.value.__suppress_context__ or not refused.value.__context__


@pytest.mark.parametrize(
    ("records", "scale", "sentence"),
    [
        (ROWS, 255, "records that are a Tensor of float32: expected a tensor or array of uint8"),
        ((ROWS.byte(), ROWS), 255, r"records that are a tuple: expected.*give store_of\(column, scale=...\)"),
        (ROWS.byte(), 0, "scale=0: expected a positive number"),
        (ROWS.byte(), float("nan"), "scale=nan: expected a positive number"),
    ],
)
def test_a_scale_that_fits_nothing_is_refused(records, scale, sentence):
    with pytest.raises(BadRecords, match=sentence):
        store_of(records, scale=scale)


@pytest.mark.parametrize(
    "clusters",
    [torch.zeros(40), torch.zeros(39, dtype=torch.long), torch.full((40,), 2), torch.full((40,), -1)],
    ids=["no whole numbers", "too few", "too large", "negative"],
)
def test_clusters_that_do_not_fit_are_refused(clusters):
    with pytest.raises(ValueError, match="clusters") as refused:
        PoissonLots(ROWS, account_of({"gradient": 1.0}), clusters=clusters, k=2)
    assert "40" not in str(refused.value) and "39" not in str(refused.value)


def test_a_store_shows_nothing(kept):
    shown = repr(store_of(kept(torch.full((123, 1), 99.0))))
    assert "123" not in shown.split(" at ")[0] and "99" not in shown.split(" at ")[0]


# Items of a Dataset


@pytest.mark.parametrize(
    "item",
    [
        lambda x: torch.zeros(2 if x < 8 else 3),
        lambda x: 1.0 if x < 8 else 1,
        lambda x: {"a": x} if x < 8 else {"a": x, "b": x},
        lambda x: {}[x] if x >= 8 else x,
    ],
    ids=["size", "type", "form", "failure"],
)
def test_an_item_unlike_the_first_ones_is_refused_without_a_word_about_it(item):
    store = store_of(Items([*range(8), SECRET], item))
    store.take(np.arange(8))
    with pytest.raises(BadRecords, match="item") as refused:
        store.take(np.array([8]))
    assert not any(c.isdigit() for c in str(refused.value))
    assert refused.value.__suppress_context__ or not refused.value.__context__


def _drawn():
    return float(torch.rand(1)), float(np.random.rand()), random.random()


def test_items_draw_random_numbers_that_no_public_seed_decides():
    """The public generators are where they were, however many records there were."""
    store, drawn, after = store_of(Items(range(6), lambda _: _drawn())), [], []
    with torch.random.fork_rng():
        for size in (2, 2, 0, 6):
            torch.manual_seed(0)
            np.random.seed(0)
            random.seed(0)
            drawn.append(store.take(np.arange(size)))
            after.append(_drawn())
    assert len(set(after)) == 1
    for first, second in zip(*drawn[:2], strict=True):
        assert len({*first.tolist(), *second.tolist()}) == 4


def test_a_failing_item_leaves_the_generators_where_they_were():
    store, before = store_of(Items([*[1] * 8, 0], lambda x: 1 / x)), torch.get_rng_state()
    with pytest.raises(BadRecords, match="ZeroDivisionError"):
        store.take(np.array([8]))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_contexts_of_two_threads_leave_numbers_of_numpy_as_they_were(first_ends_first):
    """Read-ahead in one thread and a step in another overlap, and end in any order."""
    before = np.random.get_bit_generator()
    one, other = randomness_of_their_own(), randomness_of_their_own()
    one.__enter__()
    other.__enter__()
    assert np.random.get_bit_generator() is not before
    for context in (one, other) if first_ends_first else (other, one):
        context.__exit__(None, None, None)
    assert np.random.get_bit_generator() is before
