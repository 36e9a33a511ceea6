"""Items of a data set are fetched and collated each by itself, so that no record's form follows from others."""

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

from lightning_dpgen import Account, BadRecords, Fixed, make_plan, poisson_loader, training_stage
from lightning_dpgen.sampling.as_store import store_of
from lightning_dpgen.sampling.contents import content
from lightning_dpgen.sampling.fetching import fetch_ahead
from lightning_dpgen.sampling.stores import Store

# Texts of two to six words, as numbers.
TEXTS = [{"words": list(range(1, 3 + i % 5)), "label": i % 2, "name": f"person {i}"} for i in range(20)]


def pad(items, length=None):
    """Make a batch of texts: to the longest of them, or to a public length."""
    length = length or max(len(item["words"]) for item in items)
    words = torch.tensor([item["words"] + [0] * (length - len(item["words"])) for item in items])
    return {"words": words, "mask": words.gt(0), "label": torch.tensor([item["label"] for item in items])}


padded = functools.partial(pad, length=6)


class Texts(Dataset):
    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, i):
        return TEXTS[i]


class Together(Texts):
    """Fetches many items at once; `mix` lets each hold the mean over all of them."""

    def __init__(self, mix=False):
        self.mix, self.calls = mix, 0

    def __getitems__(self, rows):
        self.calls += 1
        numbers = torch.tensor(rows, dtype=torch.float32)
        return list((numbers - numbers.mean() if self.mix else numbers)[:, None])


def _take(store, *rows):
    assert isinstance(store, Store)
    return store.take(np.array(rows, dtype=np.int64))


@pytest.mark.parametrize("records", [Texts(), TEXTS, Subset(Texts(), range(20))], ids=["data set", "list", "subset"])
def test_a_batch_is_made_of_each_record_by_itself(records):
    store = store_of(records, collate_fn=padded)
    taken = _take(store, 4, 0)
    assert taken["words"].tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 0, 0, 0, 0]] and taken["label"].tolist() == [0, 0]
    assert taken["mask"].sum(dim=1).tolist() == [6, 2]
    assert {name: x.shape for name, x in _take(store).items()} == {"words": (0, 6), "mask": (0, 6), "label": (0,)}


def test_other_processes_collate_the_same():
    store = store_of(Texts(), collate_fn=padded)
    ((batch),) = fetch_ahead(store, [np.array([1, 3])], workers=1)
    assert torch.equal(batch["words"], _take(store, 1, 3)["words"])


def test_padding_to_the_longest_of_a_lot_is_told_of_public_lengths():
    with pytest.raises(BadRecords, match=r"each record by itself.* pad to one public length, as DataCollatorWithPadding"):
        store_of(Texts(), collate_fn=pad)
    alike = store_of([*TEXTS[:1] * 8, TEXTS[4]], collate_fn=pad)
    with pytest.raises(BadRecords, match=r"differs from its first one.* pad to one public length"):
        _take(alike, 8)


def test_ragged_items_are_told_of_collate_fn():
    with pytest.raises(BadRecords, match=r"equal sizes.* padded to one public length.*collate_fn=\.\.\."):
        store_of(Texts())


REFUSED = {
    "no function": (TEXTS, "pad", "collate_fn is a str: expected a function"),
    "columns": ((np.ones(3), np.ones(3)), padded, r"records is a tuple, .*such as TensorDataset\(\*columns\)"),
    "no batch": (TEXTS, lambda items: torch.ones(3), r"another tensor than \(1, ...\) for a list of one item"),
    "a number": (TEXTS, lambda items: {"x": torch.tensor(1.0)}, r"another tensor than \(1, ...\) for a list"),
    "words": (TEXTS, lambda items: {"name": items[0]["name"]}, "whose items hold str: expected numbers; encode"),
    "nothing": (TEXTS, lambda items: None, "whose items hold NoneType: expected numbers; encode"),
    "fails": (TEXTS, lambda items: {}[items[0]["name"]], r"cannot be fetched and collated \(KeyError\).*one item"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_batch_of_one_record_is_refused_without_a_word_of_it(case):
    records, collate_fn, words = REFUSED[case]
    with pytest.raises(BadRecords, match=words) as refused:
        store_of(records, collate_fn=collate_fn)
    assert "person" not in str(refused.value)


def test_arrays_and_mappings_of_a_collate_function_are_tensors_and_dicts():
    class Encoding(dict):
        pass

    store = store_of(TEXTS, collate_fn=lambda items: Encoding(x=np.float32([[items[0]["label"]]])))
    assert type(_take(store, 1)) is dict and torch.equal(_take(store, 1)["x"], torch.ones(1, 1))


def test_a_list_of_tuples_or_dicts_is_a_data_set():
    store = store_of([(np.float32([i, 0]), i % 2) for i in range(5)])
    x, y = _take(store, 3, 2)
    assert torch.equal(x, torch.tensor([[3.0, 0.0], [2.0, 0.0]])) and y.tolist() == [1, 0]


def test_items_that_are_read_together_are_read_by_one_call():
    dataset = Together()
    store, before = store_of(dataset), dataset.calls
    assert _take(store, 5, 3, 9).tolist() == [[5.0], [3.0], [9.0]] and dataset.calls == before + 1


def test_items_that_follow_from_others_are_read_one_by_one():
    """An item of a lot would otherwise tell which others there are."""
    store = store_of(Together(mix=True))
    assert _take(store, 5, 3, 9).tolist() == [[0.0], [0.0], [0.0]]


def test_a_split_without_a_seed_is_another_one():
    rows = TensorDataset(torch.arange(40.0))
    one, other = (content(store_of(random_split(rows, [30, 10])[0])) for _ in range(2))
    assert one != other and content(store_of(Texts(), collate_fn=padded)) == b""
    again = Subset(rows, range(30))
    assert content(store_of(again)) == content(store_of(Subset(rows, list(range(30)))))


def test_a_loader_of_lots_takes_it():
    stage = training_stage(Fixed(1.0), n=20, sample_rate=0.5, steps=3)
    account = Account(make_plan([stage], epsilon=8.0, delta=1e-5))
    for batch in poisson_loader(TEXTS, account, collate_fn=padded):
        for lot in batch:
            assert lot.records["words"].shape == (len(lot), 6)


def _tokens(**changes):
    datasets = pytest.importorskip("datasets")
    columns = {"words": [[i, 1, 2] for i in range(20)], "label": [i % 2 for i in range(20)]}
    return datasets.Dataset.from_dict(columns | changes)


FORMATS = {
    "torch": lambda d: d.with_format("torch"),
    "numpy": lambda d: d.with_format("numpy"),
    "torch, columns": lambda d: d.with_format("torch", columns=["words"]),
    "torch, chosen": lambda d: d.with_format("torch").select(range(19, -1, -1)).select(range(19, -1, -1)),
    "transform": lambda d: d.with_transform(lambda b: {"words": torch.tensor(b["words"]), "label": b["label"]}),
}


@pytest.mark.parametrize("form", FORMATS)
def test_data_sets_of_hugging_face_in_their_formats(form):
    store = store_of(FORMATS[form](_tokens()))
    taken = _take(store, 7, 2)
    assert taken["words"].tolist() == [[7, 1, 2], [2, 1, 2]]
    if form != "torch, columns":
        assert taken["label"].tolist() == [1, 0]
    assert store.together == (form != "transform")


def test_a_transform_of_hugging_face_sees_one_record():
    """It is handed a batch, whose mean would tell which others are in it."""

    def centred(batch):
        words = torch.tensor(batch["words"], dtype=torch.float32)
        return {"x": words - words.mean(dim=0)}

    for wrap in (lambda d: d, lambda d: Subset(d, range(20))):
        assert not _take(store_of(wrap(_tokens().with_transform(centred))), 7, 2)["x"].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": [f"person {i}" for i in range(20)]}, r"hold str: expected numbers; give it a format, .*or collate_fn"),
        ({"words": [[1] * (1 + i % 3) for i in range(20)]}, "padded to one public length"),
    ],
    ids=["text", "ragged"],
)
def test_what_hugging_face_holds_beside_numbers_is_told(changes, words):
    with pytest.raises(BadRecords, match=words) as refused:
        store_of(_tokens(**changes).with_format("torch"))
    assert "person" not in str(refused.value)


def test_what_hugging_face_streams_is_read_into_a_list():
    with pytest.raises(BadRecords, match=r"pass list\(records\) if it fits into memory"):
        store_of(_tokens().to_iterable_dataset())
    records = list(_tokens().to_iterable_dataset())
    assert _take(store_of(records, collate_fn=lambda items: {"x": torch.tensor([items[0]["words"]])}), 3)["x"].tolist() == [
        [3, 1, 2]
    ]
