"""`model=measured`: what there is to set for each kind of records, its label and workload, its defaults, and its recipe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.data.declarations import as_text
from lightning_dpgen.data.files.text import MissingData, check_there
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.schema_file import read_yaml
from lightning_dpgen.measure.classifier import ClassifierRecipe, classifier_sizes
from lightning_dpgen.measure.labels import label_workload
from lightning_dpgen.measure.pair_tables import what_to_leave_out
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.tables import WORKLOAD_SHARE
from lightning_dpgen.models.bases import Scattering
from lightning_dpgen.models.labelled import can_label, feature_count, is_classified
from lightning_dpgen.models.poses import SETS, Symmetries
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.specs.defaults import Defaults, labels_of, strength_of
from lightning_dpgen.specs.model import ClassifierSpec, MeasuredSpec, WGANSpec
from lightning_dpgen.specs.network import TrainedSpec
from lightning_dpgen.specs.spec import as_word
from lightning_dpgen.specs.usage_error import UsageError, describe_os_error

# Features whose curvature, a matrix, is decomposed in a minute and in a GiB of memory, and weights of all labels, which
# are fitted in about as much.
_MOST_FEATURES, _MOST_WEIGHTS = 4096, 1 << 20


def check_label(spec: TrainedSpec | MeasuredSpec, schema: Schema, share: float | None) -> None:
    """Refuse settings of the label that have no effect, or that the records have no use for.

    Args:
        share: the share of the label, as it was given or by default.
    """
    if spec.label_sharpness is not None and not share:
        raise UsageError(
            f"model.label_sharpness={spec.label_sharpness:g}: applies only to labels that model.label_share has paid for, "
            "and it is 0 here; give it a share, as in model.label_share=0.3, or leave this out"
        )
    if spec.label_share and not can_label(schema):
        raise UsageError(
            f"model.label_share={spec.label_share:g}: expected 0 where there is no label, or nothing besides it"
        )
    if share and is_classified(schema) and (count := Scattering(schema.layout, schema.axes).count) > _MOST_FEATURES:
        raise UsageError(
            f"model.label_share={share:g}: a record of so many channels has {count:,} features: expected "
            f"{_MOST_FEATURES:,} or fewer; take fewer channels"
        )


def complete_label(spec: TrainedSpec, schema: Schema, defaults: Defaults) -> TrainedSpec:
    """Return the settings of a network with those of the label filled in.

    The label of a table is bought by default where adversarial networks are held at noisy means and the budget is enough.

    Raises:
        UsageError: as `check_label`; for records that are no table, or of too many choices.
    """
    if spec.label_share and not schema.label_given_rest:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: applies only to tables, and these records are of kind "
            f"{schema.kind}; leave it out"
        )
    if isinstance(spec, WGANSpec) and spec.bias == "means" and spec.label_share is None and _takes_label(schema):
        spec = spec.changed(label_share=defaults.label_share)
    check_label(spec, schema, spec.label_share)
    if not spec.label_share:
        return spec
    if (features := feature_count(schema.layout)) > _MOST_FEATURES:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: the label is drawn given {features:,} features, most of them nothing "
            f"but noise: expected {_MOST_FEATURES:,} or fewer; {what_to_leave_out(schema)}"
        )
    labels = schema.layout.groups[schema.layout.label]
    if features * labels > _MOST_WEIGHTS:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: {labels:,} labels, each drawn given {features:,} features, are "
            f"{features * labels:,} numbers, most of them nothing but noise: expected {_MOST_WEIGHTS:,} or fewer; "
            f"{what_to_leave_out(schema)}"
        )
    return spec if spec.label_sharpness is not None else spec.changed(label_sharpness=1.0)


def _takes_label(schema: Schema) -> bool:
    """Return whether the label of a table is one that a network may leave to a regression."""
    if not (schema.label_given_rest and can_label(schema)):
        return False
    features = feature_count(schema.layout)
    return features <= _MOST_FEATURES and features * schema.layout.groups[schema.layout.label] <= _MOST_WEIGHTS


def label_specs(spec: TrainedSpec, n: int, remaining_share: float) -> list[StageSpec]:
    """Return the accesses of the label of a network, if it has any.

    Args:
        spec: complete.
        remaining_share: share of the budget that network and label may spend.

    Raises:
        UsageError: if there is none.
    """
    if not spec.label_share:
        return []
    if remaining_share <= 0.0:
        raise UsageError(
            f"the shares of the budget that are given leave {remaining_share:.2g} for network and label: set smaller ones "
            "(data.n_share, privacy.fidelity_share, split.moments_share, split.lloyd_share, split.means_share)"
        )
    return [label_workload(n, spec.label_share, agreement=False).spec(remaining_share)]


# Tables of two columns, twice: what a fit of minutes and a GiB of memory can look at.
_MOST_CELLS = 1 << 26
# The share of a classifier that is what is asked for.
_CLASSIFIER_SHARE = 0.75


def complete_measured(spec: MeasuredSpec, schema: Schema, defaults: Defaults) -> MeasuredSpec:
    """Return the settings with what is left out filled in; refuse what records of this kind have no use for."""
    layout = schema.layout
    if isinstance(spec, ClassifierSpec):
        spec = _with_classifier(spec, schema)
    try:
        has = kind_of(schema).complete_measured(spec, schema, defaults)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if "label_share" in has:
        check_label(spec, schema, has["label_share"] if spec.label_share is None else spec.label_share)
    for name, value in spec.given().items():
        if name not in (*has, "name", "symmetries") and not (name == "crossings" and value is False):
            # Pairs of so many columns are not counted.
            which = f"a table of {len(schema.choices):,} columns" if not has else f"records of kind {schema.kind}"
            raise UsageError(f"model.{name}={as_text(value)}: model={spec.name} has no such setting for {which}")
    symmetries = _symmetries(spec.symmetries, schema, "symmetries" in has)
    spec = spec.changed(**has | spec.given(*has) | {"symmetries": symmetries})
    spec = spec.changed(crossings=spec.crossings or None)
    if spec.waves is not None and spec.waves > layout.units:
        raise UsageError(f"model.waves={spec.waves}: expected a whole number from 1 to {layout.units:,}")
    if spec.cells is not None:
        components = labels_of(layout) * spec.cells
        if (numbers := components * spec.waves**2) > _MOST_CELLS:
            raise UsageError(
                f"model.cells={spec.cells}, model.waves={spec.waves}: the second moments of {components:,} "
                f"cells are {numbers:.1g} numbers: expected {_MOST_CELLS:.1g} or fewer; set smaller ones"
            )
    return spec


def _with_classifier(spec: ClassifierSpec, schema: Schema) -> ClassifierSpec:
    """Return the settings with the share of the classifier; refuse records of which none is learned."""
    if schema.layout.label is None:
        raise UsageError(
            f"model=classifier: learns the label of a record, and these records of kind {schema.kind} have none: "
            "declare one, or take model=measured"
        )
    if not can_label(schema):
        raise UsageError(
            "model=classifier: applies only to pictures, series, and tables of several columns, and these records are of "
            f"kind {schema.kind}; take model=measured"
        )
    return spec if spec.label_share is not None else spec.changed(label_share=_CLASSIFIER_SHARE)


def _symmetries(asked: Any, schema: Schema, applies: bool) -> dict[str, Any] | None:
    """Return what was declared by name or by numbers as all of its numbers; None for none."""
    expected = f"{', '.join(SETS)}, null for none, or numbers, as in model.symmetries={{turn: 5, shear: 0.1}}"
    if asked is None:
        return None
    if asked == {}:
        raise UsageError(f"model.symmetries={{}}: expected {expected}")
    if not applies:
        raise UsageError(
            f"model.symmetries={asked}: apply only to pictures, and these records are of kind {schema.kind}; leave it out"
        )
    try:
        symmetries = SETS[asked] if isinstance(asked, str) else Symmetries(**asked)
    except (KeyError, TypeError):  # no such name, or no such number
        raise UsageError(f"model.symmetries={asked}: expected {expected}") from None
    except ValueError as error:
        raise UsageError(f"model.symmetries: {error}") from None
    return asdict(symmetries)


def make_recipe(
    spec: MeasuredSpec, schema: Schema, *, n: int, seed: int, strength: float, sets: Sequence[Sequence[str]] = ()
) -> Recipe:
    """Return what is measured, and what is fitted to it.

    Args:
        spec: complete.
        strength: the declared number of records in units of the noise that the budget buys (`Defaults`).
        sets: names of columns of a table, whose tables of counts are asked for.
    """
    recipe = kind_of(schema).recipe(spec, schema, n=n, seed=seed, strength=strength, sets=sets)
    if not (spec.label_share and is_classified(schema)):
        return recipe
    sizes = classifier_sizes(strength * math.sqrt(spec.label_share))
    return ClassifierRecipe(recipe, schema, spec.label_share, *sizes, seed)


def measured_specs(recipe: Recipe, remaining_share: float) -> list[StageSpec]:
    """Return the stages of what is measured.

    Args:
        remaining_share: share of the budget that other accesses leave.

    Raises:
        UsageError: if nothing is left to measure with.
    """
    if remaining_share <= 0.0:
        raise UsageError(
            f"the shares of the budget that are given leave {remaining_share:.2g} to measure with: set smaller ones "
            "(data.n_share, privacy.fidelity_share)"
        )
    return recipe.specs(remaining_share)


# The most cells of all tables together: each is a row of a file of the release.
MOST_CELLS = 200_000
_MOST_SETS, _MOST_COLUMNS = 1000, 4
_EXPECTED = f"lists of 1 to {_MOST_COLUMNS} names of columns, as in data.workload=[[age,sex],[region]]"


def read_sets(asked: str | Sequence[Any]) -> list[list[str]]:
    """Return the sets of columns that are asked for, or that a YAML or JSON file has under `workload`.

    Raises:
        UsageError: if there is no such file, or it holds anything else.

    Example:
        >>> read_sets([["age", "sex"], ["region"]])
        [['age', 'sex'], ['region']]
    """
    setting = "data.workload"
    if isinstance(asked, str):
        setting = f"data.workload={asked}"
        path = Path(asked)
        try:
            check_there(path, "data.workload")
            content = read_yaml(path, "workload")
        except MissingData as error:
            raise UsageError(str(error)) from None
        except BadSchema as error:
            fault, form = str(error).removeprefix(str(path)), "workload: [[age, sex], [region]]"
            raise UsageError(f"{setting}{fault} (expected a file of YAML or JSON as in {form})") from None
        except OSError as error:
            raise UsageError(f"{setting}: {describe_os_error(error)}") from None
        asked = content.get("workload")
        if list(content) != ["workload"]:
            raise UsageError(f"{setting}: holds the keys {listed(content) if content else 'none'}: expected workload alone")
    lists = isinstance(asked, list) and asked and all(isinstance(names, list) and names for names in asked)
    if not lists or any(isinstance(name, bool) or not isinstance(name, str | int) for names in asked for name in names):
        raise UsageError(f"{setting}: {as_text(asked)}: expected {_EXPECTED}")
    return [[name if isinstance(name, str) else as_word(name) for name in names] for names in asked]


def check_sets(
    sets: Sequence[Sequence[str]], schema: Schema, *, n: int, epsilon: float | None, delta: float, max_rows: int = 1
) -> None:
    """Refuse sets of columns of which no table of counts can be measured.

    Args:
        n, epsilon, delta, max_rows: the declared number of records and the budget, from which the expected noise follows.
    """
    if not kind_of(schema).tabular:
        raise UsageError(f"data.workload: applies only to tables, and these records are {schema.kind}; leave it out")
    _check_names(sets, schema)
    sizes = dict(zip(schema.choices, schema.layout.groups, strict=True))
    if single := sorted({name for names in sets for name in names} - sizes.keys()):
        raise UsageError(f"data.workload: column {single[0]!r} has one value only, which tells nothing; leave it out")
    cells = [math.prod(sizes[name] for name in names) for names in sets]
    if sum(cells) > MOST_CELLS:
        noise = n / strength_of(n, epsilon, delta, max_rows) * math.sqrt(len(sets) / WORKLOAD_SHARE)
        most = max(cells)
        raise UsageError(
            f"data.workload: its tables have {sum(cells):,} cells together, and that of {listed(sets[cells.index(most)])} "
            f"has {most:,}, with {n / most:.2g} records in a cell on average and noise of standard deviation about "
            f"{noise:,.1f}: expected {MOST_CELLS:,} cells or fewer; leave out a column, or cut numbers into fewer bins"
        )


def _check_names(sets: Sequence[Sequence[str]], schema: Schema) -> None:
    if len(sets) > _MOST_SETS:
        raise UsageError(f"data.workload: {len(sets):,} sets of columns: expected at most {_MOST_SETS:,}")
    relatives, derived = schema.rules.relatives, schema.rules.derived
    counted = [column.name for column in schema.modelled if column.name not in relatives]
    columns = {column.name for column in schema.columns}
    seen: set[frozenset[str]] = set()
    for names in sets:
        setting = f"data.workload: [{listed(map(as_text, names))}]"
        if len(names) > _MOST_COLUMNS:
            raise UsageError(f"{setting}: has {len(names):,} columns: expected 1 to {_MOST_COLUMNS}")
        for name in names:
            if name in counted:
                continue
            if name in derived:
                raise UsageError(f"{setting}: column {name!r} follows from other columns; name those in its place")
            if name in relatives:
                raise UsageError(f"{setting}: column {name!r} is learned by its distance from another column; leave it out")
            if name in columns:
                raise UsageError(f"{setting}: column {name!r} is not learned (type: drop or fake); leave it out")
            near = suggest(name, counted)
            raise UsageError(f"{setting}: there is no column {as_text(name)!r}: expected some of {listed(counted)}{near}")
        if len(set(names)) < len(names):
            raise UsageError(f"{setting}: names a column twice: expected each once")
        if frozenset(names) in seen:
            raise UsageError(f"{setting}: is there twice, perhaps in another order: expected each set once")
        seen.add(frozenset(names))
