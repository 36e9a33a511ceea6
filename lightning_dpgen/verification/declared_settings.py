"""From what a certificate declares back to the settings of the run, by their own declarations: wrong ones are refused.

Nothing that a setting names is opened, imported or run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, keys_of
from lightning_dpgen.data.discovery.value_grid import VALUES_OF
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.tables.description import BOUNDS, KEYS, PRIVATE, VALUES
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.schema_keys import describe
from lightning_dpgen.data.tables.search import Part, Search
from lightning_dpgen.privacy.accounting.epsilon_range import PLD
from lightning_dpgen.privacy.noise.stream import SECURE
from lightning_dpgen.release.certificate import INIT
from lightning_dpgen.release.drawing.description import described_schema
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.specs.data import MOST_RECORDS, DataSpec, PicturesSpec, PublicPicturesSpec, SeriesSpec
from lightning_dpgen.specs.model import AutoSpec, CustomSpec
from lightning_dpgen.specs.modules import check_model
from lightning_dpgen.specs.network import TrainedSpec
from lightning_dpgen.specs.privacy import make_rule
from lightning_dpgen.specs.run import RunSpec, check_privacy
from lightning_dpgen.specs.settings import Settings, check_counted, check_workload, default_unit
from lightning_dpgen.specs.source import check_discovery, source_of
from lightning_dpgen.specs.spec import names_of, parse, variants
from lightning_dpgen.specs.usage_error import UsageError

# Names that are declared beside the settings of the data.
_OTHERS = {"data", "discovered", "fidelity_share", "schema", "model", INIT, "split", "clipping", "seed", "rows", LICENSE}
_MODELS = {kind.title: kind for kind in variants(RunSpec, "model").values() if kind is not AutoSpec}
_INDEPENDENT = "rows_independent"
# A description whose bounds were found.
_FOUND = describe("bounds", {"type": "integer", "low": PRIVATE, "high": PRIVATE})


def settings_of(certificate: Mapping[str, Any], epsilon: float | None = None) -> Settings:
    """Return the settings of the run that a certificate is of, each parsed as `dpgen train` would take it.

    Args:
        certificate: of a checked shape, private, of a run by settings.
        epsilon: the budget of the run; None for the certificate's.

    Raises:
        UsageError, ValueError, TypeError, KeyError: for anything that no run declares.
    """
    declared = certificate["declared"]
    schema = described_schema(declared["schema"])
    described = dict(_object(declared, "model"))
    chosen, kind = described.pop("chosen", None), _kind_of(described.pop("name", None))
    model = {name: value for name, value in described.items() if name in names_of(kind)}
    if options := {name: value for name, value in described.items() if name not in model}:
        # A name that no setting has is told as such, unless it is an argument of the owner's class.
        model |= {"options": options} if kind is CustomSpec else options
    trained = issubclass(kind, TrainedSpec)
    split = dict(_object(declared, "split")) if trained else {"k": 1}
    solved = not trained or described.get("steps") is None or described.get("noise") is None
    target = certificate["target_epsilon"] if epsilon is None else epsilon
    values = {
        "data": _data(declared),
        "model": model | {"name": kind.model_fields["name"].default},
        "clipping": _clipping(_object(declared, "clipping")) if trained else {"rule": "fixed"},
        "privacy": {
            # It follows from noise and steps, where both are given.
            "epsilon": float(target) if solved else None,
            "delta": certificate["delta"],
            "noise": "secure" if certificate["noise"]["source"] == SECURE else "standard",
            "accountant": certificate["accountant"].get("chosen", PLD),
            "fidelity_share": declared.get("fidelity_share"),
        },
        "split": split,
        "trainer": {},
        "compute": {"name": "in_process"},
        "seed": declared["seed"],
        "rows": declared["rows"],
        LICENSE: declared.get(LICENSE),
    }
    spec = parse(RunSpec, values)
    number = declared["n"]
    if type(number) is not int or not 1 <= number <= MOST_RECORDS:
        raise UsageError(f"n={str(number)[:40]}: expected a whole number from 1 to {MOST_RECORDS:,}")
    data = spec.data.changed(n=number)
    if type(independent := declared.get(_INDEPENDENT)) is bool and hasattr(data, _INDEPENDENT):
        data = data.changed(**{_INDEPENDENT: independent})
    if data.kind not in (None, schema.kind):
        raise UsageError(f"data={data.source}: is of kind {data.kind}, and the schema of kind {schema.kind}")
    if isinstance(data, SeriesSpec | PicturesSpec | PublicPicturesSpec) and source_of(data).declare() != schema:
        raise UsageError("schema: it is not the one that these settings of the data describe")
    if isinstance(data.asked_sets, str):
        raise UsageError("workload: expected sets of columns, and it names a file")
    spec, parts = spec.changed(data=data), _parts(declared.get("discovered"), schema, data)
    check_privacy(spec)
    check_counted(spec)
    check_workload(spec, schema)
    check_discovery(data, parts)
    rule = None
    if trained:
        check_model(spec.model, schema, number, data.source)
        rule = make_rule(spec.clipping)
    settings = Settings(spec, schema, SplitSettings(**split), rule, certificate["unit"], parts, choice_reason=chosen)
    _check_same(settings, declared)
    return settings


def declared_unit(declared: Mapping[str, Any]) -> str | None:
    """Return the unit that a run with these settings has where none is given; None if they are none of a run."""
    try:
        kind = variants(RunSpec, "data")[declared["data"]]
        return default_unit(source_of(parse(kind, _data(declared), within="data")))
    except Exception:
        # Settings of strangers may end anywhere here, and the check of the plan refuses them with the reason.
        return None


def _check_same(settings: Settings, declared: Mapping[str, Any]) -> None:
    """Refuse what a run with these settings does not declare as it stands: a null, or a name that no setting has."""
    ours, theirs = _flat(settings.dump_public()), _flat({name: declared[name] for name in declared if name != INIT})
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            due, stated = (values.get(name, "nothing")[:80] for values in (ours, theirs))
            raise UsageError(f"{name[:80]}: a run with these settings declares {due}, and it is {stated}")


def _flat(declared: Mapping[str, Any]) -> dict[str, str]:
    """Return values as JSON has them, since true and 1.0 are equal to 1, by their names within one group at most."""
    settings = {}
    for name, value in declared.items():
        group = {f"{name}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {name: value}
        settings |= {inner: json.dumps(one, sort_keys=True) for inner, one in group.items()}
    return settings


def _object(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise UsageError(f"{name}={str(value)[:40]}: expected names and values")
    return value


def _kind_of(title: Any) -> Any:
    """Return the class of the settings of a model that a certificate names."""
    if not isinstance(title, str) or title not in _MODELS:
        raise UsageError(f"model: name={str(title)[:80]!r}: expected one of {', '.join(sorted(_MODELS))}")
    return _MODELS[title]


def _data(declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the data; the number of records, which may be bought, is checked later."""
    named = {name: value for name, value in declared.items() if name not in {*_OTHERS, "n"}}
    # The query that it is about is not declared.
    named.pop(_INDEPENDENT, None)
    return named | {"source": declared["data"]}


def _clipping(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a rule as it is described: what wraps it is a setting of its own."""
    fields: dict[str, Any] = dict(described)
    wrapped: dict[str, Any] = {}
    if fields.get("rule") == "PerPerson":
        fields, wrapped = dict(_object(fields, "of")), {"per_person": True}
    if fields.get("rule") == "Smoothed":
        wrapped |= {"smooth": fields.get("keep")}
        fields = dict(_object(fields, "of"))
    # The name of its noise is no setting.
    fields.pop("noise", None)
    return fields | wrapped | {"rule": str(fields.get("rule")).lower()}


def _parts(names: Any, schema: Schema, data: DataSpec) -> dict[str, Part]:
    """Return what of the description was found privately, by the names of the noises that found it."""
    if not isinstance(names, list | None) or not all(isinstance(name, str) for name in names or ()):
        raise UsageError(f"discovered={str(names)[:40]}: expected a list of names")
    prefixes = {BOUNDS: bounds_of(""), KEYS: keys_of(""), VALUES: VALUES_OF}
    finds_by_name: dict[str, list[str]] = {}
    for name in names or ():
        find = next((find for find, prefix in prefixes.items() if name.startswith(prefix)), None)
        if find is None:
            raise UsageError(f"discovered: {name[:80]!r}: expected one such as 'bounds of age', 'keys of a', 'values of a'")
        finds_by_name.setdefault(name.removeprefix(prefixes[find]), []).append(find)
    columns = schema.modelled
    grids = {column.name: column.grid for column in columns if isinstance(column, Numeric)}
    grids |= {column.name: column.value.grid for column in columns if isinstance(column, Grouped)}
    parts = {}
    for name, finds in finds_by_name.items():
        match finds:
            case [find] if find == KEYS:
                parts[name] = Part(KEYS, data.most_rows * getattr(data, "max_items", 1))
            case [find] if find == BOUNDS:
                parts[name] = Part(BOUNDS, data.most_rows)
            case [first, second] if (first, second) == (BOUNDS, VALUES):
                parts[name] = Part(BOUNDS, data.most_rows, column=Search(name, _FOUND))
            case [find] if find == VALUES and name in grids:
                parts[name] = Part(VALUES, data.most_rows, grid=grids[name])
            case _:
                raise UsageError(f"discovered: {name[:80]!r}: nothing of this name is found so")
    return parts
