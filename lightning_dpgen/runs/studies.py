"""The study that a run belongs to: `privacy.study=NAME`, one file for each in a folder."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lightning_dpgen.common.folders import make_private
from lightning_dpgen.common.plain_text import listed, say_count
from lightning_dpgen.privacy.accounting.epsilon_range import round_up
from lightning_dpgen.privacy.accounting.pld import REPLACE_ONE
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.studies.study import (
    KEY,
    Study,
    Total,
    fingerprint_key,
    known_fingerprints,
    known_key,
    study_entry,
)
from lightning_dpgen.runs.identity import fingerprint
from lightning_dpgen.specs.privacy import OffSpec, PrivacySpec, PurePrivacySpec
from lightning_dpgen.specs.usage_error import UsageError

# Where studies are kept, unless privacy.study_folder says otherwise.
_FOLDER = "studies"


def study_of(privacy: PrivacySpec | OffSpec | PurePrivacySpec, n: int | None, *, begin: bool = True) -> Study | None:
    """Return the study that was asked for, begun with its total if it is new and `begin`; None where there is none.

    Args:
        n: the declared number of records of the run; None while it is to be bought.

    Raises:
        UsageError: for a name or a total that is none, a total where there is no study, or a new one's delta of 1/n or
            more.
        LedgerError: if the study is damaged, has another total, or is new and has none.
    """
    given = {name: getattr(privacy, f"study_{name}") for name in ("folder", "epsilon", "delta")}
    if privacy.study is None:
        for name, value in given.items():
            if value is not None:
                raise UsageError(
                    f"privacy.study_{name}={value}: belongs to no study; give its name, as in privacy.study=census"
                )
        return None
    if not re.fullmatch(r"[\w-]{1,80}", privacy.study):
        raise UsageError(f"privacy.study={privacy.study}: expected a name of letters, digits, - and _")
    folder = Path(given["folder"] or _FOLDER)
    path = folder / f"{privacy.study}.jsonl"
    if not begin and not path.exists():
        return None
    if not path.exists() and None in (given["epsilon"], given["delta"]):
        raise UsageError(
            f"privacy.study={privacy.study}: {path} is not there yet; begin it with the total of all its runs, as in "
            "privacy.study_epsilon=10 privacy.study_delta=1e-5"
        )
    if not path.exists() and n is not None and given["delta"] >= 1.0 / n:
        raise UsageError(
            f"privacy.study_delta={given['delta']:g}: expected less than 1/n = {1.0 / n:.3g} for {say_count(n, 'record')}, "
            "since publishing one record at random would satisfy a delta of 1/n; it is fixed when the study begins"
        )
    try:
        make_private(folder, path.name, KEY)
        return Study(path, epsilon=given["epsilon"], delta=given["delta"])
    except ValueError as error:
        raise UsageError(
            f"privacy.study_epsilon={given['epsilon']}, privacy.study_delta={given['delta']}: {error}"
        ) from None


def mark(
    study: Study | None, privacy: PrivacySpec | OffSpec | PurePrivacySpec, records: Iterable[np.ndarray]
) -> str | None:
    """Note in the study whose records these are, and say which other studies they belong to; None where there is none.

    A run of no study only reads, and passes over what is no study: the folder may be another program's.

    Args:
        privacy: says where studies are kept.
        records: as bytes, all of them; of none nothing is noted.
    """
    folder, arrays = Path(privacy.study_folder or _FOLDER), iter(records)
    # One array is held at a time: all of them may be larger than memory.
    if folder.is_symlink() or not folder.is_dir() or (first := next(arrays, None)) is None:
        return None
    key = known_key(folder) if study is None else fingerprint_key(folder)
    if key is None:
        return None
    digest = fingerprint(itertools.chain([first], arrays), key)
    # A damaged study says so to its own runs.
    others = [
        path.stem
        for path in sorted(folder.glob("*.jsonl"))
        if path.stem != getattr(study, "name", None) and digest in known_fingerprints(path)
    ]
    if study is not None:
        study.records = digest
    if not others:
        return None
    ours = "and is not entered in it" if study is None else f"and this run adds to study {study.name} alone"
    return (
        f"privacy.study={'null' if study is None else study.name}: this file belongs to study {listed(others)}, {ours}; "
        "what both tell about its people adds up, and no certificate will say so"
    )


def study_delta_warning(study: Study | None, n: int | None) -> str | None:
    """Return a warning of the delta of a study that is large beside a run's number of records.

    A study that was begun keeps its delta, and may hold runs on more or fewer records, so none is refused for it.
    """
    if study is None or n is None or study.delta <= 0.1 / n:
        return None
    text = f"study {study.name}: its delta {study.delta:g} is"
    if study.delta >= 1.0 / n:
        return f"{text} 1/n = {1.0 / n:.3g} or more, so its epsilon says little of these records"
    return f"{text} above 1/(10 n) = {0.1 / n:.3g}: a smaller delta is usual, and a study's is fixed when it begins"


def check_study(study: Study | None, plan: Plan, run: str = "") -> str | None:
    """Return what the study would have spent with this plan, in words; None without one.

    Raises:
        BudgetTooSmall: if that passes its total; nothing has been entered.
    """
    if study is None:
        return None
    if not plan.private:
        raise UsageError(f"privacy.study={study.name}: privacy=off costs more than any total; leave the study out")
    return f"study {study.name}: with this run {say_total(study.check(plan.event, run=run, **study_entry(plan)), study)}"


def first_total(
    privacy: PrivacySpec | OffSpec | PurePrivacySpec, plan: Plan, n: int | None
) -> tuple[str | None, str] | None:
    """Return a warning of the delta of a study that is not begun, and what it would have spent with this plan.

    Returns:
        None without the total of the study.

    Raises:
        BudgetTooSmall, UsageError: as `check_study` and `study_of`; the study is still not begun.
    """
    if None in (privacy.study_epsilon, privacy.study_delta):
        return None
    # A study is a file: this one, of the same total, is gone at once.
    with tempfile.TemporaryDirectory() as place:
        study = study_of(privacy.model_copy(update={"study_folder": place}), n)
        return study_delta_warning(study, n), check_study(study, plan)


def spent_so_far(study: Study | None) -> str | None:
    """Return what the runs of a study have spent, in words; None without one."""
    return None if study is None else f"study {study.name}: spent so far: {say_total(study.total, study)}"


def say_total(total: Total, study: Study) -> str:
    """Return a total in words."""
    how = "replaced" if total.relation == REPLACE_ONE else "added or removed"
    runs = say_count(total.runs, "run")
    return f"epsilon {round_up(total.epsilon):g} of {study.epsilon:g} at delta {study.delta:g}, one record {how} ({runs})"
