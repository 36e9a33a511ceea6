"""The description of a released model, as `model.json` holds it: what can be asked of it before its weights are read."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.common.plain_text import listed
from lightning_dpgen.release.drawing.opened import check_ordinary, read_json_file
from lightning_dpgen.release.files import MODEL, WEIGHTS, NotARelease

if TYPE_CHECKING:
    from lightning_dpgen.data.conditions import Condition, Where
    from lightning_dpgen.data.schema import Schema

# The name of the model of projected rows.
PROJECTION = "projection"
# The name in releases of the weights of any network, whose class is code of its owner.
PLAIN_WEIGHTS = "weights"
# The key that is true where the label given all other numbers was bought: drawn so in tables, a classifier elsewhere.
LABELLED = "labelled"
# The crossings of columns by which that label is drawn, too.
CROSSINGS = "crossings"
# The key of the share of rows that keep all constraints of a table as the model first draws them; nothing reads it again.
KEPT = "kept_at_first_draw"
# The model of tables of which pairs are not counted.
COPULA = "copula"
# Models without an encoder, in words.
_NO_ENCODER = {
    "rbm_mixture": "Boltzmann machines",
    "wgan_mixture": "generators",
    "history_network": "an autoregressive network",
    PROJECTION: "projected rows",
}


def measured_networks() -> set[str]:
    """Return the names of networks that are fitted to measured statistics, of all kinds of records."""
    from lightning_dpgen.data.schema import kinds

    return {name for kind in kinds().values() for name in kind.measured_networks}


def is_plain_weights(model: Mapping[str, Any], released: Collection[str]) -> bool:
    """Return True for a release of the weights of a network, and nothing beside them."""
    return model.get("model") == PLAIN_WEIGHTS and {MODEL, WEIGHTS}.issuperset(released)


def read_description(folder: Path) -> dict[str, Any]:
    """Read the description of the model in the folder of a release: a name of the model, and what goes with that.

    Raises:
        NotARelease: if there is no readable one, no weights beside it, or the weights are those of an engineer's own
            network.
    """
    if not folder.is_dir():
        raise NotARelease(f"{folder} is not a folder: expected a release, or the run that made it")
    for name in (MODEL, WEIGHTS):
        if not os.path.lexists(folder / name):
            raise NotARelease(f"{folder} holds no {name}: expected a release made by dpgen")
    try:
        check_ordinary(folder / WEIGHTS)
        description = read_json_file(folder / MODEL, links=True)
    except ValueError as error:
        raise unreadable(folder, error) from None
    if description.get("model") == PLAIN_WEIGHTS:
        raise NotARelease(
            f"{folder} holds the weights of a network, whose class is not part of the release, and no model of records: "
            f"make the network, and call network.load_state_dict(safetensors.torch.load_file({str(folder / WEIGHTS)!r}))"
        )
    return description


def schema_in(folder: Path, description: dict[str, Any]) -> Schema | None:
    """Return the schema of the records that a described model makes; None for a model without one.

    Args:
        folder: of the release, for messages.

    Raises:
        NotARelease: if it cannot be read.
    """
    if "schema" not in description:
        return None
    try:
        return described_schema(description["schema"])
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(folder, error) from None


def described_schema(fields: Any) -> Schema:
    """Return the schema of any kind of records that `Schema.as_json` described.

    Raises:
        ValueError, KeyError, TypeError: for anything else.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"schema={str(fields)[:60]!r}: expected an object")
    from lightning_dpgen.data.schema import kind_named

    return kind_named(fields.get("kind")).schema.from_json(fields)


def unreadable(folder: Path, error: Exception) -> NotARelease:
    """Return the error that a model cannot be read, in one line of bounded length."""
    return NotARelease(f"the model in {folder} cannot be read: {in_plain_words(error)}")


def in_plain_words(error: Exception) -> str:
    """Return what is wrong with a description, in one line of bounded length.

    Example:
        >>> in_plain_words(KeyError("k")), in_plain_words(TypeError("'NoneType' object is not iterable"))
        ('k is missing', 'a value is missing, null or of another type')
    """
    if isinstance(error, KeyError):
        return f"{str(error.args[0])[:80]} is missing"
    if isinstance(error, TypeError | AttributeError):
        # Python speaks of the code that reads it.
        return "a value is missing, null or of another type"
    return " ".join(str(error).split())[:300]


def check_component(number: Any, components: int) -> None:
    """Raise ValueError for anything that is not the number, from 0, of one of so many components."""
    if type(number) is not int or not 0 <= number < components:
        raise ValueError(f"component {number!r}: expected a whole number from 0 to {components - 1}")


def check_encoder(model: Any) -> None:
    """Raise ValueError for the name of a model of this package that has no encoder."""
    words = _NO_ENCODER | dict.fromkeys(measured_networks(), "measured statistics")
    if model in words:
        raise ValueError(
            f"the model of this release is {words[model]}, without an encoder: expected a release of autoencoders "
            "(model=vae)"
        )


def check_classifier(labelled: Any) -> None:
    """Raise ValueError unless the description of a model says that its label was bought (`LABELLED`)."""
    if labelled is not True:
        raise ValueError(
            "this release holds no classifier: expected one of model=classifier, or of another model that has spent a "
            "share of the budget on the label (label_share)"
        )


def conditions_on(schema: Schema, where: Where) -> dict[str, list[Condition]]:
    """Return the conditions on each column of synthetic records.

    Raises:
        ValueError: naming the column, for one that there is not, or conditions that no record fulfils.

    Example:
        >>> from lightning_dpgen.data.tables.schema_keys import column_of
        >>> from lightning_dpgen.data.tables.schema import TableSchema
        >>> schema = TableSchema((column_of("age", {"type": "integer", "low": 0, "high": 99, "bins": 10}),))
        >>> [condition.may for condition in conditions_on(schema, ["age >= 85", "age < 90"])["age"]][0]
        frozenset({8, 9})
    """
    from lightning_dpgen.data.conditions import conditions_of

    by_column: dict[str, list[Condition]] = {}
    every = conditions_of(where, schema.condition_columns)
    for said in every:
        by_column.setdefault(said.column, []).append(schema.condition(said))
    for column, several in by_column.items():
        if several[0].group is not None and not frozenset.intersection(*(condition.may for condition in several)):
            problem = "no record fulfils all conditions on it: leave some out"
            if len(several) == 1:
                problem = "the model makes no such value: ask for one that it makes, or for a range"
            raise ValueError(f"column {column!r}: {problem}")
    schema.check_together(every)
    return by_column


def balanced_group(schema: Schema, column: Any) -> tuple[int, int]:
    """Return the group of a column of which every choice may have an equal share, and how many: but for missing values.

    Raises:
        ValueError: for any other column.

    Example:
        >>> from lightning_dpgen.data.tables.schema_file import parse_schema
        >>> schema = parse_schema("columns: {age: {type: integer, low: 0, high: 99, bins: 10}, ill: {type: boolean}}")
        >>> balanced_group(schema, "ill")
        (1, 2)
    """
    names = list(schema.choices)
    known = [name for name in names if name in schema.arrow.names]
    known = [name for name in known if name not in schema.relatives]
    if column not in known:
        near = suggest(column, known) if isinstance(column, str) else ""
        raise ValueError(f"balance={str(column)[:60]}: expected a column with choices of its own: {listed(known)}{near}")
    missing = any(modelled.name == column and modelled.missing for modelled in schema.modelled)
    return names.index(column), len(schema.choices[column]) - missing
