"""From settings to a checked run: every default filled in, every value checked against the records' description."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.discovery.bounds_and_keys import bounds_of, keys_of
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
from lightning_dpgen.privacy.planning.calibration import StageSpec, make_plan, make_rest
from lightning_dpgen.release.bounds import check_columns, check_declared, check_rows, default_rows
from lightning_dpgen.release.certificate import INIT
from lightning_dpgen.release.publishing.licenses import LICENSE
from lightning_dpgen.release.unit_check import unit_of_persons
from lightning_dpgen.sampling.errors import BadRecords
from lightning_dpgen.specs.defaults import Defaults, rank_models, strength_of
from lightning_dpgen.specs.first_pass import first_stage, has_first_pass, share_for_values
from lightning_dpgen.specs.groups import RaySpec, SplitSpec
from lightning_dpgen.specs.measured import (
    check_sets,
    complete_label,
    complete_measured,
    label_specs,
    make_recipe,
    measured_specs,
    read_sets,
)
from lightning_dpgen.specs.model import AutoregressiveSpec, AutoSpec, CustomSpec, MeasuredSpec, WGANSpec
from lightning_dpgen.specs.modules import check_custom, check_model, make_module, stage_of_training
from lightning_dpgen.specs.network import TrainedSpec, VAESpec
from lightning_dpgen.specs.privacy import AutoRuleSpec, DPNormSpec, make_rule
from lightning_dpgen.specs.run import RunSpec, check_privacy, load_settings
from lightning_dpgen.specs.source import Source, source_of
from lightning_dpgen.specs.spec import as_settings, with_defaults
from lightning_dpgen.specs.starts import ENDING, InitialNetwork, check_records, read_centres, read_initial, take_sizes
from lightning_dpgen.specs.usage_error import UsageError

if TYPE_CHECKING:
    from lightning_dpgen.plugins.mixture import PrivateMixture

# For choosing sizes where epsilon is what follows from noise and steps.
_ASSUMED_EPSILON = 4.0
# Settings of the data that a run need not be asked for again: where something is, and when it stops before it begins. And
# those that a certificate does not show: these, and what its schema says. A fingerprint identifies the records.
# A limit that was raised until a run went on would tell what it had stopped for.
_NOT_KEPT = {"path", "url", "query", "schema_", "items", "memory_gib", "max_moved"}
_NOT_SHOWN = _NOT_KEPT | {"source", "n", "bins"}
# The setting of the data that neither says what a record is nor changes what a first pass buys.
_WORKLOAD = "workload"
# The largest default share of means for a network of histories.
_MEANS_OF_HISTORIES = 0.15
_SPLIT_SHARES = ("moments_share", "lloyd_share", "means_share")


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
        choice_reason: why the model was chosen, where it was.
        initial: the network that the training starts from, if it does not start from random weights.
    """

    spec: RunSpec
    schema: Schema
    split: SplitSettings
    clipping: ClippingRule | None
    unit: str
    parts: Mapping[str, Part] = field(default_factory=dict)
    centres: torch.Tensor | None = None
    choice_reason: str | None = None
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
    def trains_network(self) -> bool:
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
            promise: what was promised before the first pass, if there was one (`discover.plan_first_pass`).

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
        if not self.trains_network:
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
        remaining_share = 1.0 - sum(spec.share for spec in [*first, *last])
        try:
            if self.clipping is None:
                learning = measured_specs(self.recipe, remaining_share)
            else:
                model = self.spec.model
                split = self.split.specs(self.n, means=model.bias != "zero")
                rest = remaining_share - sum(spec.share for spec in split)
                learning = [*split, stage_of_training(model, self.clipping, self.n), *label_specs(model, self.n, rest)]
        except ValueError as error:
            raise UsageError(as_settings(error, "split", self.spec.split)) from None
        return [*first, *learning, *last]

    def dump_public(self) -> dict[str, Any]:
        """Return everything that the certificate assumes to be public."""
        spec = self.spec
        model = spec.model.model_dump(exclude={"name", "options", "init", "init_public"})
        model |= getattr(spec.model, "options", None) or {}
        # The number of steps may be open, where it is solved for.
        always = ("steps", "noise") if self.trains_network else ()
        model = {name: value for name, value in model.items() if value is not None or name in always}
        chosen = {} if self.choice_reason is None else {"chosen": self.choice_reason}
        declared = {"data": spec.data.source, "n": self.n}
        unseen = _NOT_SHOWN if share_for_values(spec, self.parts) else _NOT_SHOWN | {"bins_share"}
        declared |= {name: value for name, value in spec.data.given().items() if name not in unseen}
        if self.parts:
            named = {BOUNDS: bounds_of, KEYS: keys_of, VALUES: VALUES_OF.__add__}
            also = [VALUES_OF + name for name, part in self.parts.items() if part.column is not None]
            declared["discovered"] = [named[part.find](name) for name, part in self.parts.items()] + also
        if spec.privacy.fidelity_share is not None:
            declared["fidelity_share"] = spec.privacy.fidelity_share
        declared |= {"schema": self.schema.as_json(), "model": {"name": spec.model.title, **chosen, **model}}
        if self.initial is not None:
            declared[INIT] = self.initial.declaration
        if self.trains_network:
            declared |= {"split": dataclasses.asdict(self.split), "clipping": _describe(self.clipping)}
        return declared | {"seed": spec.seed, "rows": self.rows} | spec.given(LICENSE)

    def dump_for_resume(self) -> dict[str, Any]:
        """Return what a run must be asked for again when it goes on."""
        privacy = self.spec.privacy
        named = {} if privacy.accountant in (None, PLD) else {"accountant": privacy.accountant}
        budget = {"epsilon": privacy.epsilon, "delta": privacy.delta, "study": privacy.study, "unit": self.unit}
        return self.dump_public() | {"privacy": budget | named, "debug": {"private_seed": self.spec.debug.private_seed}}


def describe_reading(spec: RunSpec, source: Source) -> dict[str, Any]:
    """Return all that decides what a record is, and what is bought before the rest can be planned."""
    data, privacy = spec.data.given(), spec.privacy
    return {
        "data": {name: value for name, value in data.items() if name not in {*_NOT_KEPT, _WORKLOAD}},
        "schema": source.description,
        "privacy": {name: getattr(privacy, name) for name in ("epsilon", "delta", "noise", "unit", "study")},
    }


def load_complete_settings(words: Sequence[str]) -> Settings:
    """Compose and check the settings of a run with a declared number of records."""
    return complete_declared_settings(load_settings(words))


def complete_declared_settings(spec: RunSpec) -> Settings:
    """Check the settings of a run with a declared number of records."""
    if spec.data.n is None:
        raise UsageError("data.n=null: the number of records is bought by dpgen train; declare one here, as in data.n=5000")
    return complete_settings(spec, source_of(spec.data))


def default_unit(source: Source) -> str:
    """Return whose presence is protected, in words, where no setting says it."""
    data = source.spec
    return f"one {source.record} of the data set" if data.column_of_persons is None else unit_of_persons(data.most_rows)


def make_schema(
    spec: RunSpec, source: Source, discovery: Mapping[str, Any] | None = None, initial: InitialNetwork | None = None
) -> Schema:
    """Return the description of a record, as it is declared and as a first pass has found it.

    Args:
        discovery: what a first pass has found, by name.
        initial: the network that the training starts from, whose bins stand for those that are left open.

    Raises:
        UsageError: if it describes none.
    """
    source.check()
    try:
        schema = source.declare(dict(discovery) if discovery else None)
    except (BadSchema, BadRecords) as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        text = as_settings(error, "data", spec.data)
        raise UsageError(text if text.startswith("data.") else f"data.{text}") from None
    return kind_of(schema).complete_schema(schema, spec, source, discovery, initial)


def complete_settings(spec: RunSpec, source: Source, discovery: Mapping[str, Any] | None = None) -> Settings:
    """Return the run that settings ask for: open ones filled in, and all checked against what is declared of the records.

    Args:
        discovery: what a first pass has found, by name.
    """
    check_privacy(spec)
    initial = read_initial(spec)
    schema = make_schema(spec, source, discovery, initial)
    if initial is not None:
        check_records(spec, initial, schema, source.open_parts)
        spec = take_sizes(spec, initial)
    spec = _with_sets(spec, schema)
    if isinstance(spec.model, AutoSpec):
        return _choose(spec, source, schema, discovery)
    spec, defaults = _complete(spec, schema, source.open_parts)
    model, data = spec.model, spec.data
    if isinstance(model, TrainedSpec):
        check_model(model, schema, data.n, data.source)
    elif spec.clipping != DPNormSpec():
        raise _clips_nothing(spec.clipping.rule, model.name)
    check_counted(spec)
    _check_trainer(spec)
    split, centres = _make_split(spec, schema)
    clipping = _make_clipping(spec, defaults) if isinstance(model, TrainedSpec) else None
    unit = spec.privacy.unit or default_unit(source)
    settings = Settings(spec, schema, split, clipping, unit, source.open_parts, centres, initial=initial)
    try:
        check_declared(settings.dump_public())
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
    """Refuse sets of columns of which no table of counts can be measured (`specs.measured.check_sets`)."""
    data = spec.data
    if data.asked_sets is not None:
        budget = {"epsilon": assumed_epsilon(spec), "delta": spec.privacy.delta, "max_rows": data.most_rows}
        check_sets(data.asked_sets, schema, n=data.n, **budget)


def check_counted(spec: RunSpec) -> None:
    """Refuse sets of columns for a model that measures no tables of counts."""
    if spec.data.asked_sets is not None and not isinstance(spec.model, MeasuredSpec):
        raise UsageError(
            f"data.workload: model={spec.model.name} measures no tables of counts; take model=measured, or leave it out"
        )


def _describe(rule: ClippingRule) -> dict[str, Any]:
    """Return a rule, and those that it wraps, as they are declared in the certificate."""
    values = {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
    inner = {name: _describe(value) for name, value in values.items() if isinstance(value, ClippingRule)}
    return {"rule": type(rule).__name__, **values, **inner}


def _clips_nothing(rule: str, model: str) -> UsageError:
    return UsageError(f"clipping={rule}: model={model} clips no gradient; leave settings of clipping out")


def _complete(spec: RunSpec, schema: Schema, parts: Mapping[str, Part]) -> tuple[RunSpec, Defaults]:
    """Return the settings with what was left open filled in, and the defaults that this was done by."""
    clusters = 1 if isinstance(spec.model, MeasuredSpec | AutoregressiveSpec) else spec.split.k
    budget = (assumed_epsilon(spec), spec.privacy.delta, spec.data.most_rows)
    defaults = Defaults(spec.data.n, schema.layout, *budget, clusters=clusters)
    if isinstance(spec.model, MeasuredSpec):
        split = _complete_no_split(spec, schema, defaults)
        return spec.changed(model=complete_measured(spec.model, schema, defaults), split=split), defaults
    split = _complete_split(spec, parts, defaults)
    return spec.changed(model=_complete_network(spec, schema, defaults), split=split), defaults


def _complete_no_split(spec: RunSpec, schema: Schema, defaults: Defaults) -> SplitSpec:
    """Return the settings of one cluster that is paid for by nothing; refuse those of a split."""
    split, name = spec.split, spec.model.name
    if split.k not in (None, 1):
        setting = kind_of(schema).components
        of_label = " of a label" if setting == "model.cells" and schema.layout.label is not None else ""
        raise UsageError(
            f"split.k={split.k}: model={name} does not split records; {setting} says how many components{of_label} "
            "are fitted to what is measured"
        )
    for share, value in split.given(*_SPLIT_SHARES).items():
        raise UsageError(f"split.{share}={value:g}: model={name} does not split records; leave it out")
    return with_defaults(split.changed(k=1), defaults, leave=_SPLIT_SHARES)


def _complete_split(spec: RunSpec, parts: Mapping[str, Part], defaults: Defaults) -> SplitSpec:
    """Return the settings of the split; default shares are those of what is left when other things are bought."""
    data, split = spec.data, with_defaults(spec.split, defaults)
    bought = (data.n_share, data.share_of_discovery, share_for_values(spec, parts), spec.privacy.fidelity_share)
    remaining_share = 1.0 - sum(share or 0.0 for share in bought)
    by_default = [name for name in _SPLIT_SHARES if getattr(spec.split, name) is None]
    if isinstance(spec.model, AutoregressiveSpec) and "means_share" in by_default:
        # Means say nothing of what follows from what, which a network of histories has to learn.
        split = split.changed(means_share=min(split.means_share, _MEANS_OF_HISTORIES))
    return split.changed(**{name: getattr(split, name) * remaining_share for name in by_default})


def _complete_network(spec: RunSpec, schema: Schema, defaults: Defaults) -> TrainedSpec:
    """Return the settings of a network; what is solved for stays open."""
    data, model = spec.data, spec.model
    if isinstance(model, CustomSpec):
        check_custom(model)
    if isinstance(model, AutoregressiveSpec) and spec.split.k not in (None, 1):
        raise UsageError(f"split.k={spec.split.k}: model={model.name} has one component; leave it out")
    model = complete_label(model, schema, defaults)
    solved = ["steps"] if model.noise is not None and spec.privacy.epsilon is not None else []
    if isinstance(model, VAESpec) and not model.dense:
        solved.append("hidden")
    given_steps, model = model.steps, with_defaults(model, defaults, leave=solved)
    rhythm = getattr(model, "critic_steps", 1)
    if given_steps is None and model.steps is not None:
        model = model.changed(steps=max(model.steps - model.steps % rhythm, rhythm))
    if isinstance(model, VAESpec):
        clipping = with_defaults(spec.clipping, defaults)
        bound = clipping.c_max if isinstance(clipping, DPNormSpec) else clipping.c
        reach = 1 if clipping.per_person else data.most_rows
        model = model.with_codes(reach * bound, max(model.rate * data.n, 1.0))
    return model.with_loss(schema.layout) if isinstance(model, WGANSpec) else model


def _make_clipping(spec: RunSpec, defaults: Defaults) -> ClippingRule:
    model = spec.model
    if spec.clipping.per_person and spec.data.most_rows == 1:
        raise UsageError(
            "clipping.per_person=true: every person has one record here; expected data.person, and data.max_rows above "
            "1, or leave it out"
        )
    return make_rule(with_defaults(spec.clipping, defaults), model.steps, getattr(model, "critic_steps", 1))


def _make_split(spec: RunSpec, schema: Schema) -> tuple[SplitSettings, torch.Tensor | None]:
    """Return the settings of the split, and the public records that it starts from, if it does."""
    values = spec.split.model_dump(exclude={"memory_gib"})
    if is_file := values["start"].endswith(ENDING):
        values["start"] = "public"
    elif values["start"] not in ("mean", "random"):
        raise UsageError(f"split.start={values['start']}: expected mean, random, or a FILE{ENDING} of public records")
    try:
        values = {name: value for name, value in values.items() if value is not None or not name.endswith("_share")}
        split = SplitSettings(**values).for_layout(schema.layout)
    except ValueError as error:
        raise UsageError(as_settings(error, "split", spec.split)) from None
    return split, read_centres(spec.split.start, split.k, schema.layout.width) if is_file else None


def _check_trainer(spec: RunSpec) -> None:
    trainer, gpu = spec.trainer, torch.cuda.is_available()
    mps = torch.backends.mps.is_available()
    available = {"auto": True, "cpu": True, "gpu": gpu or mps, "cuda": gpu, "mps": mps}
    # A cluster has GPUs of its own, which are asked for where it is connected.
    if not isinstance(spec.compute, RaySpec) and not available.get(trainer.accelerator):
        usable = ", ".join(name for name, is_usable in available.items() if is_usable)
        raise UsageError(f"trainer.accelerator={trainer.accelerator}: expected one that this machine has ({usable})")
    on_gpu = trainer.accelerator in ("gpu", "cuda") or (trainer.accelerator == "auto" and gpu)
    if trainer.precision == "bf16-mixed" and on_gpu and gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError(
            f"trainer.precision=bf16-mixed: {torch.cuda.get_device_name()} computes nothing in bfloat16: expected 32-true, "
            "or trainer.accelerator=cpu"
        )
    if trainer.slots and (spec.split.k or 1) > 1:
        raise UsageError(
            f"trainer.slots=true: a mixture of split.k={spec.split.k} components has no fixed number of rows for each: "
            "their sizes are private; leave one of the two out"
        )
    model = spec.model
    if trainer.micro_batch is not None and isinstance(model, VAESpec) and model.divergence and model.released_as == "group":
        raise UsageError(
            f"trainer.micro_batch={trainer.micro_batch}: model.divergence={model.divergence}, which is released by group, "
            "reaches over all parts of a lot; leave one of the two out"
        )
    ranks, groups = trainer.devices * trainer.num_nodes, getattr(model, "groups", None) or 0
    if ranks > 0 and groups % ranks:
        raise UsageError(f"model.groups={groups}: {ranks} devices share them; expected a multiple of {ranks}")


def _choose(spec: RunSpec, source: Source, schema: Schema, discovery: Mapping[str, Any] | None) -> Settings:
    """Return the run of the best model that records and settings allow."""
    passed_over, mistakes = "", set()
    strength = strength_of(spec.data.n, assumed_epsilon(spec), spec.privacy.delta, spec.data.most_rows)
    for choice in rank_models(schema, strength):
        default_spec = load_settings([f"model={choice.name}"])
        # A rule that was left open is that of the model.
        open_rule = isinstance(spec.clipping, AutoRuleSpec)
        try:
            if not open_rule and not isinstance(default_spec.model, TrainedSpec):
                raise _clips_nothing(spec.clipping.rule, choice.name)
            clipping = default_spec.clipping if open_rule else spec.clipping
            settings = complete_settings(spec.changed(model=default_spec.model, clipping=clipping), source, discovery)
            return dataclasses.replace(settings, choice_reason=choice.why + passed_over)
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
