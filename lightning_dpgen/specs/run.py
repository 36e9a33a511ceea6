"""The settings of a command: groups of settings, and what belongs to none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.declarations import as_text
from lightning_dpgen.release.publishing.licenses import License
from lightning_dpgen.release.unit_check import promises_records
from lightning_dpgen.specs.compose import compose_settings
from lightning_dpgen.specs.config_files import GROUPS
from lightning_dpgen.specs.data import AnyData, CustomDataSpec, DataSpec, PublicTableSpec, TableSpec
from lightning_dpgen.specs.groups import ComputeSpec, DebugSpec, ProjectSpec, SplitSpec, TrainerSpec
from lightning_dpgen.specs.model import AutoSpec, ModelSpec
from lightning_dpgen.specs.network import TrainedSpec
from lightning_dpgen.specs.plain_words import names_a_model
from lightning_dpgen.specs.privacy import (
    SMALLEST_DELTA,
    AnyPrivacy,
    AutoRuleSpec,
    ClippingSpec,
    OffSpec,
    check_budget,
    default_delta,
)
from lightning_dpgen.specs.spec import Place, Spec, check_needed, declared_settings, parse, setting, variants
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of, refuse_interpolations, takes_back


class RunSpec(Spec):
    """The settings of a training."""

    data: AnyData
    model: ModelSpec
    clipping: ClippingSpec
    privacy: AnyPrivacy
    split: SplitSpec
    trainer: TrainerSpec
    compute: ComputeSpec
    debug: DebugSpec = DebugSpec()
    run_dir: Place | None = setting("the folder of the run", by_default="runs/<date>_<time>")
    seed: int = setting("public: initial weights, features, the synthetic records", 0, ge=0, lt=2**62)
    rows: int | None = setting("synthetic records to release", ge=0, le=10**9, by_default="data.n, at most 5,000,000")
    license: License | None = setting(
        "the licence that the publisher puts the release under; it stands in certificate and card",
        by_default="none is stated",
    )

    @property
    def protects_persons(self) -> bool:
        """True where the unit is a person with all records, and no setting gives it another name."""
        return self.data.protects_persons and self.privacy.unit is None

    def with_privacy(self, **values: Any) -> RunSpec:
        """Return the settings with another budget."""
        return self.changed(privacy=self.privacy.changed(**values))


class NoNumber(UsageError):
    """No number of records is declared, nor bought.

    Args:
        data: the settings of the records, of which all else may be looked at first.
    """

    def __init__(self, data: DataSpec) -> None:
        super().__init__(
            "data.n: must be given, as in data.n=5000: the public number of records, known from elsewhere and not counted "
            "in the file; or data.n=null data.n_share=0.01 buys a noisy count from a share of the budget"
        )
        self.data = data


class AuditOptions(Spec):
    """The settings of an audit of a training, on made-up records."""

    canaries: int = setting(
        ("the number of made-up records; in training a coin decides whether each takes part"), 1000, ge=20, le=10**5
    )
    draws: int = setting(
        ("the number of draws of each mechanism or run, with a record and without it"), 2000, ge=100, le=10**7
    )
    confidence: float = setting("the confidence of all bounds together", 0.99, ge=0.5, lt=1)
    spend: bool = setting(
        ("whether records of the data take part in training; they must be public, or of people who do not object"), False
    )


class AuditSpec(RunSpec):
    """The settings of an audit."""

    audit: AuditOptions = AuditOptions()

    @property
    def attacks_runs(self) -> bool:
        """True where whole runs of measurements are attacked, as `dpgen train` would make them."""
        return not isinstance(self.model, TrainedSpec | AutoSpec)


def load_settings(
    words: Sequence[str], kind: type[RunSpec] = RunSpec, *, given: Mapping[str, Any] | None = None
) -> RunSpec:
    """Return the settings that the words of a command line ask for; each value is within its range.

    Args:
        words: as in ``["data=mnist", "privacy.epsilon=2"]``.
        given: values by name that are no words.
    """
    return with_default_bins(load_settings_without_slow_defaults(words, kind, given=given))


def load_settings_without_slow_defaults(
    words: Sequence[str], kind: type[RunSpec] = RunSpec, *, given: Mapping[str, Any] | None = None
) -> RunSpec:
    """Return the settings without the default that takes a while to import (`with_default_bins`)."""
    _check_taken_back(words, kind)
    values, named = compose_run(words, kind), {name_of(word) for word in words}
    for name, value in (given or {}).items():
        group, _, last = name.partition(".")
        values[group][last] = value
    try:
        spec = parse(kind, values)
    except UsageError as error:
        of_model = str(error).startswith("there is no setting 'model.") and "did you mean model." not in str(error)
        if named & {"model", "experiment"} or not of_model:
            raise
        model = values["model"]["name"]
        raise UsageError(
            f"{error} (without a model=NAME beside it a setting of a model is one of model={model}: name the model, as in "
            "model=measured; model=auto takes no settings)"
        ) from None
    check_needed(spec.data, "data")
    check_needed(spec.model, "model")
    if isinstance(spec.clipping, AutoRuleSpec) and not isinstance(spec.model, AutoSpec):
        rules = ", ".join(rule for rule in variants(RunSpec, "clipping") if rule != spec.clipping.rule)
        raise UsageError(f"clipping=auto: works only with model=auto; expected one of {rules} with model={spec.model.name}")
    if isinstance(spec, AuditSpec) and not spec.audit.spend and not spec.attacks_runs:
        # Half of the canaries is the number of records, unless the records take part.
        spec = spec.changed(data=spec.data.changed(n=max(spec.audit.canaries // 2, 1), n_share=None))
    if spec.data.n is None and "n" not in spec.data.model_fields_set and spec.data.n_share is None:
        raise NoNumber(spec.data)
    if spec.privacy.delta is None:
        spec = spec.with_privacy(delta=default_delta(spec.data.n))
    _check_seed(spec)
    return spec


def compose_run(words: Sequence[str], kind: type[RunSpec] = RunSpec) -> dict[str, Any]:
    """Return the settings of a run as files and words compose them: of `model=auto` where no word names a model."""
    values = _compose(words, kind)
    data = variants(RunSpec, "data").get((values.get("data") or {}).get("source"))
    if kind is RunSpec and data is not None and data.chooses_model and not names_a_model(words):
        return _compose([*words, "model=auto"], kind)
    return values


def with_default_bins(spec: RunSpec) -> RunSpec:
    """Return settings with the share of the budget for bins that follows from the others, where it is left open."""
    if not _takes_default_bins(spec):
        return spec
    # It imports scipy, which no mistake in a setting waits for.
    from lightning_dpgen.specs.defaults import default_bins_share

    share = default_bins_share(spec.data.n, spec.privacy.epsilon, spec.privacy.delta, spec.data.most_rows)
    return spec.changed(data=spec.data.changed(bins_share=share))


def _takes_default_bins(spec: RunSpec) -> bool:
    """Return True if how columns of numbers are distributed is bought without being asked for.

    Nothing is bought in an audit of a network, whose records are made up; in each trial of a selection; for a network whose
    bins are those of another one; or where the budget follows from noise and steps.
    """
    data, privacy = spec.data, spec.privacy
    if not isinstance(data, TableSpec | PublicTableSpec | CustomDataSpec):
        return False
    if isinstance(spec, AuditSpec) and not spec.attacks_runs:
        return False
    if data.bins_share is not None:
        return False
    paid = privacy.epsilon is not None or not privacy.private
    return paid and privacy.selection is None and getattr(spec.model, "init", None) is None


def load_audit_settings(words: Sequence[str]) -> AuditSpec:
    """Return the settings of an audit, which says itself how many records there are, and keeps no folder.

    Raises:
        UsageError: as `load_settings`, and for a setting that would be passed over.
    """
    spec = load_settings(words, AuditSpec)
    named = {name_of(word) for word in words}
    if "run_dir" in named:
        raise UsageError(f"run_dir={spec.run_dir}: an audit keeps nothing; leave it out")
    if spec.attacks_runs and spec.audit.spend:
        raise UsageError("audit.spend=true: a run of measurements is attacked at made-up records alone; leave it out")
    for name in () if spec.audit.spend or spec.attacks_runs else sorted(named & {"data.n", "data.n_share"}):
        if isinstance(spec.model, AutoSpec):
            raise UsageError(
                f"{name}: an audit has to know the model before it knows the records: add model=measured for what "
                "model=auto takes nearly always, or name a network and leave this out"
            )
        raise UsageError(
            f"{name}: half of audit.canaries is the number of records in an audit of a network, unless audit.spend=true "
            "lets records take part; leave it out"
        )
    return spec


def _compose(words: Sequence[str], kind: type[RunSpec | ProjectSpec]) -> dict[str, Any]:
    """Return the configuration of a command, unless its records are those of another one."""
    projects = kind is ProjectSpec
    refuse_interpolations(words)
    for word in words:
        group = name_of(word).partition(".")[0]
        if projects and group in RunSpec.model_fields and group not in ProjectSpec.model_fields:
            raise UsageError(
                f"{word}: is for dpgen train; dpgen project has no {group} (docs/reference/settings.md lists what it has)"
            )
    values = compose_settings(words, "project" if projects else "config")
    source = values["data"].get("source") if isinstance(values.get("data"), dict) else None
    if source in [*variants(RunSpec if projects else ProjectSpec, "data")]:
        command, expected = "dpgen train" if projects else "dpgen project", ", ".join(variants(kind, "data"))
        raise UsageError(f"data={source}: is for {command}; expected one of {expected}")
    return values


def _check_taken_back(words: Sequence[str], kind: type[Spec]) -> None:
    """Refuse ~NAME for what is no setting, and no group."""
    known = declared_settings(kind)
    for word in words:
        if takes_back(word) and "=" not in word and (name := name_of(word)) not in known:
            if name.partition(".")[0] == name and name in (*GROUPS, *kind.model_fields):
                continue
            raise UsageError(f"{word}: there is no setting {name!r}{suggest(name, known, '~{}', shortened=True)}")


def _check_seed(spec: RunSpec | ProjectSpec) -> None:
    """Refuse a seed of the noise where it would stand beside a promise of privacy."""
    seed, study = spec.debug.private_seed, spec.privacy.study
    if seed is None:
        return
    if spec.privacy.noise == "secure":
        raise UsageError(f"debug.private_seed={seed}: secure noise takes no seed; leave out one of the two")
    if study is not None:
        raise UsageError(
            f"debug.private_seed={seed}: a run whose noise can be removed costs more than the total of "
            f"privacy.study={study}; leave out one of the two"
        )


def load_data_settings(words: Sequence[str]) -> DataSpec:
    """Return the settings of records alone, for a release whose schema is known.

    Raises:
        UsageError: as `load_settings`, and for any setting that is not of the data.
    """
    for word in words:
        name = word.partition("=")[0].lstrip("+~")
        if name != "data" and not name.startswith("data.") and "=" in word:
            raise UsageError(f"{word}: expected settings of the data alone, as in data=table data.path=FILE")
    return parse(RunSpec, _compose(words, RunSpec)).data


def load_projection_settings(words: Sequence[str]) -> ProjectSpec:
    """Return the settings of a projection; see `load_settings`."""
    _check_taken_back(words, ProjectSpec)
    spec = parse(ProjectSpec, _compose(words, ProjectSpec))
    check_needed(spec.data, "data")
    if spec.privacy.delta is None:
        spec = spec.changed(privacy=spec.privacy.changed(delta=default_delta(spec.data.n)))
    privacy = spec.privacy
    if privacy.private:
        if privacy.unit is not None:
            raise UsageError("privacy.unit: the unit of a projection follows from project.unit; leave it out")
        check_budget(privacy.epsilon)
        if privacy.delta != 0.0 and not SMALLEST_DELTA <= privacy.delta < 1.0:
            raise UsageError(
                f"privacy.delta={privacy.delta}: expected 0, or a number from {SMALLEST_DELTA:g}, below 1, for Gaussian "
                "noise"
            )
    _check_seed(spec)
    return spec


def check_privacy(spec: RunSpec) -> None:
    """Check the budget, and noise and steps beside it, for a declared number of records or before one is bought."""
    privacy, data = spec.privacy, spec.data
    if privacy.unit is not None and data.column_of_persons is not None:
        raise UsageError(
            f"privacy.unit={privacy.unit}: data.person={data.column_of_persons} says whose presence is protected; "
            "leave out one of the two"
        )
    if privacy.unit is not None and promises_records(privacy.unit):
        raise UsageError(
            f"privacy.unit={privacy.unit}: nothing bounds the records of a person; expected data.person and data.max_rows "
            "in its place, which do, and from which a unit of several records follows; or one thing, as in 'one household'"
        )
    if isinstance(privacy, OffSpec):
        pass
    elif privacy.epsilon is None:
        if getattr(spec.model, "noise", None) is None or spec.model.steps is None:
            raise UsageError(
                "privacy.epsilon=null: expected a positive number, or both model.noise and model.steps, from which epsilon "
                "follows, or privacy=off"
            )
    else:
        check_budget(privacy.epsilon)
    if privacy.private and data.n and privacy.delta >= 1.0 / data.n:
        raise UsageError(
            f"privacy.delta={privacy.delta:g}: expected less than 1/n = {1.0 / data.n:.3g} for data.n={data.n}, "
            "since publishing one record at random would satisfy a delta of 1/n"
        )
    if (noise := getattr(spec.model, "noise", None)) is None:
        return
    if not privacy.private:
        raise UsageError(f"model.noise={noise:g}: privacy=off draws no noise")
    if privacy.epsilon is not None and spec.model.steps is not None:
        raise UsageError(
            f"privacy.epsilon={as_text(privacy.epsilon)}, model.noise={noise:g}, model.steps={spec.model.steps}: give "
            "two of them, and the third is solved for (privacy.epsilon=null leaves it open)"
        )
