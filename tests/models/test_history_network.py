"""The network of histories: whole histories whatever its weights, gradients of persons, and what has no part in them."""

import copy

import numpy as np
import pytest
import torch

from lightning_dpgen.data.histories.row_table import PersonRows, RowOrder, RowTable
from lightning_dpgen.data.histories.schema import HistorySchema
from lightning_dpgen.data.schema import kind_named
from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.gradients.engines import ENGINES
from lightning_dpgen.models import history_network
from lightning_dpgen.models.history_network import HistoryNetwork
from lightning_dpgen.models.initial import copy_components
from lightning_dpgen.models.mixture import Diverged, Mixture
from lightning_dpgen.sampling.lots import Lot

PERSONS = parse_schema("columns: {sex: {type: category, values: [F, M]}, age: {type: integer, low: 0, high: 99, bins: 6}}")
COLUMNS = "ward: {type: category, values: [a, b, c]}, cost: {type: integer, low: 0, high: 99, bins: 5, missing: true}"
RULES = "constraints: [ill = true if birth = true, ill = false if ward = c]"
ROWS = parse_schema(f"{{columns: {{{COLUMNS}}}}}")
RULED = parse_schema(f"{{columns: {{birth: {{type: boolean}}, ill: {{type: boolean}}, {COLUMNS}}}, {RULES}}}")
DAYS = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 6}, {"high": 60, "bins": 5})
UNTIL = RowOrder.of("day", {"type": "integer", "low": 0, "high": 99, "bins": 6}, {"high": 60, "bins": 5}, end=120)
SCHEMAS = {
    "times": HistorySchema(PERSONS, (RowTable("visits", ROWS, 4, DAYS),)),
    "keys alone": HistorySchema(None, (RowTable("visits", ROWS, 4, UNTIL),)),
    "sets": HistorySchema(PERSONS, (RowTable("set", RULED, 5),)),
    "one row": HistorySchema(PERSONS, (RowTable("visits", ROWS, 1, DAYS),)),
    "two": HistorySchema(PERSONS, (RowTable("visits", RULED, 3, UNTIL), RowTable("set", ROWS, 4))),
}


def _network(schema, seed=0, scale=1.0, **given):
    """Return a network whose parameters are all random."""
    network, random = HistoryNetwork(schema, hidden=4, **given), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, scale, generator=random)
    return network


def _records(schema, n, seed=0):
    """Return histories of random choices (n, groups) that are whole."""
    random, parts = np.random.default_rng(seed), []
    for table in schema.tables:
        counts = random.integers(0, table.max_rows + 1, n)
        total = int(counts.sum())
        rows = np.stack([random.integers(0, size, total) for size in table.rows.layout.groups], axis=1)
        starts = random.integers(0, 6, n) if table.order else None
        gaps = random.integers(0, table.order.gap.choices, total) if table.order else np.zeros(total, np.int64)
        parts.append(PersonRows(counts, starts, gaps, rows))
    own = schema.layout.groups[: schema.attributes]
    attributes = np.stack([random.integers(0, size, n) for size in own], axis=1) if own else np.zeros((n, 0), np.int64)
    return schema.joined(attributes, parts).codes.astype(np.int64)


def _written(schema, codes):
    """Write choices out as one-hot (n, width), in double precision."""
    parts = [np.eye(size)[codes[:, i]] for i, size in enumerate(schema.layout.groups)]
    return torch.from_numpy(np.concatenate(parts, axis=1))


def _lot(schema, codes):
    return Lot(_written(schema, codes), (0, len(codes)))


@pytest.mark.parametrize("scale", [0.3, 30.0])
@pytest.mark.parametrize("name", SCHEMAS)
def test_every_record_is_a_whole_history_that_keeps_its_constraints(name, scale):
    """Whatever the weights are: `decode` refuses others, and no row has a barred pair or passes the end of times."""
    schema = SCHEMAS[name]
    network = _network(schema, scale=scale)
    drawn = Mixture(network, torch.ones(1)).sample(300, torch.Generator().manual_seed(1))
    batch = schema.decode(drawn, np.random.default_rng(0))
    assert batch.num_rows == 300
    _, parts = schema.parted(drawn)
    for table, own in zip(schema.tables, parts, strict=True):
        assert set(own.counts) <= set(range(table.max_rows + 1)) and own.rows.shape[1] == table.per_row
        assert all(not barred[own.rows[:, a], own.rows[:, b]].any() for a, b, barred in table.pairs)
        if table.order is not None and table.order.end is not None:
            assert max((row["day"] for rows in batch.column(table.name).to_pylist() for row in rows), default=0) <= 120
    assert scale > 1 or all(len(set(own.counts)) > 1 for own in parts)


def test_no_number_leads_to_a_barred_choice(monkeypatch):
    """The last choices are barred, and 1 is a number that rounding may make of one below it."""
    schema = SCHEMAS["sets"]
    network = _network(schema, scale=3.0)
    monkeypatch.setattr(history_network, "chosen", lambda shares, uniform: torch.full((len(shares),), shares.shape[1] - 1))
    drawn = Mixture(network, torch.ones(1)).sample(50, torch.Generator())
    (own,), ((first, second, barred), *_) = schema.parted(drawn)[1], schema.tables[0].pairs
    assert barred[1, 0] and len(own.rows) and not barred[own.rows[:, first], own.rows[:, second]].any()


@pytest.mark.parametrize("huge", [float("nan"), float("inf")])
def test_a_network_that_has_diverged_draws_nothing(huge):
    network = _network(SCHEMAS["two"])
    with torch.no_grad():
        network.tables[1].outer[0].fill_(huge)
    with pytest.raises(Diverged, match="not finite, or too large"):
        network.draw(torch.zeros(9, dtype=torch.int64), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_gradient_of_a_person_is_that_of_the_person_alone(name):
    """By both engines; the oracle is plain autograd of a lot of one."""
    schema = SCHEMAS[name]
    network = _network(schema, scale=0.5).double()
    codes = _records(schema, 7)
    expected = []
    for i in range(7):
        loss = network.loss(_lot(schema, codes[i : i + 1]), torch.zeros(1, 0)).sum()
        found = torch.autograd.grad(loss, list(network.parameters()), allow_unused=True, materialize_grads=True)
        expected.append(torch.cat([own.flatten() for own in found]))
    expected = torch.stack(expected)
    for engine in ENGINES.values():
        own = engine(network, network.term, _lot(schema, codes), torch.zeros(7, 0, dtype=torch.float64))
        torch.testing.assert_close(own.norms(), expected.norm(dim=1), rtol=1e-6, atol=1e-9)
        out = {parameter: torch.zeros_like(parameter) for parameter in network.parameters()}
        weights = torch.linspace(-1.0, 2.0, 7, dtype=torch.float64)
        own.weighted_sum(weights, out)
        found = torch.cat([own.flatten() for own in out.values()])
        torch.testing.assert_close(found, weights @ expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_loss_is_that_of_the_probabilities_by_which_records_are_drawn(name):
    """The oracle goes through a person's choices one by one, as a draw does, and adds up what each is drawn by."""
    schema, power = SCHEMAS[name], 0.5
    network = _network(schema, scale=0.5).double()
    codes = _records(schema, 12)
    losses = network.loss(_lot(schema, codes), torch.zeros(12, 0)).detach()
    for i in range(12):
        loss, seen, asked = 0.0, [], []

        def taken(logits, of_columns, seen=seen, asked=asked):
            choice = asked.pop(0)
            seen.append(-torch.log_softmax(logits, dim=-1)[0, choice])
            return torch.tensor([choice])

        own = codes[i]
        asked += [*own[: schema.attributes], *(own[part.start] for part in schema.parts)]
        persons = len(asked)
        numbers = []
        for table, part in zip(schema.tables, schema.parts, strict=True):
            width = table.per_row + (table.order is not None)
            rows = own[part.start + 1 : part.start + 1 + width * own[part.start]]
            asked += list(rows)
            numbers += [own[part.start]] * len(rows)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("lightning_dpgen.models.history_network._drawn", taken)
            patch.setattr("lightning_dpgen.models.history_network._Limits.barred", lambda *_: None)
            drawn = network.draw(torch.zeros(1, dtype=torch.int64), torch.Generator())
        assert drawn[0].tolist() == own.tolist() and not asked
        loss = sum(seen[:persons]) + sum(x / n**power for x, n in zip(seen[persons:], numbers, strict=True))
        assert float(losses[i]) == pytest.approx(float(loss), rel=1e-6)


@pytest.mark.parametrize("name", SCHEMAS)
def test_places_behind_the_last_row_change_nothing(name):
    """A schema that allows more rows has the same gradients of rows, but for what says how many there are."""
    schema = SCHEMAS[name]
    network, codes = _network(schema, scale=0.5).double(), _records(schema, 9)
    x = _written(schema, codes).requires_grad_()
    network.loss(Lot(x, (0, 9)), torch.zeros(9, 0)).sum().backward()
    none = np.zeros((9, len(schema.layout.groups)), bool)
    for table, part in zip(schema.tables, schema.parts, strict=True):
        none[:, part.start + 1 : part.stop] = codes[:, part.start + 1 : part.stop] == np.array(table.groups[1:]) - 1
    rows, groups = np.nonzero(none)
    assert len(rows) or name == "one row"
    for row, group in zip(rows, groups, strict=True):
        span = schema.layout.spans[group]
        assert x.grad[row, span.stop - 1] == 0.0, "that there is no row is never seen"
    # Whatever a network makes of the choices of rows that are not there, it is multiplied by zero.
    _, seen = network._parted(x.detach())
    for t, table in enumerate(schema.tables):
        count = codes[:, schema.parts[t].start]
        behind = np.arange(table.max_rows) >= count[:, None]
        assert not seen[t].numpy()[behind].any() and (seen[t].numpy()[~behind].sum(axis=-1) > 0).all()


def test_biases_are_held_at_released_shares():
    """Whatever was learned: shares of numbers of rows and of choices are those of the means, where these have no noise."""
    schema = HistorySchema(PERSONS, (RowTable("visits", ROWS, 3, DAYS), RowTable("set", ROWS, 4)))
    means = _written(schema, _records(schema, 4000, seed=3)).float().mean(dim=0, keepdim=True)
    network = _network(schema, scale=0.3, fixed_bias=True)
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}

    def off():
        made = network.generate((0, 8000), torch.Generator().manual_seed(99)).mean(dim=0)
        pairs = zip(network._shares(means[0]), network._shares(made), strict=True)
        return max(float((a / a.sum() - b / b.sum()).abs().sum() / 2) for (_, a, _), (_, b, _) in pairs)

    network.start_at(means)
    started = off()
    network.hold_at(means, torch.zeros(1))
    assert off() < 0.03 < 0.1 < started
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_parameters())
    noisy = copy.deepcopy(network)
    noisy.hold_at(torch.rand(means.shape), torch.full((1,), 1e3))
    for name, tensor in network.named_buffers():
        torch.testing.assert_close(noisy.get_buffer(name), tensor, rtol=0, atol=0)


def test_a_network_starts_from_another_and_other_records_are_refused():
    schema = SCHEMAS["two"]
    one, other = _network(schema, seed=1), _network(schema, seed=2)
    copy_components(other, one, [0])
    drawn = [own.draw(torch.zeros(5, dtype=torch.int64), torch.Generator().manual_seed(0)) for own in (one, other)]
    assert torch.equal(*drawn)
    with pytest.raises(ValueError, match="k=2: expected 1 component"):
        HistoryNetwork(schema, 2)
    with pytest.raises(ValueError, match="records of kind table: expected histories"):
        HistoryNetwork(ROWS)
    assert "autoregressive" not in kind_named("table").trained_networks
