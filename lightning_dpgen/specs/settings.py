"""From settings to a checked run: every default filled in, every value checked against the records' description."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, discovery_stage, keys_of
from lightning_dpgen.data.discovery.value_grid import VALUES_OF
from lightning_dpgen.data.schema import Schema, kind_of
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.description import BOUNDS, KEYS, VALUES
from lightning_dpgen.data.tables.search import Part
from lightning_dpgen.gradients.clipping import ClippingRule
from lightning_dpgen.measure.labels import label_workload
from lightning_dpgen.measure.recipe import Recipe
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.metrics.fidelity import fidelity_stage
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.accounting.epsilon_range import PLD
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.planning.calibration import StageSpec, make_first_plan, make_plan, make_rest
from lightning_dpgen.release.bounds import check_columns, check_declared, check_rows, default_rows
from lightning_dpgen.release.certificate import INIT
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.release.unit_check import unit_of_persons
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.defaults import MOST_STEPS, Defaults, ranked, strength_of
from lightning_dpgen.specs.findable import check_findable
from lightning_dpgen.specs.groups import RaySpec
from lightning_dpgen.specs.measured import (
    check_sets,
    complete_label,
    complete_measured,
    label_specs,
    make_recipe,
    measured_specs,
    read_sets,
)
from lightning_dpgen.specs.model import AutoSpec, CustomSpec, MeasuredSpec, WGANSpec
from lightning_dpgen.specs.modules import check_custom, check_model, make_module, stage_of_training
from lightning_dpgen.specs.network import TrainedSpec, VAESpec
from lightning_dpgen.specs.privacy import AutoRuleSpec, DPNormSpec, make_rule
from lightning_dpgen.specs.run import RunSpec, check_privacy, read_run
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.spec import as_settings, completed
from lightning_dpgen.specs.starts import ENDING, InitialNetwork, check_records, read_centres, read_initial, take_sizes
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.plugins.mixture import PrivateMixture

# The stage that buys the number of records and what else is not declared.
FIRST_PASS = "first pass"
# For choosing sizes where epsilon is what follows from noise and steps.
_ASSUMED_EPSILON = 4.0
# Settings of the data that a run need not be asked for again: where something is, and when it stops before it begins. And
# those that a certificate does not show: these, and what its schema says. Records are told by their fingerprint. A limit
# that was raised until a run went on would tell what it had stopped for.
_NOT_KEPT = {"path", "url", "query", "schema_", "items", "memory_gib", "max_moved"}
_NOT_SHOWN = _NOT_KEPT | {"source", "n", "bins"}
# The setting of the data that neither says what a record is nor changes what a first pass buys.
_WORKLOAD = "workload"


@dataclass(frozen=True)
class Settings:
    """A checked run: the settings with every default filled in, and the typed parts made from them. Public.

    Args:
        spec: the settings.
        schema, split, clipping: of the records, the private split and the clipped gradients; no clipping where nothing is
            trained.
        unit: whose presence is protected, in words.
        parts: what of the description is found in the records, with noise, by name.
        centres: public records where the split starts, if it does.
        chosen: why the model was chosen, where it was.
        initial: the network that the training starts from, if it does not start from random weights.
    """

    spec: RunSpec
    schema: Schema
    split: SplitSettings
    clipping: ClippingRule | None
    unit: str
    parts: Mapping[str, Part] = field(default_factory=dict)
    centres: torch.Tensor | None = None
    chosen: str | None = None
    initial: InitialNetwork | None = None

    @property
    def n(self) -> int:
        """The number of records, declared or bought."""
        return self.spec.data.n

    @property
    def rows(self) -> int:
        """The number of synthetic records in the release."""
        return default_rows(self.n, self.schema.record_bytes) if self.spec.rows is None else self.spec.rows

    @property
    def trained(self) -> bool:
        """True for a network; False where statistics are measured and nothing is trained."""
        return isinstance(self.spec.model, TrainedSpec)

    @cached_property
    def recipe(self) -> Recipe:
        """The statistics that are measured, where nothing is trained."""
        spec = self.spec
        strength = strength_of(self.n, assumed_epsilon(spec), spec.privacy.delta, spec.data.most_rows)
        sets = spec.data.asked_sets or ()
        return make_recipe(spec.model, self.schema, n=self.n, seed=spec.seed, strength=strength, sets=sets)

    def module(self, account: Account, clipping: ClippingRule | None = None) -> PrivateMixture:
        """Return the module that is trained on an account, by the settings' clipping rule or another one.

        Raises:
            UsageError: if it is larger than a release may be.
        """
        module = make_module(self.spec, self.schema, clipping or self.clipping, account)
        if self.initial is not None:
            module.init_from(self.initial.mixture, public=self.initial.public)
        return module

    def plan(self, promise: Plan | None = None) -> Plan:
        """Return the plan of the run; reads no data.

        Args:
            promise: what was promised before the first pass, if there was one (`discover.first_plan`).

        Raises:
            BudgetTooSmall: if the budget does not buy what is asked for.
        """
        try:
            specs = self.specs()
            privacy, most = self.spec.privacy, self.spec.data.most_rows
            by = {"epsilon": privacy.target, "delta": privacy.delta, "accountant": privacy.accountant or PLD}
            plan = make_plan(specs, **by, max_rows=most) if promise is None else make_rest(promise, specs)
            for workload in self._workloads:
                workload.check_units(plan)
            return plan
        except ValueError as error:
            raise UsageError(str(error)) from None

    @property
    def _workloads(self) -> Sequence[Workload]:
        """The accesses that measure statistics: all of a recipe, or those of the label of a network."""
        if not self.trained:
            return self.recipe.workloads
        share = self.spec.model.label_share
        return [label_workload(self.n, share, agreement=False)] if share else []

    def specs(self) -> list[StageSpec]:
        """Return the stages of the run as they are asked for, in their order.

        Raises:
            UsageError: if their shares leave nothing.
        """
        first = [first_stage(self.spec, self.parts)] if has_first_pass(self.spec, self.parts) else []
        share = self.spec.privacy.fidelity_share
        last = [] if share is None else [fidelity_stage(self.schema.layout, self.n, share)]
        left = 1.0 - sum(spec.share for spec in [*first, *last])
        try:
            if self.clipping is None:
                learning = measured_specs(self.recipe, left)
            else:
                model = self.spec.model
                split = self.split.specs(self.n, means=model.bias != "zero")
                rest = left - sum(spec.share for spec in split)
                learning = [*split, stage_of_training(model, self.clipping, self.n), *label_specs(model, self.n, rest)]
        except ValueError as error:
            raise UsageError(as_settings(error, "split", self.spec.split)) from None
        return [*first, *learning, *last]

    def declared(self) -> dict[str, Any]:
        """Return everything that the certificate assumes to be public."""
        spec = self.spec
        model = spec.model.model_dump(exclude={"name", "options", "init", "init_public"})
        model |= getattr(spec.model, "options", None) or {}
        # The number of steps may be open, where it is solved for.
        always = ("steps", "noise") if self.trained else ()
        model = {name: value for name, value in model.items() if value is not None or name in always}
        chosen = {} if self.chosen is None else {"chosen": self.chosen}
        declared = {"data": spec.data.source, "n": self.n}
        unseen = _NOT_SHOWN if _share_of_values(spec, self.parts) else _NOT_SHOWN | {"bins_share"}
        declared |= {name: value for name, value in spec.data.given().items() if name not in unseen}
        if self.parts:
            named = {BOUNDS: bounds_of, KEYS: keys_of, VALUES: VALUES_OF.__add__}
            also = [VALUES_OF + name for name, part in self.parts.items() if part.column is not None]
            declared["discovered"] = [named[part.find](name) for name, part in self.parts.items()] + also
        if spec.privacy.fidelity_share is not None:
            declared["fidelity_share"] = spec.privacy.fidelity_share
        declared |= {"schema": self.schema.as_json(), "model": {"name": spec.model.title, **chosen, **model}}
        if self.initial is not None:
            declared[INIT] = self.initial.declared
        if self.trained:
            declared |= {"split": dataclasses.asdict(self.split), "clipping": _described(self.clipping)}
        return declared | {"seed": spec.seed, "rows": self.rows} | spec.given(LICENSE)

    def asked(self) -> dict[str, Any]:
        """Return what a run must be asked for again when it goes on."""
        privacy = self.spec.privacy
        named = {} if privacy.accountant in (None, PLD) else {"accountant": privacy.accountant}
        budget = {"epsilon": privacy.epsilon, "delta": privacy.delta, "study": privacy.study, "unit": self.unit}
        return self.declared() | {"privacy": budget | named, "debug": {"private_seed": self.spec.debug.private_seed}}


def read_as(spec: RunSpec, source: Source) -> dict[str, Any]:
    """Return all that decides what a record is, and what is bought before the rest can be planned."""
    data, privacy = spec.data.given(), spec.privacy
    return {
        "data": {name: value for name, value in data.items() if name not in {*_NOT_KEPT, _WORKLOAD}},
        "schema": source.description,
        "privacy": {name: getattr(privacy, name) for name in ("epsilon", "delta", "noise", "unit", "study")},
    }


def read_settings(words: Sequence[str]) -> Settings:
    """Compose and check the settings of a run with a declared number of records.

    Raises:
        UsageError: naming the argument, its value and what was expected.
    """
    return settle_declared(read_run(words))


def settle_declared(spec: RunSpec) -> Settings:
    """Check the settings of a run with a declared number of records.

    Raises:
        UsageError: naming the argument, its value and what was expected.
    """
    if spec.data.n is None:
        raise UsageError("data.n=null: the number of records is bought by dpgen train; declare one here, as in data.n=5000")
    return fill(spec, source_of(spec.data))


def default_unit(source: Source) -> str:
    """Return whose presence is protected, in words, where no setting says it."""
    data = source.spec
    return f"one {source.record} of the data set" if data.column_of_persons is None else unit_of_persons(data.most_rows)


def has_first_pass(spec: RunSpec, parts: Mapping[str, Part]) -> bool:
    """Return True where something is bought before the rest is planned."""
    return spec.data.n_share is not None or bool(parts)


def _share_of_values(spec: RunSpec, parts: Mapping[str, Part]) -> float:
    """Return the share of the budget for distributions of columns, where there are any to find."""
    return (spec.data.share_of_values or 0.0) if any(part.levels for part in parts.values()) else 0.0


def first_stage(spec: RunSpec, parts: Mapping[str, Part]) -> StageSpec:
    """Return the access that buys what is not declared: one pass, with its share of the budget's mu^2.

    Raises:
        UsageError: if it cannot be bought.
        BudgetTooSmall: if it would find nothing.
    """
    data, privacy = spec.data, spec.privacy
    shares = {
        "n_share": (data.n_share, data.n is None, "a noisy count of the records"),
        "discovery_share": (
            data.share_of_discovery,
            any(part.find != VALUES for part in parts.values()),
            "what is found privately",
        ),
    }
    for name, (share, needed, use) in shares.items():
        if needed and share is None:
            missing = "data.n=null" if name == "n_share" else "not all is declared"
            raise UsageError(
                f"{missing}: declare it, or give the share of the budget that {use} may use, as in data.{name}=0.01"
            )
    if privacy.private and privacy.epsilon is None:
        raise UsageError(
            "privacy.epsilon=null: what is not declared is bought with a share of it, so it must be given then"
        )
    stage = discovery_stage(
        epsilon=privacy.target,
        delta=privacy.delta,
        share=data.share_of_discovery or 0.0,
        count_share=data.n_share or 0.0,
        bounds={name: part.most for name, part in parts.items() if part.find == BOUNDS},
        keys={name: part.most for name, part in parts.items() if part.find == KEYS},
        values={name: part.levels for name, part in parts.items() if part.levels},
        values_share=_share_of_values(spec, parts),
    )
    if stage.noise is not None:
        check_findable(data, parts, stage.access(stage.noise))
    return dataclasses.replace(stage, stage=FIRST_PASS)


def reference_plan(spec: RunSpec, stage: StageSpec) -> Plan:
    """Return the plan of a first pass, and of a reference below which the rest is planned from what it finds.

    Raises:
        BudgetTooSmall: if the first pass leaves nothing.
    """
    model, privacy = spec.model, spec.privacy
    steps = None
    if getattr(model, "noise", None) is None:
        steps = getattr(model, "steps", None) or MOST_STEPS
    return make_first_plan(
        stage,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        max_rows=spec.data.most_rows,
        # Where nothing is trained, full passes alone follow.
        sampled=0 if isinstance(model, MeasuredSpec) else steps,
    )


def make_schema(
    spec: RunSpec, source: Source, found: Mapping[str, Any] | None = None, initial: InitialNetwork | None = None
) -> Schema:
    """Return the description of a record, as it is declared and as a first pass has found it.

    Args:
        initial: the network that the training starts from, whose bins stand for those that are left open.

    Raises:
        UsageError: if it describes none.
    """
    source.check()
    try:
        schema = source.declare(dict(found) if found else None)
    except (BadSchema, BadRecords) as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        said = as_settings(error, "data", spec.data)
        raise UsageError(said if said.startswith("data.") else f"data.{said}") from None
    return kind_of(schema).complete_schema(schema, spec, source, found, initial)


def fill(spec: RunSpec, source: Source, found: Mapping[str, Any] | None = None) -> Settings:
    """Return the run that settings ask for: open ones filled in, and all checked against what is declared of the records.

    Args:
        found: what a first pass has found, by name.

    Raises:
        UsageError: naming the setting, its value and what was expected.
    """
    check_privacy(spec)
    initial = read_initial(spec)
    schema = make_schema(spec, source, found, initial)
    if initial is not None:
        check_records(spec, initial, schema, source.open_parts)
        spec = take_sizes(spec, initial)
    spec = _with_sets(spec, schema)
    if isinstance(spec.model, AutoSpec):
        return _choose(spec, source, schema, found)
    spec, defaults = _complete(spec, schema, source.open_parts)
    model, data = spec.model, spec.data
    if isinstance(model, TrainedSpec):
        check_model(model, schema, data.n, data.source)
    elif spec.clipping != DPNormSpec():
        raise _clips_nothing(spec.clipping.rule, model.name)
    check_counted(spec)
    _check_trainer(spec)
    split, centres = _split(spec, schema)
    clipping = None
    if isinstance(model, TrainedSpec):
        if spec.clipping.per_person and data.most_rows == 1:
            raise UsageError(
                "clipping.per_person=true: every person has one record here; expected data.person, and data.max_rows above "
                "1, or leave it out"
            )
        clipping = make_rule(completed(spec.clipping, defaults), model.steps, getattr(model, "critic_steps", 1))
    unit = spec.privacy.unit or default_unit(source)
    settings = Settings(spec, schema, split, clipping, unit, source.open_parts, centres, initial=initial)
    try:
        check_declared(settings.declared())
    except ValueError as error:
        raise UsageError(f"data: {error}") from None
    try:
        check_columns(schema.layout.units)
        check_rows(settings.rows, schema.record_bytes)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return settings


def _with_sets(spec: RunSpec, schema: Schema) -> RunSpec:
    """Return the settings with the sets of columns that are asked for in place of their file, all of them checked."""
    if spec.data.asked_sets is None:
        return spec
    spec = spec.changed(data=spec.data.changed(**{_WORKLOAD: read_sets(spec.data.asked_sets)}))
    check_workload(spec, schema)
    return spec


def check_workload(spec: RunSpec, schema: Schema) -> None:
    """Refuse sets of columns of which no table of counts can be measured (`specs.workload.check_sets`)."""
    data = spec.data
    if data.asked_sets is not None:
        budget = {"epsilon": assumed_epsilon(spec), "delta": spec.privacy.delta, "max_rows": data.most_rows}
        check_sets(data.asked_sets, schema, n=data.n, **budget)


def check_counted(spec: RunSpec) -> None:
    """Refuse sets of columns for a model that measures no tables of counts.

    Raises:
        UsageError: naming the model.
    """
    if spec.data.asked_sets is not None and not isinstance(spec.model, MeasuredSpec):
        raise UsageError(
            f"data.workload: model={spec.model.name} measures no tables of counts; take model=measured, or leave it out"
        )


def _described(rule: ClippingRule) -> dict[str, Any]:
    """Return a rule, and those that it wraps, as they are declared in the certificate."""
    values = {each.name: getattr(rule, each.name) for each in dataclasses.fields(rule)}
    inner = {name: _described(value) for name, value in values.items() if isinstance(value, ClippingRule)}
    return {"rule": type(rule).__name__, **values, **inner}


def _clips_nothing(rule: str, model: str) -> UsageError:
    return UsageError(f"clipping={rule}: model={model} clips no gradient; leave settings of clipping out")


def _complete(spec: RunSpec, schema: Schema, parts: Mapping[str, Part]) -> tuple[RunSpec, Defaults]:
    """Return the settings with what was left open filled in, and the defaults that this was done by."""
    data, model, split = spec.data, spec.model, spec.split
    measured = isinstance(model, MeasuredSpec)
    budget = (assumed_epsilon(spec), spec.privacy.delta, data.most_rows)
    if measured:
        if split.k not in (None, 1):
            own = kind_of(schema).components
            of_label = " of a label" if own == "model.cells" and schema.layout.label is not None else ""
            raise UsageError(
                f"split.k={split.k}: model={model.name} does not split records; {own} says how many components{of_label} "
                "are fitted to what is measured"
            )
        split = split.changed(k=1)
    defaults = Defaults(data.n, schema.layout, *budget, clusters=split.k)
    given = split
    split = completed(split, defaults)
    # Default shares are those of what is left when other things are bought.
    bought = (data.n_share, data.share_of_discovery, _share_of_values(spec, parts), spec.privacy.fidelity_share)
    left = 1.0 - sum(share or 0.0 for share in bought)
    for name in ("moments_share", "lloyd_share", "means_share"):
        own = getattr(given, name)
        if measured:
            if own is not None:
                raise UsageError(f"split.{name}={own:g}: model={model.name} does not split records; leave it out")
            split = split.changed(**{name: None})
        elif own is None:
            split = split.changed(**{name: getattr(split, name) * left})
    if measured:
        model = complete_measured(model, schema, defaults)
    else:
        if isinstance(model, CustomSpec):
            check_custom(model)
        model = complete_label(model, schema)
        solved = ["steps"] if model.noise is not None and spec.privacy.epsilon is not None else []
        if isinstance(model, VAESpec) and model.network != "dense":
            solved.append("hidden")
        given_steps, model = model.steps, completed(model, defaults, leave=solved)
        rhythm = getattr(model, "critic_steps", 1)
        if given_steps is None and model.steps is not None:
            model = model.changed(steps=max(model.steps - model.steps % rhythm, rhythm))
        if isinstance(model, VAESpec):
            clipping = completed(spec.clipping, defaults)
            bound = clipping.c_max if isinstance(clipping, DPNormSpec) else clipping.c
            reach = 1 if clipping.per_person else data.most_rows
            model = model.with_codes(reach * bound, max(model.rate * data.n, 1.0))
        if isinstance(model, WGANSpec):
            model = model.with_loss(schema.layout)
    return spec.changed(model=model, split=split), defaults


def _split(spec: RunSpec, schema: Schema) -> tuple[SplitSettings, torch.Tensor | None]:
    """Return the settings of the split, and the public records that it starts from, if it does."""
    asked = spec.split.model_dump(exclude={"memory_gib"})
    if is_file := asked["start"].endswith(ENDING):
        asked["start"] = "public"
    elif asked["start"] not in ("mean", "random"):
        raise UsageError(f"split.start={asked['start']}: expected mean, random, or a FILE{ENDING} of public records")
    try:
        asked = {name: value for name, value in asked.items() if value is not None or not name.endswith("_share")}
        split = SplitSettings(**asked).for_layout(schema.layout)
    except ValueError as error:
        raise UsageError(as_settings(error, "split", spec.split)) from None
    return split, read_centres(spec.split.start, split.k, schema.layout.width) if is_file else None


def _check_trainer(spec: RunSpec) -> None:
    trainer, gpu = spec.trainer, torch.cuda.is_available()
    mps = torch.backends.mps.is_available()
    available = {"auto": True, "cpu": True, "gpu": gpu or mps, "cuda": gpu, "mps": mps}
    # A cluster has GPUs of its own, which are asked for where it is connected.
    if not isinstance(spec.compute, RaySpec) and not available.get(trainer.accelerator):
        usable = ", ".join(name for name, there in available.items() if there)
        raise UsageError(f"trainer.accelerator={trainer.accelerator}: expected one that this machine has ({usable})")
    model = spec.model
    if trainer.micro_batch is not None and isinstance(model, VAESpec) and model.divergence and model.released_as == "group":
        raise UsageError(
            f"trainer.micro_batch={trainer.micro_batch}: model.divergence={model.divergence}, which is released by group, "
            "reaches over all parts of a lot; leave one of the two out"
        )
    ranks, groups = trainer.devices * trainer.num_nodes, getattr(model, "groups", None) or 0
    if ranks > 0 and groups % ranks:
        raise UsageError(f"model.groups={groups}: {ranks} devices share them; expected a multiple of {ranks}")


def _choose(spec: RunSpec, source: Source, schema: Schema, found: Mapping[str, Any] | None) -> Settings:
    """Return the run of the best model that records and settings allow."""
    passed_over, mistakes = "", set()
    strength = strength_of(spec.data.n, assumed_epsilon(spec), spec.privacy.delta, spec.data.most_rows)
    for choice in ranked(schema, strength):
        own = read_run([f"model={choice.name}"])
        # A rule that was left open is that of the model.
        open_rule = isinstance(spec.clipping, AutoRuleSpec)
        try:
            if not open_rule and not isinstance(own.model, TrainedSpec):
                raise _clips_nothing(spec.clipping.rule, choice.name)
            clipping = own.clipping if open_rule else spec.clipping
            settings = fill(spec.changed(model=own.model, clipping=clipping), source, found)
            return dataclasses.replace(settings, chosen=choice.why + passed_over)
        except UsageError as mistake:
            passed_over += f"; {choice.name} was passed over: {mistake}"
            mistakes.add(str(mistake))
    if len(mistakes) == 1:
        # It has nothing to do with the model.
        raise UsageError(mistakes.pop())
    raise UsageError(f"model=auto: no model is left{passed_over}")


def assumed_epsilon(spec: RunSpec) -> float | None:
    """Return the budget from which sizes are chosen; None for none."""
    return spec.privacy.epsilon or _ASSUMED_EPSILON if spec.privacy.private else None
