"""`data`: which records are learned from, how they are written, and what is publicly declared of them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lightning_dpgen.common.passwords import check_url, without_passwords
from lightning_dpgen.data.baskets.form import BasketForm
from lightning_dpgen.data.public_sets import DRAWS, names_of
from lightning_dpgen.data.series.form import SeriesForm
from lightning_dpgen.specs.spec import AnyText, Name, Place, Spec, Text, as_settings, setting
from lightning_dpgen.specs.usage_error import UsageError

MOST_RECORDS = 10**9
_SHARE = {"gt": 0, "lt": 0.5}


class DataSpec(Spec):
    """The settings of all kinds of data."""

    # The kind of the schema; None where it may be any.
    kind: ClassVar[str | None]
    # True where a model is chosen (`model=auto`) if none is named.
    chooses_model: ClassVar[bool] = False

    n: int | None = setting("the declared number of records that take part; public", ge=1, le=MOST_RECORDS)
    n_share: float | None = setting("instead of n: the share of the budget for a noisy count of the records", **_SHARE)

    @property
    def column_of_persons(self) -> str | None:
        """The column that says whose a record is; None where no person has several."""
        return getattr(self, "person", None)

    @property
    def protects_persons(self) -> bool:
        """True where the unit is a person with all records, even where a person has one."""
        return self.column_of_persons is not None

    @property
    def most_rows(self) -> int:
        """The number of records of a person that take part at most."""
        return getattr(self, "max_rows", None) or 1

    @property
    def share_of_discovery(self) -> float | None:
        """The share of the budget for what is found privately."""
        return getattr(self, "discovery_share", None)

    @property
    def share_of_values(self) -> float | None:
        """The share of the budget for how columns are distributed; None for none."""
        return getattr(self, "bins_share", None) or None

    @property
    def asked_sets(self) -> Any:
        """The sets of columns whose tables of counts are asked for, or the file that holds them; None for none."""
        return getattr(self, "workload", None)

    def model_post_init(self, _: Any) -> None:
        if self.n is not None and self.n_share is not None:
            raise UsageError(
                f"data.n={self.n} and data.n_share={self.n_share:g}: declare the number of records, or buy it with "
                "data.n=null"
            )


class _OfPersons(DataSpec):
    person: Text | None = setting("the column that identifies the person of a record, if a person has several records")
    max_rows: int | None = setting("the largest number of records of a person that take part", ge=1, le=10_000)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if (self.person is None) != (self.max_rows is None):
            raise UsageError(
                f"data.person={self.person} with data.max_rows={self.max_rows}: expected both, the column that says whose "
                "a record is and the largest number of records of a person that take part, or neither"
            )


class _OfOwnRecords(_OfPersons):
    outside: Literal["refuse", "clamp"] = setting(
        "undeclared values are refused, or clamped and counted, privately; a column of a table may say it for itself",
        "refuse",
    )


class _OfTables(DataSpec):
    bins_share: float | None = setting(
        "the share of the budget for the distributions of columns of numbers, by which open bins are cut, and for the "
        "counts of categories with more than 1,000 values, whose rare ones are learned in groups; 0 for bins of equal "
        "width, and each value by itself", ge=0, lt=0.5, by_default="follows from n and the budget",
    )  # fmt: skip
    bins: int | None = setting(
        "the number of bins of numbers, if the schema does not say", ge=1, le=10_000,
        by_default="follows from n and the budget",
    )  # fmt: skip
    workload: list[list[Name]] | Place | None = setting(
        "model=measured: sets of 1 to 4 columns whose tables of counts get a third of what tables may spend, and are "
        "released with error bars, as in [[age,diagnosis],[region,sex,income]], or a YAML or JSON file with such a list "
        "under workload; PUBLISHED"
    )


class _OfOwnTables(_OfTables, _OfOwnRecords):
    max_moved: float = setting(
        "the largest share of a column's values that may be clamped, or of records that may be repaired or left out for a "
        "constraint; above it the run stops before anything is spent, and with 1 it never does. What is found privately is "
        "not looked at", 0.05, ge=0, le=1,
    )  # fmt: skip
    discovery_share: float | None = setting(
        ("the share of the budget for the parts of the schema that are `private`"), **_SHARE
    )


class _InFile(DataSpec):
    path: Place | None = setting("the file, or folder", needed=True)


class _Simulated(DataSpec):
    draw: int = setting(
        "which of the independent draws, by a public number; the records held out are those of a draw with no such number",
        0, ge=0, lt=DRAWS,
    )  # fmt: skip

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.n_share is not None:
            raise UsageError(
                f"data.n_share={self.n_share:g}: how many records are simulated is public, and nothing is bought for it; "
                "give data.n"
            )


class PublicPicturesSpec(DataSpec):
    """A public set of pictures."""

    kind = "images"
    source: Literal[names_of("images", simulated=False)]
    classes: int | None = setting("10, or 0 to leave the label out", ge=0, le=10_000)
    threshold: int | None = setting("pixels above it become 1, all others 0", ge=0, lt=2**24)


class PublicTableSpec(_OfTables):
    """A public table, by the package's own schema."""

    kind, chooses_model = "table", True
    source: Literal[names_of("table", simulated=False)]


class SimulatedTableSpec(PublicTableSpec, _Simulated):
    """A table of records that are simulated from a public seed, `data.n` of them."""

    source: Literal[names_of("table", simulated=True)]


class PublicBasketsSpec(DataSpec):
    """A public set of baskets."""

    kind, chooses_model = "baskets", True
    source: Literal[names_of("baskets", simulated=False)]


class SimulatedBasketsSpec(PublicBasketsSpec, _Simulated):
    """Baskets that are simulated from a public seed, `data.n` of them."""

    source: Literal[names_of("baskets", simulated=True)]


class PublicSeriesSpec(_OfPersons):
    """A public set of series. By `data.person=Name` the person of `sp500` is a company."""

    kind = "series"
    source: Literal[names_of("series", simulated=False)]


class SimulatedSeriesSpec(PublicSeriesSpec, _Simulated):
    """Series that are simulated from a public seed, `data.n` of them. By `data.person=meter` the person is a meter."""

    source: Literal[names_of("series", simulated=True)]


class PicturesSpec(_InFile):
    """Your own pictures: a folder (in sub-folders by class), or an .npz with `images` and, with classes, `labels`."""

    kind = "images"
    source: Literal["images"]
    height: int | None = setting("all pictures are resized to this height", needed=True, ge=1, le=4096)
    width: int | None = setting("all pictures are resized to this width", needed=True, ge=1, le=4096)
    channels: int | None = setting("1 grey, 3 colour", by_default="1", ge=1, le=4)
    classes: int | list[Name] | None = setting(
        "the number of labels, or their names, which are the names of the sub-folders"
    )
    fit: Literal["stretch", "pad", "crop"] | None = setting(
        ("how pictures of another size are resized"), by_default="stretch"
    )
    high: float | None = setting("the largest value of arrays that do not hold bytes", gt=0)
    threshold: int | None = setting("pixels above it become 1, all others 0", ge=0, lt=2**24)


class TableSpec(_InFile, _OfOwnTables):
    """Your own table: a file (text, Parquet, JSON lines, Excel, SQLite, DuckDB) with a schema by `dpgen schema FILE`."""

    kind, chooses_model = "table", True
    source: Literal["table"]
    path: Place | None = setting("the file, or the folder of Parquet or text files; a database has url and query instead")
    memory_gib: float = setting(
        "Parquet or text files that together are larger than this, in GiB, are read in blocks; each block is encoded "
        "once into the run's private folder",
        1.0,
        ge=0,
    )
    url: AnyText | None = setting("the URL of a database, without a password, which the driver finds in its own way")
    query: AnyText | None = setting("with url: the SQL query for the records, each of which is one row")
    rows_independent: bool | None = setting(
        "a declaration for a query whose form does not show it: adding or removing one record (for a person: all rows of "
        "the person) adds or removes exactly its own rows of the query, and changes no other row"
    )
    schema_: Place | None = setting("FILE.schema.yaml, the public description of the columns", alias="schema")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        if self.url is not None:
            try:
                check_url(self.url)
            except ValueError as error:
                raise UsageError(f"data.url={without_passwords(self.url)}: {error}") from None
            if self.path is not None:
                raise UsageError(f"data.path={self.path} with data.url: expected one of them, a file or a database")
        if (self.url is None) != (self.query is None):
            raise UsageError(
                f"data.{'query' if self.query is None else 'url'}: must be given, as in data.url=postgresql://ann@host/db "
                'data.query="select age, sex from visits"'
            )
        if self.rows_independent is not None and self.query is None:
            raise UsageError("data.rows_independent: declares something of data.query: leave it out where there is none")


class _OfFiles(_InFile, _OfOwnRecords):
    separator: AnyText | None = setting("the separator of columns or items")
    columns: list[Text] | None = setting("the columns that are read")
    classes: list[Name] | None = setting("the values of the label, if there is one")

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        try:
            self.written  # noqa: B018
        except ValueError as error:
            raise UsageError(as_settings(error, "data", self)) from None

    @property
    def written(self) -> BasketForm | SeriesForm:
        """The form of the files.

        Raises:
            ValueError: for settings that make no sense together.
        """
        raise NotImplementedError


class BasketsSpec(_OfFiles):
    """Your own baskets over a public universe of items: lines, rows (basket, item), or a CSR matrix in an .npz file."""

    kind, chooses_model = "baskets", True
    source: Literal["baskets"]
    form: Literal["lines", "rows", "matrix"] | None = setting(
        "one basket in each line, a basket id and an item in each row, or a CSR matrix",
        by_default="lines for .dat, .txt and .baskets, matrix for .npz, rows for tables",
    )
    header: bool | None = setting(
        "whether the first line of a file of text is no basket", by_default="true for rows, false for lines"
    )
    label: bool | Text | None = setting("the column of the label, or whether there is a label, which begins a line")
    items: Text | list[Name] | None = setting(
        "the universe: a file with one item in each line, whole numbers as in 1..16470, a list, or private"
    )
    max_items: int | None = setting("the largest number of items of a basket that count", needed=True, ge=1, le=100_000)
    discovery_share: float | None = setting("the share of the budget for items=private", **_SHARE)

    @property
    def written(self) -> BasketForm:
        given = self.given("form", "separator", "columns", "person", "header")
        return BasketForm(**given, label=self.label or bool(self.classes))


class SeriesSpec(_OfFiles):
    """Your own series of one length within public bounds: one series in each row (wide), or one reading (long)."""

    kind = "series"
    source: Literal["series"]
    form: Literal["wide", "long"] | None = setting("one series in each row, or one time in each row", by_default="wide")
    label: Text | None = setting("the column of the label, where there are classes", by_default="label")
    length: int | None = setting("the number of readings of a series", needed=True, ge=1, le=100_000)
    low: float | list[float] | None = setting("the smallest reading: one for all channels, or one for each", needed=True)
    high: float | list[float] | None = setting("the largest reading: one for all channels, or one for each", needed=True)
    channels: list[Text] | None = setting("names of the channels, if there are several")
    decimals: int | None = setting("decimals of synthetic readings", ge=0, le=12)
    steps: Text | list[Name] | None = setting(
        "the public times of a series: a list, or FIRST..LAST, as in 1980..1987 or 00:00..23:30, evenly spaced"
    )
    header: bool | None = setting("whether the first line holds names; null: it does, and numbers in it are refused")
    by: Text | None = setting("long: the column that identifies the series")
    day: Text | None = setting("long: the column of time stamps; each day is a series")
    time: Text | None = setting("long, with by and steps: the column of times; without it rows stand in order")
    weekdays: Literal["each", "weekend"] | None = setting(
        "long: the label is the day of the week, or whether it is a weekend"
    )

    @property
    def written(self) -> SeriesForm:
        names = ("form", "header", "separator", "columns", "label", "person", "by", "day", "time", "weekdays")
        form = SeriesForm(**self.given(*names))
        if form.time is not None and self.steps is None and self.length is not None:
            raise ValueError(
                f"time={form.time}: expected steps, the public times of a series, as in steps=1980..1987: those of the "
                "file are values of records"
            )
        return form


class HistoriesSpec(_InFile):
    """Your own persons with histories: tables of persons and of their rows, which a YAML file names and describes."""

    kind, chooses_model = "histories", True
    source: Literal["histories"]
    path: Place | None = setting("the file that names the tables, and describes persons and rows", needed=True)
    bins: int = setting("the number of bins of numbers, times and distances, if the file does not say", 16, ge=2, le=1000)
    outside: Literal["refuse", "clamp"] = setting(
        "undeclared values are refused, or clamped and counted, privately; a column may say it for itself", "refuse"
    )
    rows_independent: bool | None = setting(
        "a declaration for queries whose form does not show it: adding or removing one person adds or removes exactly the "
        "person's own rows of each query, and changes no other row"
    )

    @property
    def protects_persons(self) -> bool:
        return True


class CustomDataSpec(_OfOwnTables):
    """Records from your own function, which returns (schema, Encoded or Records), or (frame, TableSchema)."""

    kind = None
    source: Literal["own"]
    target: Text | None = setting("package.function", needed=True)
    options: dict[str, Any] | None = setting(
        "its keyword arguments, plain values; PUBLISHED as given, so no password, and no path that reveals anything"
    )


AnyData = Annotated[
    PublicPicturesSpec | PicturesSpec | PublicTableSpec | SimulatedTableSpec | TableSpec | PublicBasketsSpec
    | SimulatedBasketsSpec | BasketsSpec | PublicSeriesSpec | SimulatedSeriesSpec | SeriesSpec | HistoriesSpec
    | CustomDataSpec,
    Field(discriminator="source"),
]  # fmt: skip


class BlobsSpec(Spec):
    """Two round clusters of unit variance whose centres are 4 apart: simulated from the public seed."""

    source: Literal["blobs"]
    n: int = setting("the number of rows", 2000, ge=1, le=MOST_RECORDS)
    d: int = setting("the number of columns", 50, ge=1, le=2**20)


class ArraySpec(Spec):
    """Your own rows of numbers: .npy (n, d), .npz of scipy (sparse), .parquet with numeric columns only."""

    source: Literal["array"]
    path: Place | None = setting("the file", needed=True)
    n: int | None = setting("the number of rows", ge=1, le=MOST_RECORDS)
    d: int | None = setting("the number of columns", ge=1, le=2**20)


AnyRows = Annotated[BlobsSpec | ArraySpec, Field(discriminator="source")]
