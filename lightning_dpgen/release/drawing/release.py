"""A release that is opened: it draws, completes, encodes and predicts."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from safetensors import SafetensorError

from lightning_dpgen.common import pace
from lightning_dpgen.common.arguments import read_whole
from lightning_dpgen.data.conditions import Where, in_words
from lightning_dpgen.data.layout import Encoded
from lightning_dpgen.data.records import Records
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.given import GivenRows
from lightning_dpgen.data.tables.reading import Table
from lightning_dpgen.models.mixture import GenerativeNetwork, Mixture
from lightning_dpgen.release.bounds import check_columns
from lightning_dpgen.release.drawing.description import (
    KEPT,
    PROJECTION,
    balanced_group,
    check_component,
    conditions_on,
    read_description,
    unreadable,
)
from lightning_dpgen.release.drawing.draws import (
    Drawn,
    Request,
    Wanted,
    block_rows,
    block_streams,
    draw_all,
    draw_balanced,
    draw_fitting,
    draw_given,
)
from lightning_dpgen.release.drawing.model_files import NETWORKS, read_mixture
from lightning_dpgen.release.drawing.predictions import Unlabelled, encode_records, predict_labels
from lightning_dpgen.release.files import WEIGHTS, NotARelease, release_folder
from lightning_dpgen.release.projected import ProjectedRows, load_projected
from lightning_dpgen.release.publishing.mark import marked_schema
from lightning_dpgen.release.rows.output_format import OutputFormat

_SEEDS = 2**63


class Release:
    """A released model, which needs nothing but its folder.

    Args:
        mixture: the model.
        private: whether the run that made it was private; files written from one that was not are marked
            (`release.publishing.mark`).

    Its methods take conditions, as texts such as ``where=["age >= 60", "job in (cook, vet)"]``, or as columns and values:
    ``where={"sex": "Male", "occupation": None, "age": "30..39"}`` (None is a missing value). Records have exactly the
    model's conditional distribution: mixtures of products and of forests of choices draw it (`ConditionalSampler`), and of
    other models records are drawn until enough fit. As they are functions of the model they cost no privacy. All records
    keep the constraints of the schema.

    Example:
        >>> release = load_release(folder)                       # doctest: +SKIP
        >>> pictures = release.sample(100, seed=1)               # doctest: +SKIP
        >>> nines = release.sample(100, where={"label": 9})      # doctest: +SKIP
        >>> alike = release.component(3).sample(100)             # doctest: +SKIP
        >>> filled = release.complete(frame_with_gaps, seed=1)   # doctest: +SKIP
    """

    def __init__(self, mixture: Mixture, *, private: bool = True) -> None:
        self._mixture, self.private = mixture, private

    @property
    def schema(self) -> Schema:
        return self._mixture.network.schema

    @property
    def mixture(self) -> Mixture:
        """The model itself, from which `PrivateMixture.init_from` may start."""
        return self._mixture

    @property
    def arrow(self) -> pa.Schema:
        """The columns of a file of records, marked if it is not private.

        Raises:
            ValueError: for pictures of more numbers than a table has columns; `sample` draws these all the same.
        """
        check_columns(self.schema.layout.units)
        return self.schema.arrow if self.private else marked_schema(self.schema.arrow)

    @property
    def components(self) -> int:
        return self._mixture.network.k

    def component(self, number: int) -> Release:
        """Return one component of the mixture alone, such as the model of one cluster, by its number from 0."""
        check_component(number, self.components)
        weights = torch.zeros(self.components)
        weights[number] = 1.0
        return Release(type(self._mixture)(self._mixture.network, weights), private=self.private)

    def encode(self, records: Records) -> pd.DataFrame:
        """Return the component that most probably made each record, and the mean of its code there.

        The encoder is a part of the release and has seen the records of the training through noise alone, so using it
        costs nothing beyond the certificate. A code is a function of its record: codes of private records are private.

        Args:
            records: with the description of the release's own, as `encode_table` returns them, also others than it was
                learned from.

        Returns:
            One row a record: ``component``, and ``z_0`` to ``z_<d-1>``.

        Raises:
            ValueError: for a release without an encoder (it is of ``model=vae``), or records of another description.

        Example:
            >>> codes = release.encode(encode_table("visits.csv", release.schema))       # doctest: +SKIP
            >>> codes[["z_0", "z_1"]].mean()                                             # doctest: +SKIP
        """
        return encode_records(self._mixture, records)

    def predict(self, records: Unlabelled) -> pd.DataFrame:
        """Return the most probable label of each record by the release's classifier, and the probability of every label.

        The classifier has seen the records of the training through noise alone, so using it costs nothing beyond the
        certificate. What it says of a record is a function of that record: predictions for private records are private.

        Args:
            records: a table in memory, the path of a file or a `DatabaseQuery`, whose label may be missing and is not
                looked at; an array of pictures or series; or Records of the release's own description.

        Returns:
            One row a record: the label under its own name, and ``p_<label>`` for each.

        Raises:
            ValueError: for a release without a classifier (it is of ``model=classifier``), or other records.
            BadRecords: for records that do not fit the description.

        Example:
            >>> labels = load_release("runs/mine").predict(frame)            # doctest: +SKIP
            >>> labels["income"], labels["p_>50K"]                           # doctest: +SKIP
        """
        return predict_labels(self._mixture, records)

    def sample(
        self, n: int, seed: int | None = None, where: Where | None = None, balance: str | None = None
    ) -> pd.DataFrame | np.ndarray:
        """Draw n synthetic records: a table, or pictures (n, height, width), whole numbers to ``schema.layout.levels``.

        Series have the form and the names of columns of the file that they were learned from, so those of a long one are
        ``length`` rows each (`written_series`); `table` has one a row in any case. A basket is a list of items. Histories
        are a dict of frames, one a table, in which persons have numbers from 1.

        Args:
            n: number of records, 0 or more.
            seed: seed that makes the draw repeatable; None draws anew each time.
            where: conditions that all records fulfil; None for none.
            balance: a column of which every choice has an equal share of the records, up to rounding: each value of
                categories, each bin of numbers, and no missing values; None for the shares of the model.

        Raises:
            ValueError: for anything else; for a condition on an unknown column, or one that no record can fulfil.
            TooRare: if not enough of 1,000 records for each that is asked for, and of 100,000, fit; as soon as that is
                clear.
        """
        return kind_of(self.schema).sample(self, n, seed, where, balance)

    def complete(self, rows: Table, seed: int | None = None) -> pd.DataFrame:
        """Fill the missing columns and empty cells of rows of a table from the model, given their other cells.

        Mixtures of products and of forests of choices draw from exactly the model's conditional distribution
        (`ConditionalSampler`); of other models records are drawn until one has the cells of the row. Every row keeps the
        declared constraints. Nothing is spent, and the certificate covers the model alone: rows of real persons that are
        completed are data of these persons still, and as private as they were.

        Args:
            rows: a DataFrame, a table or record batch of Arrow, or the path of a file, with some of the schema's columns. A
                column that is absent is filled, and so is an empty cell (null or NaN). A text that the schema lists under
                `missing_values`, such as ``?``, is a missing value that is given, and stays; where it lists none but the
                empty text, the word ``missing`` is.
            seed: seed that makes the draw repeatable; None draws anew each time.

        Returns:
            One row for each, in their order and with their index, with all columns. Given values stand as they were given,
            in the form of the schema, and are not moved within their bins. So do values that the schema moves to what it
            declares, such as one that is not listed: other cells are filled by what it is moved to, with a warning. A
            made-up column whose values would change as numbers (007) is text.

        Raises:
            ValueError: for a release of other records than a table.
            BadRecords: for columns that the schema has not, and cells that it does not allow or that contradict each other,
                the first few of them by row and column; nothing is drawn then. For rows that no values were found to
                complete, all together.
            TooRare: for a row that another kind of model makes too rarely.

        Example:
            >>> older = frame.assign(age=80).drop(columns="income")                         # doctest: +SKIP
            >>> load_release("runs/mine").complete(older, seed=1)["income"]                 # doctest: +SKIP
        """
        given = self.given_rows(rows)
        for line in given.notes:
            warnings.warn(line, stacklevel=2)
        completed = pa.Table.from_batches(self.complete_blocks(given, seed), given.arrow)
        frame = self.form.without_types(given.kept).frame(completed)
        return frame.set_axis(rows.index) if isinstance(rows, pd.DataFrame) else frame

    def given_rows(self, rows: Table) -> GivenRows:
        """Read rows of which some cells are given; arguments and errors are those of `complete`."""
        if not kind_of(self.schema).tabular:
            raise ValueError(
                f"rows: this release is of kind {self.schema.kind}: expected one of a table, whose rows have cells"
            )
        return GivenRows.read(rows, self.schema)

    def complete_blocks(self, given: GivenRows, seed: int | None = None) -> Iterator[pa.RecordBatch]:
        """Complete given rows (`complete`), a block at a time; there is one without rows where none is given.

        Raises:
            BadRecords: at the end, naming all rows that cannot be completed. No block is yielded after the first of them.
        """
        _, seed = _read_count_and_seed(len(given), seed)
        seed = secrets.randbelow(_SEEDS) if seed is None else seed
        step, refused = block_rows(self.schema.layout), dict[int, str]()
        if not len(given):
            yield pa.record_batch([pa.array([], field.type) for field in given.arrow], schema=given.arrow)
        with pace.stage("completing rows", len(given), alone=True) as shown:
            for start in range(0, len(given), step):
                generator, random = block_streams(seed, start // step)
                some = given[np.arange(start, min(start + step, len(given)))]
                drawn, problems = draw_given(self._mixture, some, generator, random, shown)
                refused |= {start + row: problem for row, problem in problems.items()}
                if drawn is not None and not refused:
                    yield some.complete(self.schema.with_fakes(drawn.values, random, start))
        if refused:
            raise given.refusal(refused)

    def table(self, n: int, seed: int | None = None, where: Where | None = None, balance: str | None = None) -> pa.Table:
        """Draw the same records as a table of Arrow, with the columns of a Parquet file."""
        drawn = self.drawn_table(n, seed, where, balance)
        columns = self.form.typed_schema(self.arrow)
        return pa.Table.from_batches(map(self.form.typed, drawn.to_batches()), columns.with_metadata(None)).cast(columns)

    def drawn_table(
        self, n: int, seed: int | None = None, where: Where | None = None, balance: str | None = None
    ) -> pa.Table:
        """Draw the same records as a table with the columns of the schema, whatever the form of files is."""
        check_columns(self.schema.layout.units)
        return pa.Table.from_batches(self.sample_blocks(n, seed, where, balance=balance), self.schema.arrow)

    @cached_property
    def form(self) -> OutputFormat:
        """The form in which the records of a table were read, and files have synthetic ones."""
        return OutputFormat.of(self.schema)

    def sample_blocks(
        self,
        n: int,
        seed: int | None = None,
        where: Where | None = None,
        rows: range | None = None,
        balance: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Draw the same, a block at a time.

        Args:
            n, seed, where, balance: as of `sample`.
            rows: those of the n that are drawn, from the beginning of a block (a multiple of `draws.LARGEST_BLOCK` is one)
                to the end of one or of all; None for all. They are the same whether others are drawn or not.

        Example:
            >>> batches = list(release.sample_blocks(10**8, seed=1, rows=range(10**7, 2 * 10**7)))      # doctest: +SKIP
        """
        check_columns(self.schema.layout.units)
        for before, part, random in self._draw_blocks(n, seed, where, balance, rows):
            if part.values is None:
                yield self.schema.decode(part.encoded, random, before)
            else:
                yield self.schema.with_fakes(part.values, random, before)

    def sample_encoded(
        self, n: int, seed: int | None = None, where: Where | None = None, balance: str | None = None
    ) -> Encoded:
        """Draw the same records, as they are encoded."""
        return Encoded.joined(list(self.sample_encoded_blocks(n, seed, where, balance)))

    def sample_encoded_blocks(
        self, n: int, seed: int | None = None, where: Where | None = None, balance: str | None = None
    ) -> Iterator[Encoded]:
        """Draw the same, a block at a time."""
        return (part.encoded for _, part, _ in self._draw_blocks(n, seed, where, balance))

    def _draw_blocks(
        self, n: int, seed: int | None, where: Where | None, balance: str | None, rows: range | None = None
    ) -> Iterator[tuple[int, Drawn, np.random.Generator]]:
        """Yield the number of records before a block, its records, and the generator from which it draws on."""
        n, seed = _read_count_and_seed(n, seed)
        seed = secrets.randbelow(_SEEDS) if seed is None else seed
        step = block_rows(self.schema.layout)
        first, stop = (0, n) if rows is None else (rows.start, rows.stop)
        if first % step or not 0 <= first <= stop <= n or (stop % step and stop != n):
            raise ValueError(f"rows={rows}: expected whole blocks of {step:,} among {n:,} records")
        if balance is not None:
            balanced_group(self.schema, balance)
        wanted = Wanted.of(self.schema.layout, conditions_on(self.schema, where) if where else {})
        fitting = bool(where) or balance is not None
        with pace.stage("records that fit" if fitting else "drawing records", stop - first, alone=True) as shown:
            request = Request(self._mixture, n, step, in_words(where) if where else "", wanted, shown)
            # Without records, the form of them is drawn.
            for start in range(first, max(stop, first + 1), step):
                generator, random = block_streams(seed, start // step)
                count = min(step, stop - start)
                if balance is not None:
                    part = draw_balanced(request, balance, start, count, generator, random)
                elif where:
                    part = draw_fitting(request, count, generator, random)
                else:
                    part = draw_all(self._mixture, count, generator, random)
                    shown.advance(count)
                yield start, part, random

    def sample_component(self, component: int, n: int, seed: int) -> Encoded:
        """Draw n records of one component of the mixture."""
        generator = torch.Generator().manual_seed(seed)
        return self._mixture.sample_components(torch.full((n,), component), generator)


def _read_count_and_seed(n: Any, seed: Any) -> tuple[int, int | None]:
    """Return a number of records and a seed as whole numbers of Python.

    Raises:
        ValueError: for anything else, naming the argument.
    """
    n = read_whole("n", n, least=0, of=" of records")
    if seed is None:
        return n, None
    seed = read_whole("seed", seed, least=0)
    if seed >= _SEEDS:
        raise ValueError(f"seed={seed}: expected a number below 2^63")
    return n, seed


def load_release(path: str | Path, *, networks: Sequence[type[GenerativeNetwork]] = ()) -> Release | ProjectedRows:
    """Load a release from its folder: a model to sample from, or projected rows.

    Args:
        path: the folder of a release, or of the run that made it.
        networks: custom classes of networks, for releases that were made with ``model=own``. A class that is not handed
            over here is not loaded: nothing is imported by a name in a file.

    Raises:
        NotARelease: if the folder does not hold a readable model of records. The weights of a network of your own
            (`release_weights`, `PrivateTraining.release`) are loaded by `safetensors.torch.load_file`.
    """
    known = NETWORKS | {network.kind: network for network in networks if network.kind not in NETWORKS}
    folder = release_folder(path)
    description = read_description(folder)
    try:
        if description["model"] == PROJECTION:
            return load_projected(folder)
        kept = description.pop(KEPT, 1.0)
        if type(kept) is not float or not 0.0 <= kept <= 1.0:
            raise ValueError(f"{KEPT}={kept!r}: expected a share from 0 to 1")
        private = description.pop("private", True)
        if type(private) is not bool:
            raise ValueError(f"private={private!r}: expected true or false")
        return Release(read_mixture(description, folder / WEIGHTS, known), private=private)
    except NotARelease:
        raise
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise unreadable(folder, error) from None
