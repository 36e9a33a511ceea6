"""From a configuration to a checked run: every default filled in, every value checked, mistakes said in one line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_dpgen.cli import kinds
from lightning_dpgen.cli.choice import ranked
from lightning_dpgen.cli.configuration import ClippingConf, Conf, DataConf, ModelConf, read_conf
from lightning_dpgen.cli.defaults import clusters_of_labels, default_bins, defaults, strength_of
from lightning_dpgen.cli.families import FAMILIES, complete, training_of
from lightning_dpgen.cli.measured import complete_measured, measured_specs, measures, needs_clusters, recipe_of
from lightning_dpgen.cli.public_centres import ENDING, read_centres
from lightning_dpgen.cli.usage_error import UsageError
from lightning_dpgen.clustering.settings import SplitSettings
from lightning_dpgen.data.baskets.schema import BasketSchema
from lightning_dpgen.data.discovery import bounds_of, discovery_stage, keys_of
from lightning_dpgen.data.layout import smallest_integer
from lightning_dpgen.data.pictures.schema import ImageSchema
from lightning_dpgen.data.schema import Schema
from lightning_dpgen.data.series.schema import SeriesSchema
from lightning_dpgen.data.tables.column import BadSchema
from lightning_dpgen.data.tables.open_columns import BOUNDS, KEYS
from lightning_dpgen.data.tables.schema import TableSchema
from lightning_dpgen.gradients.clipping import ClippingRule, Decay, DPNorm, Fixed, Normalised, Quantile, Smoothed
from lightning_dpgen.metrics.fidelity import fidelity_stage
from lightning_dpgen.plugins.trainer_checks import PRECISIONS
from lightning_dpgen.privacy.calibration import make_plan, make_rest
from lightning_dpgen.privacy.gaussian_cost import check_epsilon
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.stage_spec import StageSpec
from lightning_dpgen.release.bounds import check_columns, check_declared, check_rows
from lightning_dpgen.sampling.errors import BadRecords

# Below it nothing can be computed soundly.
_SMALLEST_DELTA = 1e-30
# Beyond any use, and short of what exhausts a machine without a word.
_MOST, _WIDEST, _DEEPEST = 10**9, 2**16, 8
# The stage that buys the number of records and what else is not declared.
FIRST_PASS = "first pass"
# What stands there if nobody asks for another (conf/clipping/dpnorm.yaml).
_NO_CLIPPING = ClippingConf("dpnorm", bins=20, share=0.05)
_RULES = {"dpnorm": DPNorm, "fixed": Fixed, "decay": Decay, "quantile": Quantile, "normalised": Normalised}
# For choosing sizes where epsilon is what follows from noise and steps.
_ASSUMED_EPSILON = 4.0
# Of the data, what a certificate does not show beside its name and n: places, and what its schema says.
_NOT_SHOWN = {"source", "n", "path", "schema", "bins", "items", "found", "memory"}


@dataclass(frozen=True)
class Settings:
    """A checked run: the configuration with every default filled in, and the typed parts made from it.

    Args:
        conf: what was asked for.
        schema, split, clipping: of the records, the private split and the clipped gradients; no clipping where nothing is
            trained.
        centres: public records where the split starts, if it does.
    """

    conf: Conf
    schema: Schema
    split: SplitSettings
    clipping: ClippingRule | None
    centres: torch.Tensor | None = None

    @property
    def rows(self) -> int:
        return self.conf.data.n if self.conf.rows is None else self.conf.rows

    @property
    def data_name(self) -> str:
        return self.conf.data.source

    @property
    def unit(self) -> str:
        """Whose presence is protected, in words."""
        data = self.conf.data
        if self.conf.privacy.unit is not None:
            return self.conf.privacy.unit
        if data.person is None:
            return f"one {kinds.record(data)} of the data set"
        return f"one person with at most {data.max_rows} record{'s' if data.max_rows > 1 else ''}"

    def plan(self, promise: Plan | None = None) -> Plan:
        """The plan of the run; reads no data.

        Args:
            promise: what was promised before the first pass, if there was one (`first_pass.first_plan`).

        Raises:
            BudgetTooSmall: if the budget does not buy what is asked for.
        """
        epsilon = math.inf if self.conf.privacy.noise == "off" else self.conf.privacy.epsilon
        try:
            specs = self.specs()
            if promise is not None:
                return make_rest(promise, specs)
            return make_plan(specs, epsilon=epsilon, delta=self.conf.privacy.delta, max_rows=self.conf.data.max_rows or 1)
        except ValueError as error:
            raise UsageError(str(error)) from None

    def specs(self) -> list[StageSpec]:
        """The stages of the run as they are asked for, in their order.

        Raises:
            UsageError: if their shares leave nothing.
        """
        n, model = self.conf.data.n, self.conf.model
        first = [first_stage(self.conf)] if has_first_pass(self.conf) else []
        share = self.conf.privacy.fidelity_share
        last = [] if share is None else [fidelity_stage(self.schema.layout, n, share)]
        share_left = 1.0 - sum(spec.share for spec in [*first, *last])
        try:
            if self.clipping is None:
                learning = measured_specs(self.conf, self.schema, self.split, share_left)
            else:
                measured = model.measured_share
                besides = [] if measured is None else recipe_of(self.conf, self.schema).specs(measured)
                split = self.split.specs(n, means=model.bias != "zero")
                learning = [*split, *besides, training_of(self.conf, self.clipping)]
        except ValueError as error:
            raise UsageError(str(error)) from None
        return [*first, *learning, *last]

    def declared(self) -> dict[str, Any]:
        """Everything that the certificate assumes to be public."""
        asked = dataclasses.asdict(self.conf.model)
        title = FAMILIES[asked.pop("name")].title
        asked |= asked.pop("options") or {}
        # The number of steps may be open, where it is solved for.
        always = ("steps", "noise") if self.clipping is not None else ()
        model = {name: value for name, value in asked.items() if value is not None or name in always}
        return {
            "data": self.data_name,
            "n": self.conf.data.n,
            **{name: value for name, value in asked_of(self.conf.data).items() if name not in _NOT_SHOWN},
            **({"discovered": discovered} if (discovered := self._discovered()) else {}),
            **({} if self.conf.privacy.fidelity_share is None else {"fidelity_share": self.conf.privacy.fidelity_share}),
            "schema": self.schema.as_json(),
            "model": {"name": title, **model},
            **({} if self.clipping is None and self.split.k == 1 else {"split": dataclasses.asdict(self.split)}),
            **(
                {}
                if self.clipping is None
                else {"clipping": {"rule": type(self.clipping).__name__, **dataclasses.asdict(self.clipping)}}
            ),
            "seed": self.conf.seed,
            "rows": self.rows,
        }

    def _discovered(self) -> list[str]:
        """What of the description was found in the records, with noise."""
        parts = kinds.open_parts(self.conf.data)
        return [bounds_of(name) if part.find == BOUNDS else keys_of(name) for name, part in parts.items()]

    def asked(self) -> dict[str, Any]:
        """What a run must be asked for again when it goes on."""
        conf = self.conf
        return self.declared() | {
            "privacy": {name: getattr(conf.privacy, name) for name in ("epsilon", "delta", "study")} | {"unit": self.unit},
            "debug": {"private_seed": conf.debug.private_seed},
        }


def asked_of(data: DataConf) -> dict[str, Any]:
    """The settings of the data that are given, but no records."""
    given = {field.name: getattr(data, field.name) for field in dataclasses.fields(data) if field.name != "memory"}
    return {name: value for name, value in given.items() if value is not None}


def read_as(conf: Conf) -> dict[str, Any]:
    """All that decides what a record is, and what is bought before the rest can be planned."""
    data, privacy = asked_of(conf.data), conf.privacy
    return {
        "data": {name: value for name, value in data.items() if name not in ("path", "schema", "items", "found")},
        "schema": kinds.description(conf.data),
        "privacy": {name: getattr(privacy, name) for name in ("epsilon", "delta", "noise", "unit", "study")},
    }


def read_settings(overrides: Sequence[str]) -> Settings:
    """Compose and check the configuration, with a declared number of records.

    Raises:
        UsageError: naming the argument, its value and what was expected.
    """
    conf = read_conf(overrides)
    if conf.data.n is None:
        raise UsageError("data.n=null: the number of records is bought by dpgen train; declare one here, as in data.n=5000")
    return fill(conf)


def has_first_pass(conf: Conf) -> bool:
    """Whether something is bought before the rest is planned."""
    return conf.data.n_share is not None or conf.data.discovery_share is not None


def first_stage(conf: Conf) -> StageSpec:
    """The access that buys what is not declared: one pass, with its share of the budget's mu^2.

    Raises:
        UsageError: if it cannot be bought.
    """
    data, epsilon, delta = conf.data, conf.privacy.epsilon, conf.privacy.delta
    uses = {
        "n_share": (data.n is None, "a noisy count of the records"),
        "discovery_share": (bool(kinds.open_parts(data)), "what is found privately"),
    }
    for name, (needed, use) in uses.items():
        share = getattr(data, name)
        if needed and share is None:
            missing = "data.n=null" if name == "n_share" else "not all is declared"
            raise UsageError(
                f"{missing}: declare it, or give the share of the budget that {use} may use, as in data.{name}=0.01"
            )
        if share is not None and not 0.0 < share < 0.5:
            raise UsageError(
                f"data.{name}={share}: expected a number above 0 and below 0.5, the share of the budget that {use} may use"
            )
    if conf.privacy.noise != "off" and epsilon is None:
        raise UsageError(
            "privacy.epsilon=null: what is not declared is bought with a share of it, so it must be given then"
        )
    parts = kinds.open_parts(data)
    spec = discovery_stage(
        epsilon=math.inf if conf.privacy.noise == "off" else epsilon,
        delta=delta,
        share=data.discovery_share or 0.0,
        count_share=data.n_share or 0.0,
        bounds={name: part.most for name, part in parts.items() if part.find == BOUNDS},
        keys={name: part.most for name, part in parts.items() if part.find == KEYS},
    )
    return dataclasses.replace(spec, stage=FIRST_PASS)


def check_budget(epsilon: float | None) -> None:
    """Refuse an epsilon that no run can be planned for.

    Raises:
        UsageError: saying the least and the largest.
    """
    try:
        check_epsilon(epsilon)
    except ValueError as error:
        raise UsageError(f"privacy.{error}, or privacy=off") from None


def make_schema(conf: Conf) -> Schema:
    """The declared description of a record.

    Raises:
        UsageError: if it describes none.
    """
    kinds.check(conf.data)
    try:
        schema = kinds.KINDS[conf.data.source].declare(conf.data)
    except (BadSchema, BadRecords) as error:
        raise UsageError(str(error)) from None
    except ValueError as error:
        raise UsageError(f"data.{error}") from None
    if not isinstance(schema, TableSchema):
        return schema
    bins, n = conf.data.bins, conf.data.n
    if bins is None:
        # Where n is still to be bought, records are only counted.
        bins = 1 if n is None else default_bins(n, _epsilon(conf), conf.privacy.delta)
    _within("data.bins", bins, 1, _WIDEST)
    return schema.completed(bins)


def fill(conf: Conf) -> Settings:
    """Fill in defaults and check values; see `read_settings`."""
    check_privacy(conf)
    data = conf.data
    schema = make_schema(conf)
    if conf.model.name == "auto":
        return _chosen(conf, schema)
    _check_two_of_three(conf)
    trained = conf.model.name not in FAMILIES or FAMILIES[conf.model.name].trained
    if measures(conf) and conf.split.k is None and not needs_clusters(schema):
        gaussians = conf.model.name == "measured" and isinstance(schema, ImageSchema | SeriesSchema)
        budget = (_epsilon(conf), conf.privacy.delta, data.max_rows or 1)
        conf.split.k = clusters_of_labels(data.n, schema.layout, *budget) if gaussians else 1
    chosen = defaults(data.n, schema.layout, _epsilon(conf), conf.privacy.delta, data.max_rows or 1, conf.split.k)
    if conf.model.name == "measured":
        # Each label has components of its own; clusters that follow labels would tell none of its shapes apart.
        chosen = dataclasses.replace(chosen, label_weight=0.0)
    solved = {"steps"} if conf.model.noise is not None and conf.privacy.epsilon is not None else set()
    # Default shares are those of what is left when other things are bought.
    others = (data.n_share, data.discovery_share, conf.privacy.fidelity_share, conf.model.measured_share)
    left = 1.0 - sum(share or 0.0 for share in others)
    for field in dataclasses.fields(conf.split):
        share, given = field.name.endswith("_share"), getattr(conf.split, field.name)
        if share and chosen.k == 1 and not trained:
            if given is not None:
                raise UsageError(f"split.{field.name}={given:g}: there is one cluster, and nothing to split; leave it out")
        elif given is None and hasattr(chosen, field.name):
            value = getattr(chosen, field.name)
            setattr(conf.split, field.name, value * left if share else value)
    rate = chosen.rate if conf.model.rate is None else conf.model.rate
    complete(conf.model, chosen, max(rate * data.n, 1.0), solved)
    if measures(conf):
        complete_measured(conf, schema, chosen)
    if trained:
        _check_model(conf, schema)
    else:
        given = dataclasses.asdict(conf.clipping)
        if given != dataclasses.asdict(_NO_CLIPPING):
            raise UsageError(
                f"clipping={conf.clipping.rule}: model={conf.model.name} clips no gradient; leave settings of clipping out"
            )
    if conf.rows is not None:
        _within("rows", conf.rows, 0, _MOST)
    _check_accelerator(conf.trainer.accelerator)
    if conf.trainer.precision not in PRECISIONS:
        raise UsageError(
            f"trainer.precision={conf.trainer.precision}: expected one of {', '.join(PRECISIONS)}, in which parameters and "
            "noise stay in full precision"
        )
    ranks = conf.trainer.devices * conf.trainer.num_nodes
    if ranks > 0 and (conf.model.groups or 0) % ranks:
        raise UsageError(f"model.groups={conf.model.groups}: {ranks} devices share them; expected a multiple of {ranks}")
    _check_seed("seed", conf.seed)
    if conf.debug.private_seed is not None:
        _check_seed("debug.private_seed", conf.debug.private_seed)
    _within("trainer.log_every", conf.trainer.log_every, 1, _MOST)
    if conf.trainer.previews_every is not None:
        _within("trainer.previews_every", conf.trainer.previews_every, 0, _MOST)
    if conf.trainer.checkpoint_every is not None:
        _within("trainer.checkpoint_every", conf.trainer.checkpoint_every, 1, _MOST)
    if conf.trainer.threads is not None:
        _within("trainer.threads", conf.trainer.threads, 1, 4096)
    try:
        asked = dataclasses.asdict(conf.split)
        if not 0.0 <= asked.pop("room") <= _MOST:
            raise UsageError(f"split.room={conf.split.room:g}: expected GiB of memory, 0 or more")
        if is_file := asked["start"].endswith(ENDING):
            asked["start"] = "public"
        elif asked["start"] not in ("mean", "random"):
            raise UsageError(f"split.start={conf.split.start}: expected mean, random, or a FILE{ENDING} of public records")
        asked = {name: value for name, value in asked.items() if value is not None or not name.endswith("_share")}
        split = SplitSettings(**asked).fitted(schema.layout)
    except ValueError as error:
        raise UsageError(str(error)) from None
    centres = read_centres(conf.split.start, split.k, schema.layout.width) if is_file else None
    clipping = _clipping(conf.clipping, chosen.c_max, conf.model.rate * data.n) if trained else None
    settings = Settings(conf, schema, split, clipping, centres)
    try:
        check_declared(settings.declared())
    except ValueError as error:
        raise UsageError(f"data: {error}") from None
    try:
        if isinstance(schema, ImageSchema):
            check_columns(schema.layout.units)
        check_rows(settings.rows, _bytes_of_record(schema))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return settings


def _bytes_of_record(schema: Schema) -> int:
    """Return the bytes that a synthetic record takes in a file at most, but for long texts."""
    if isinstance(schema, BasketSchema):
        return 8 * (schema.max_items + 1)
    layout = schema.layout
    pixel = smallest_integer(layout.levels).itemsize if isinstance(schema, ImageSchema) else 8
    return pixel * layout.units + 8 * len(layout.groups)


def _chosen(conf: Conf, schema: Schema) -> Settings:
    """With the best model that records and settings allow."""
    said, mistakes = "", set()
    for choice in ranked(schema, strength_of(conf.data.n, _epsilon(conf), conf.privacy.delta, conf.data.max_rows or 1)):
        model = ModelConf(**choice.fields | {"chosen": choice.why + said})
        try:
            return fill(dataclasses.replace(conf, model=model, split=dataclasses.replace(conf.split)))
        except UsageError as mistake:
            said += f"; {choice.name} was passed over: {mistake}"
            mistakes.add(str(mistake))
    if len(mistakes) == 1:
        # It has nothing to do with the model.
        raise UsageError(mistakes.pop())
    raise UsageError(f"model=auto: no model is left{said}")


def check_privacy(conf: Conf) -> None:
    """Check the budget, as far as the number of records is known."""
    epsilon, delta = conf.privacy.epsilon, conf.privacy.delta
    if conf.data.n is not None:
        _within("data.n", conf.data.n, 1, _MOST)
    if conf.privacy.unit is not None and not conf.privacy.unit.strip():
        raise UsageError("privacy.unit is empty: expected words that say whose presence is protected")
    if conf.privacy.unit is not None and conf.data.person is not None:
        raise UsageError(
            f"privacy.unit={conf.privacy.unit}: data.person={conf.data.person} says whose presence is protected; leave out "
            "one of the two"
        )
    for name in ("selection_mean", "selection_score"):
        value = getattr(conf.privacy, name)
        if value is not None and conf.privacy.selection is None:
            raise UsageError(f"privacy.{name}={value}: of no selection; give its law, as in privacy.selection=logarithmic")
    if conf.privacy.noise not in ("standard", "secure", "off"):
        raise UsageError(f"privacy.noise={conf.privacy.noise}: expected standard, secure, or off by way of privacy=off")
    if conf.privacy.noise == "secure" and conf.debug.private_seed is not None:
        raise UsageError(
            f"debug.private_seed={conf.debug.private_seed}: secure noise takes no seed; leave out one of the two"
        )
    if conf.privacy.noise == "off":
        if epsilon is not None:
            raise UsageError(f"privacy.epsilon={epsilon}: privacy=off draws no noise, so it takes no epsilon")
    elif epsilon is None:
        if conf.model.noise is None or conf.model.steps is None:
            raise UsageError(
                "privacy.epsilon=null: expected a positive number, or both model.noise and model.steps, from which epsilon "
                "follows, or privacy=off"
            )
    else:
        check_budget(epsilon)
    share = conf.privacy.fidelity_share
    if share is not None and not 0.0 < share < 0.5:
        raise UsageError(f"privacy.fidelity_share={share:g}: expected a share of the budget, above 0 and below 0.5")
    if not _SMALLEST_DELTA <= delta < 1:
        raise UsageError(f"privacy.delta={delta}: expected a number between {_SMALLEST_DELTA:g} and 1")
    if conf.privacy.noise != "off" and conf.data.n and delta >= 1.0 / conf.data.n:
        raise UsageError(
            f"privacy.delta={delta:g}: expected less than 1/n = {1.0 / conf.data.n:.3g} for data.n={conf.data.n}, "
            "since publishing one record at random would satisfy a delta of 1/n"
        )


def _check_two_of_three(conf: Conf) -> None:
    noise = conf.model.noise
    if noise is None:
        return
    if conf.privacy.noise == "off":
        raise UsageError(f"model.noise={noise:g}: privacy=off draws no noise")
    if not 0.0 < noise <= 1e9:
        raise UsageError(f"model.noise={noise:g}: expected a positive noise multiplier")
    if conf.privacy.epsilon is not None and conf.model.steps is not None:
        raise UsageError(
            f"privacy.epsilon={conf.privacy.epsilon:g}, model.noise={noise:g}, model.steps={conf.model.steps}: give two of "
            "them, and the third is solved for (privacy.epsilon=null leaves it open)"
        )


def _epsilon(conf: Conf) -> float | None:
    """The budget from which sizes are chosen; None for none."""
    return None if conf.privacy.noise == "off" else conf.privacy.epsilon or _ASSUMED_EPSILON


def _check_model(conf: Conf, schema: Schema) -> None:
    model = conf.model
    sizes = ("hidden", "latent", "chains", "features", "groups", "critic_steps")
    for name, most in {"steps": _MOST, **dict.fromkeys(sizes, _WIDEST)}.items():
        if getattr(model, name) is not None:
            _within(f"model.{name}", getattr(model, name), 1, most)
    if model.layers is not None:
        _within("model.layers", model.layers, 1, _DEEPEST)
    if model.network == "conv" and (model.layers not in (None, 1) or model.trunk):
        raise UsageError(
            f"model.network=conv with model.layers={model.layers}, model.trunk={model.trunk}: are of dense networks; leave "
            "them out"
        )
    if model.measured_share is not None:
        if not 0.0 < model.measured_share < 1.0:
            raise UsageError(
                f"model.measured_share={model.measured_share:g}: expected the share of the budget that is measured with, "
                "above 0 and below 1, or null for none"
            )
        _within("model.measured_steps", model.measured_steps, 0, _MOST)
        if not 0.0 <= model.measured_weight <= 1e6:
            raise UsageError(f"model.measured_weight={model.measured_weight:g}: expected a number from 0 to 1e+06")
    for name in ("penalty", "divergence_weight", "group_c"):
        value = getattr(model, name)
        if value is not None and not 1e-6 <= value <= 1e6:
            raise UsageError(f"model.{name}={value:g}: expected a number from 1e-06 to 1e+06")
    if model.divergence_share is not None and not 0.0 < model.divergence_share < 0.9:
        raise UsageError(f"model.divergence_share={model.divergence_share:g}: expected a number above 0, below 0.9")
    if model.features is not None and model.features % 2:
        raise UsageError(f"model.features={model.features}: expected an even number, pairs of a cosine and a sine")
    if model.network not in (None, "dense", "conv"):
        raise UsageError(f"model.network={model.network}: expected dense or conv")
    if model.network == "conv" and not isinstance(schema, ImageSchema):
        raise UsageError(
            f"model.network=conv: is for pictures, and data={conf.data.source} is none; use model.network=dense"
        )
    if model.network == "conv" and (schema.height % 4 or schema.width % 4):
        raise UsageError(
            f"model.network=conv: pictures of {schema.height} by {schema.width} do not go through it, which needs "
            "multiples of 4; model.network=dense takes any"
        )
    if not 0.0 < model.rate <= 1.0:
        raise UsageError(f"model.rate={model.rate}: expected a sampling rate in (0, 1]")
    if model.rate * conf.data.n < 1.0:
        raise UsageError(
            f"model.rate={model.rate:g}: expected 1/n = {1.0 / conf.data.n:.3g} or more, or no lot holds a record"
        )
    if not 0.0 < model.lr <= 1e3:
        raise UsageError(f"model.lr={model.lr:g}: expected a positive number, at most 1000")
    if model.bias not in ("means", "learned", "zero"):
        raise UsageError(f"model.bias={model.bias}: expected means, learned or zero")


def _check_accelerator(name: str) -> None:
    available = {
        "auto": True,
        "cpu": True,
        "gpu": torch.cuda.is_available() or torch.backends.mps.is_available(),
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available.get(name):
        usable = ", ".join(key for key, there in available.items() if there)
        raise UsageError(f"trainer.accelerator={name}: expected one that this machine has ({usable})")


def _clipping(conf: ClippingConf, c_max: float, expected_batch_size: float) -> ClippingRule:
    """The rule; what is left open is the rule's own default, or follows from `c_max`, the default largest bound."""
    if conf.rule not in _RULES:
        raise UsageError(f"clipping.rule={conf.rule}: expected one of {', '.join(_RULES)}")
    made = _RULES[conf.rule]
    names = [f.name for f in dataclasses.fields(made)]
    given = {name: value for name, value in dataclasses.asdict(conf).items() if value is not None}
    unused = sorted(given.keys() - {*names, "rule", "smooth"})
    if unused:
        raise UsageError(
            f"clipping.{unused[0]}={given[unused[0]]}: clipping.rule={conf.rule} has no such setting; clipping={conf.rule} "
            "picks the file that goes with it"
        )
    derived = {"c": 1.0, "c_max": c_max, "expected_batch_size": expected_batch_size}
    try:
        rule = made(**{name: (derived | given)[name] for name in names if name in derived or name in given})
        return Smoothed(rule, conf.smooth) if conf.smooth else rule
    except ValueError as error:
        raise UsageError(f"clipping.{error}") from None


def _check_seed(name: str, value: int) -> None:
    # The sheet of samples adds the component's number to it.
    if not 0 <= value < 2**62:
        raise UsageError(f"{name}={value}: expected a whole number from 0 to 2^62")


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name}={value}: expected a whole number from {least} to {most:,}")
