"""The content of a trained mixture's release: the model, synthetic records, and a picture of some."""

from __future__ import annotations

import base64
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_dpgen.data.schema import kind_of
from lightning_dpgen.measure.degenerate import degenerate_warning
from lightning_dpgen.measure.first_draw import FirstDraw, look_at_first_draw
from lightning_dpgen.models.labelled import LabelledNetwork
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.models.networks import check_seed, check_sizes
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.planning.stage_spec import declared_records
from lightning_dpgen.release.answers import Answers
from lightning_dpgen.release.bounds import default_rows
from lightning_dpgen.release.bundle import release_from
from lightning_dpgen.release.certificate import INIT
from lightning_dpgen.release.drawing.described import described, kept_constraints
from lightning_dpgen.release.drawing.description import measured_networks
from lightning_dpgen.release.drawing.model_files import write_model
from lightning_dpgen.release.drawing.release import Release
from lightning_dpgen.release.files import ANSWERS, FIGURE, MODEL, SHEET, SYNTHETIC, WEIGHTS
from lightning_dpgen.release.pages.croissant import write_croissant
from lightning_dpgen.release.pages.report import write_pages
from lightning_dpgen.release.pages.text import example_condition, printable, sentence, size_category
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.release.rows.pictures import MOST_ROWS
from lightning_dpgen.release.rows.tables import write_table
from lightning_dpgen.release.run_names import in_words, names_of_a_run


@dataclass(frozen=True)
class SyntheticContent:
    """A `bundle.Content`.

    Args:
        mixture: the trained mixture.
        rows, seed: number and seed of the synthetic records; public.
        figure: their closeness to the real ones, if it was bought with a share of the budget (`measure_fidelity`).
        limits: sentences about what to expect of them, from public numbers alone, for report and card.
        answers: noisy counts of the sets of columns that were asked for.

    Raises:
        Diverged: for a mixture that is not finite.
    """

    mixture: Mixture
    rows: int
    seed: int
    figure: dict[str, float] | None = None
    limits: tuple[str, ...] = ()
    answers: Answers | None = None

    def __post_init__(self) -> None:
        self.mixture.check_finite()

    @cached_property
    def first_draw(self) -> FirstDraw | None:
        """The share of rows that keep the constraints of a table as the model first draws them; public."""
        return look_at_first_draw(self.mixture)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about its records that are due before they are published; public."""
        both = None if self.first_draw is None else self.first_draw.warning, degenerate_warning(self.mixture)
        return tuple(warning for warning in both if warning is not None)

    @property
    def _limits(self) -> tuple[str, ...]:
        return (*self.limits, *map(sentence, self.warnings))

    @property
    def released(self) -> tuple[str, ...]:
        pictured, measured = self._draw is not None, self.figure is not None
        asked = self.answers is not None
        return (MODEL, WEIGHTS, SYNTHETIC) + (SHEET,) * pictured + (FIGURE,) * measured + (ANSWERS,) * asked

    @property
    def _draw(self) -> Callable[[Path, Release], None] | None:
        """The function that draws the picture; None for records that are not drawn."""
        return kind_of(self.mixture.network.schema).picture()

    def write(self, folder: Path, *, private: bool) -> None:
        release = Release(self.mixture, private=private)
        write_model(
            folder, self.mixture, private=private, kept=None if self.first_draw is None else self.first_draw.at_once
        )
        write_table(folder / SYNTHETIC, release.sample_blocks(self.rows, self.seed), release.arrow, form=release.form)
        if self._draw is not None:
            self._draw(folder / SHEET, release)
        if self.figure is not None:
            (folder / FIGURE).write_text(json.dumps(self.figure, indent=2) + "\n", encoding="utf-8")
        if self.answers is not None:
            self.answers.write(folder / ANSWERS, private=private)

    def present(self, folder: Path, certificate: dict[str, Any]) -> None:
        schema = self.mixture.network.schema
        name = f"Synthetic records: {certificate['declared']['data']}"
        license = certificate["declared"].get(LICENSE)
        write_croissant(folder, schema.arrow, name=name, description=certificate["statement"], license=license)
        what, parts, left_out = described(schema)
        label = printable(schema.label_values[0], 60) if kind_of(schema).tabular else "the label"
        write_pages(
            folder,
            certificate,
            "synthetic",
            self._limits,
            kind=schema.kind,
            what=what,
            parts=parts,
            left_out=left_out,
            rows=self.rows,
            components=self.mixture.network.k,
            picture=base64.b64encode((folder / SHEET).read_bytes()).decode() if self._draw is not None else None,
            most_rows=MOST_ROWS,
            kept=kept_constraints(schema, self.first_draw),
            shown=kind_of(schema).show(folder / SYNTHETIC, schema),
            where=example_condition(schema),
            size=size_category(self.rows),
            tasks=kind_of(schema).tasks(schema),
            figure=self.figure,
            answers=None if self.answers is None else self.answers.deviation,
            measured=self.mixture.network.kind in measured_networks(),
            classified=label if isinstance(self.mixture.network, LabelledNetwork) else None,
        )


def release_mixture(
    mixture: Mixture,
    account: Account,
    folder: str | Path,
    *,
    data: str,
    n: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    unit: str | None = None,
    declared: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write a release of a mixture that was learned on an account: model, synthetic records, certificate, report and card.

    A run that was left early is charged what its plan says.

    Args:
        mixture: a mixture of networks of this package, as from `measure.recipe.Recipe.measure` or `PrivateMixture.mixture`.
        account: the account that has paid for it; nothing else that saw the records may have touched the mixture.
        folder: a folder that does not exist; it appears complete, or not at all.
        data: the records, in words.
        n: their declared number; None where the plan knows it.
        unit: the unit whose presence is protected; None for a person if the plan is about persons with several records,
            else one record.
        declared: everything else that the certificate assumes to be public. Its `license`, such as `cc-by-4.0`, is that of
            the release, and stands in the card, too; its `model` is words for what was learned. Names of settings of
            `dpgen train` are not free, since `verify` would hold the release against the plan of such a run.
        rows: number of synthetic records; None for n, at most 5,000,000.
        seed: seed of the synthetic records; public.

    Returns:
        The certificate.

    Raises:
        FileExistsError: if the folder exists.
        PlanMismatch: if nothing was drawn from the account.
        ValueError: for n or rows below 1, a mixture of another account, or `declared` that repeats an argument, names a
            network to start from, or has a name of such settings; Diverged for a mixture that is not finite.
    """
    n = declared_records(account.plan, n)
    check_seed(seed)
    if not isinstance(mixture, Mixture):
        raise ValueError(f"mixture: a {type(mixture).__name__}: expected a Mixture, as module.mixture() returns one")
    if mixture.run != account.ledger.run:
        raise ValueError(
            "mixture: was learned on another account than this one, or on an unknown one, and the certificate would not "
            "state its cost; pass the account that it was measured or trained on, and make a mixture of your own by "
            "Mixture(network, weights, run=account.ledger.run)"
        )
    if names := sorted({"schema", "seed", "rows", INIT} & set(declared or {})):
        raise ValueError(f"declared: holds {names}, which arguments and the mixture state already; leave them out")
    words = {"model": f"{mixture.network.kind}, learned by another program than dpgen train"} | (declared or {})
    if names := names_of_a_run(words):
        raise ValueError(
            f"declared: holds {names}, names of settings of dpgen train, against whose plan verify would hold this "
            f"release; take other names, as in my_{names[0]}"
        )
    if not in_words(words["model"]):
        raise ValueError(f"declared: model={str(words['model'])[:60]!r}: expected words for what was learned")
    schema = mixture.network.schema
    rows = default_rows(n, schema.record_bytes) if rows is None else rows
    check_sizes(rows=rows)
    # Constraints that noisy tables have shown are not declared.
    everything = {"schema": schema.declared_alone.as_json(), "seed": seed, "rows": rows, **words}
    if mixture.init is not None:
        everything[INIT] = dict(mixture.init)
    content = SyntheticContent(mixture, rows, seed)
    for warning in content.warnings:
        warnings.warn(warning, UserWarning, stacklevel=2)
    return release_from(content, account, folder, data=data, n=n, unit=unit, declared=everything)
