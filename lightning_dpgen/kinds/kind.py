"""The interface of a kind of records: all in which its records differ from others, with what does for most kinds."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.sampling.errors import BadRecords

if TYPE_CHECKING:
    from lightning_dpgen.data.records import Records
    from lightning_dpgen.measure.recipe import Recipe
    from lightning_dpgen.metrics.evaluation import Evaluation
    from lightning_dpgen.release.drawing.described import Described
    from lightning_dpgen.release.drawing.release import Release
    from lightning_dpgen.release.pages.distributions import Shown
    from lightning_dpgen.release.rows.output_format import WrittenRecords
    from lightning_dpgen.specs.source import Source


class Kind(ABC):
    """All in which one kind of records differs from others; what is not overridden does for records of any kind.

    A kind is made once and registered (`data.schema.register_kind`); a release is read by the kind that its schema names.
    Methods import what is slow themselves, so that a mistake in a setting waits for no library.

    Attributes:
        name: as `Schema.kind` has it.
        schema: the class of descriptions of records.
        word: a record in a word.
        parts: the parts of a description, in words.
        discoverable: the parts of a description that may be found privately, in a word.
        measured_networks: the names of networks fitted to measured statistics, today's and those of earlier planners.
        trained_networks: the models (`model=...`) whose networks are trained on these records.
        components: the setting of how many components are fitted to what is measured.
        tabular: whether records are rows of cells, which are completed where some are empty.
        by_values: whether an evaluation compares records by their values, which bins of a model do not hide.
        endings: of files that records of this kind alone have.

    Example:
        >>> from lightning_dpgen.data.schema import kind_named
        >>> kind_named("series").word
        'series'
    """

    name: ClassVar[str]
    schema: ClassVar[type[Schema]]
    word: ClassVar[str] = "record"
    parts: ClassVar[str] = "all that is declared of it"
    discoverable: ClassVar[str] = "values"
    measured_networks: ClassVar[tuple[str, ...]] = ()
    trained_networks: ClassVar[tuple[str, ...]] = ("vae", "rbm", "wgan", "own")
    components: ClassVar[str] = "model.components"
    tabular: ClassVar[bool] = False
    by_values: ClassVar[bool] = False
    endings: ClassVar[tuple[str, ...]] = ()

    # Settings

    def source(self, spec: Any) -> Source:
        """Return the `Source` of the records that settings (a `DataSpec` of this kind) describe."""
        raise NotImplementedError(f"records of kind {self.name} have no settings: they come by data=own")

    def frame_source(self, spec: Any, schema: Any, frame: Any) -> Source | None:
        """Return the `Source` of records in a frame of pandas or a table of Arrow; None for a kind that takes none."""
        return None

    def complete_schema(self, schema: Any, spec: Any, source: Source, discovery: Any, initial: Any) -> Schema:
        """Return a declared schema with what follows from the budget.

        Args:
            spec, source: the settings of the run, and its records.
            discovery: what a first pass has found, or None.
            initial: the network that the training starts from, or None.
        """
        return schema

    def complete_measured(self, spec: Any, schema: Any, defaults: Any) -> dict[str, Any]:
        """Return the settings of `model=measured` that these records take, each with its default.

        Args:
            spec: a `MeasuredSpec` as it was given.

        Raises:
            UsageError, ValueError: for records of which nothing is measured, or settings that they have no use for.
        """
        raise ValueError(f"model={spec.name}: measures nothing of records of kind {self.name}: take model=vae")

    def recipe(self, spec: Any, schema: Any, *, n: int, seed: int, strength: float, sets: Sequence[Any] = ()) -> Recipe:
        """Return the `Recipe` of what is measured, and of what is fitted to it; arguments as of `make_recipe`."""
        raise NotImplementedError(f"records of kind {self.name} have no recipe")

    # Releases

    def describe(self, schema: Any) -> tuple[str, list[Described]]:
        """Return a record in one phrase, and its parts for people."""
        from lightning_dpgen.release.drawing.described import Described, describe_label

        label, _ = schema.label_values
        parts = [Described(field.name, str(field.type), "") for field in schema.arrow if field.name != label]
        return f"records of kind {self.name}", [*describe_label(schema), *parts]

    def show(self, path: Path, schema: Any) -> Shown:
        """Return charts and examples of the synthetic records in a Parquet file."""
        from lightning_dpgen.release.pages.distributions import show_label

        return show_label(path, schema)

    def tasks(self, schema: Any) -> list[str]:
        """Return the Hub's categories of tasks that these records serve; none if the Hub has no name for them."""
        return []

    def example_label(self, schema: Any) -> tuple[str, Any, str] | None:
        """Return the name of the label, its last value, and that value as a condition says it; None without a label."""
        name, values = schema.label_values
        return (name, values[-1], str(values[-1])) if values else None

    def picture(self) -> Callable[[Path, Release], None] | None:
        """Return the function that draws some records of a release to a file; None for records that are not drawn."""
        return None

    def forms(self, schema: Any) -> tuple[str, ...]:
        """Return the forms of files, where there is a choice."""
        return ()

    def output_format(
        self, schema: Any, release: Release, ending: str, form: str | None, declared: Callable[[], Any]
    ) -> WrittenRecords:
        """Return the form in which files have synthetic records.

        Args:
            ending: of the file.
            form: one of `forms`; None for that of the real records.
            declared: returns what the certificate declares.
        """
        from lightning_dpgen.release.rows.output_format import as_they_are

        return as_they_are(release.arrow, release.form)

    def related(self, schema: Any) -> dict[str, WrittenRecords]:
        """Return the tables in which a file of SQLite has synthetic records, by their names, where one is not enough.

        The first column of each is the key of its record: in the first table one row has it, in others several do.
        """
        return {}

    def write_folder(self) -> Callable[..., None] | None:
        """Return the function that writes records as files of their own; None where rows of tables stand in files."""
        return None

    def sample(self, release: Release, *draw: Any) -> Any:
        """Draw records of a release in the form in which people have them; `draw` as of `Release.sample`."""
        return release.form.frame(release.drawn_table(*draw))

    def encode(self, records: Any, schema: Any) -> Encoded:
        """Return records in memory or in a file, as a schema encodes them.

        Raises:
            ValueError: for what cannot be read so.
        """
        raise ValueError(f"records: a {type(records).__name__}: expected Records of kind {self.name}")

    def read_tables(self, tables: Mapping[str, Any], schema: Any) -> Records:
        """Return records that are in several tables, by their names.

        Raises:
            BadRecords: for what is not of the schema, or records that are in one table.
        """
        raise BadRecords(f"records are several tables, and the release is of kind {self.name}: expected one")

    # Evaluation

    def sides(self, schema: Any) -> dict[str, Any]:
        """Return what measures are told of encoded records besides their layout: arguments of `evaluate_encoded`."""
        return {}

    def evaluate(self, release: Release, real: Records, held_out: Records | None, count: int, **asked: Any) -> Evaluation:
        """Compare so many synthetic records with real ones that are no table.

        Args:
            held_out: as of `evaluate_encoded`, and so is `asked`.
        """
        from lightning_dpgen.metrics.evaluation import evaluate_encoded

        schema, made = release.schema, release.sample_encoded(count, asked["seed"])
        asked |= {"kind": schema.kind, "choices": list(schema.choices.values()), **self.sides(schema)}
        asked["held_out"] = None if held_out is None else held_out.encoded
        return evaluate_encoded(real.encoded, made, schema.layout, list(schema.choices), **asked)
