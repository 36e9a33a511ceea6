"""What may be said on the command line and in the YAML files: composed by Hydra, typed, and wrong in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException, ValidationError

import lightning_dpgen
from lightning_dpgen.cli.defaults import default_delta
from lightning_dpgen.cli.usage_error import UsageError

_NOT_OF_TYPE = r"Value '(?P<value>.*)' of type '\w+' could not be converted to (?P<type>Integer|Float)"
_TYPES = {"Integer": "a whole number", "Float": "a number"}
_GROUPS = ("data", "model", "clipping", "privacy", "split", "trainer", "experiment")
# What a Trainer has, and a private training cannot.
_NEVER = {
    "trainer.strategy": "is ddp where trainer.devices or trainer.num_nodes say so; fsdp and deepspeed keep a part of each "
    "parameter in each process, where no gradient of a record has a norm to be clipped by",
    "trainer.accumulate_grad_batches": "a lot is one access, and is drawn whole; model.rate says how large it is",
    "trainer.gradient_clip_val": "gradients are clipped record by record, as clipping says",
    "trainer.use_distributed_sampler": "which records a lot holds is drawn in secret; a sampler takes them in turn",
}
# Sources of records that a network learns, and of rows that a projection releases.
RECORDS = (
    "digits", "mnist", "fashion_mnist", "images", "adult", "mushroom", "table", "retail", "bms_webview1", "baskets",
    "uk_demand", "powercons", "ausgrid", "series", "own",
)  # fmt: skip
ROWS = ("blobs", "array")


@dataclass
class DataConf:
    """Of all kinds of data together; `kinds.KINDS` says which has which."""

    source: str = MISSING
    path: str | None = None
    n: int | None = MISSING
    n_share: float | None = None
    discovery_share: float | None = None
    person: str | None = None
    max_rows: int | None = None
    outside: str | None = None
    # Pictures.
    height: int | None = None
    width: int | None = None
    levels: int | None = None
    threshold: int | None = None
    fit: str | None = None
    high: Any = None
    # Pictures and series: how many, or their names.
    channels: Any = None
    classes: Any = None
    # Tables.
    schema: Any = None
    bins: int | None = None
    # Baskets.
    items: Any = None
    max_items: int | None = None
    # Series.
    length: int | None = None
    low: Any = None
    decimals: Any = None
    header: bool | None = None
    by: str | None = None
    day: str | None = None
    # How files of baskets and series are written.
    form: str | None = None
    separator: str | None = None
    columns: Any = None
    label: str | None = None
    # Of somebody's own.
    target: str | None = None
    options: Any = None
    # What was found privately: never set by hand.
    found: Any = None
    # Records that are in memory; never a setting.
    memory: Any = None


@dataclass
class ModelConf:
    name: str = MISSING
    # By `model=auto`: why.
    chosen: str | None = None
    network: str | None = None
    hidden: int | None = None
    layers: int | None = None
    trunk: bool | None = None
    latent: int | None = None
    divergence: str | None = None
    divergence_weight: float | None = None
    divergence_share: float | None = None
    groups: int | None = None
    group_c: float | None = None
    features: int | None = None
    chains: int | None = None
    penalty: float | None = None
    critic_steps: int | None = None
    target: str | None = None
    options: Any = None
    waves: int | None = None
    radius: float | None = None
    spread: float | None = None
    means_share: float | None = None
    symmetries: Any = None
    components: int | None = None
    pairs_share: float | None = None
    measured_share: float | None = None
    measured_steps: int | None = None
    measured_weight: float | None = None
    label_share: float | None = None
    label_sharpness: float | None = None
    bias: str | None = None
    lr: float | None = None
    rate: float | None = None
    steps: int | None = None
    noise: float | None = None


@dataclass
class ClippingConf:
    rule: str = MISSING
    c: float | None = None
    c_max: float | None = None
    bins: int | None = None
    share: float | None = None
    factor: float | None = None
    every: int | None = None
    target: float | None = None
    lr: float | None = None
    least: float | None = None
    most: float | None = None
    stability: float | None = None
    smooth: float = 0.0


@dataclass
class PrivacyConf:
    epsilon: float | None = None
    delta: float | None = None
    unit: str | None = None
    noise: str = MISSING
    fidelity_share: float | None = None
    study: str | None = None
    study_folder: str | None = None
    study_epsilon: float | None = None
    study_delta: float | None = None
    selection: str | None = None
    selection_mean: float | None = None
    selection_score: str | None = None


@dataclass
class SplitConf:
    k: int | None = None
    kernel: str = "rbf"
    paired: bool = True
    start: str = "mean"
    room: float = 4.0
    dimensions: int | None = 16
    iterations: int | None = None
    features: int | None = None
    gamma: float | None = None
    label_weight: float | None = None
    radius: float | None = None
    moments_share: float | None = None
    lloyd_share: float | None = None
    means_share: float | None = None


@dataclass
class TrainerConf:
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    precision: str = "32-true"
    threads: int | None = None
    log_every: int = 50
    previews_every: int | None = None
    checkpoint_every: int | None = None


@dataclass
class DebugConf:
    private_seed: int | None = None


@dataclass
class Conf:
    data: DataConf = field(default_factory=DataConf)
    model: ModelConf = field(default_factory=ModelConf)
    clipping: ClippingConf = field(default_factory=ClippingConf)
    privacy: PrivacyConf = field(default_factory=PrivacyConf)
    split: SplitConf = field(default_factory=SplitConf)
    trainer: TrainerConf = field(default_factory=TrainerConf)
    debug: DebugConf = field(default_factory=DebugConf)
    run_dir: str | None = None
    seed: int = 0
    rows: int | None = None


@dataclass
class AuditOptions:
    canaries: int = MISSING
    draws: int = MISSING
    confidence: float = MISSING
    spend: bool = MISSING


@dataclass
class AuditConf(Conf):
    audit: AuditOptions = field(default_factory=AuditOptions)


@dataclass
class RowsConf:
    source: str = MISSING
    path: str | None = None
    n: int | None = None
    d: int | None = None


@dataclass
class ProjectionConf:
    unit: str = "row"
    radius: float | None = None
    distance: float | None = None
    k: int | None = None
    matrix: str | None = None
    noise: str | None = None
    centre: Any = None
    typical: float | None = None
    count_share: float = 0.01


@dataclass
class PurePrivacyConf:
    epsilon: float | None = None
    delta: float | None = 0.0
    noise: str = MISSING
    unit: str | None = None
    study: str | None = None
    study_folder: str | None = None
    study_epsilon: float | None = None
    study_delta: float | None = None


@dataclass
class ProjectConf:
    data: RowsConf = field(default_factory=RowsConf)
    project: ProjectionConf = field(default_factory=ProjectionConf)
    privacy: PurePrivacyConf = field(default_factory=PurePrivacyConf)
    debug: DebugConf = field(default_factory=DebugConf)
    run_dir: str | None = None
    seed: int = 0


def conf_dir() -> Path:
    """The folder of the YAML files: inside an installed package, beside it in a checkout."""
    package = Path(lightning_dpgen.__file__).parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise FileNotFoundError("the configuration files of lightning_dpgen are missing: install it again")


def read_conf(overrides: Sequence[str]) -> Conf:
    """Compose the configuration of a training; its values are not checked yet.

    Raises:
        UsageError: naming the argument, its value and what was expected.
    """
    return _completed(_compose(overrides, "config", Conf, RECORDS, "dpgen project", ROWS))


def read_audit_conf(overrides: Sequence[str]) -> AuditConf:
    """Compose the configuration of an audit of a training; see `read_conf`.

    Half of the canaries is the declared number of records, unless these take part.
    """
    conf = _compose(overrides, "audit", AuditConf, RECORDS, "dpgen project", ROWS)
    if not conf.audit.spend:
        conf.data.n, conf.data.n_share = max(conf.audit.canaries // 2, 1), None
    return _completed(conf)


def _completed(conf: Conf):
    _refuse_memory(conf.data)
    if conf.data.n is not None and conf.data.n_share is not None:
        raise UsageError(
            f"data.n={conf.data.n} and data.n_share={conf.data.n_share:g}: declare the number of records, or buy it with "
            "data.n=null"
        )
    if conf.privacy.delta is None:
        conf.privacy.delta = default_delta(conf.data.n)
    return conf


def read_data_conf(overrides: Sequence[str]) -> DataConf:
    """Compose the settings of records alone, for a release whose schema is known: what is left out is None.

    Raises:
        UsageError: as `read_conf`, and for any setting that is not of the data.
    """
    for override in overrides:
        name = override.partition("=")[0].lstrip("+~")
        if name != "data" and not name.startswith("data.") and "=" in override:
            raise UsageError(f"{override}: expected settings of the data alone, as in data=table data.path=FILE")
    with _composed(overrides, "config", RECORDS, "dpgen project", ROWS) as composed:
        given = {name: None if OmegaConf.is_missing(composed.data, name) else composed.data[name] for name in composed.data}
        # Below its group, so that an error names it as the command line does.
        merged = OmegaConf.merge({"data": OmegaConf.structured(DataConf(n=None))}, {"data": given})
        return _refuse_memory(OmegaConf.to_object(merged.data))


def read_project_conf(overrides: Sequence[str]) -> ProjectConf:
    """Compose the configuration of a projection; see `read_conf`."""
    conf = _compose(overrides, "project", ProjectConf, ROWS, "dpgen train", RECORDS)
    if conf.privacy.delta is None:
        conf.privacy.delta = default_delta(conf.data.n)
    return conf


def refuse_interpolations(words: Sequence[str]) -> None:
    """Refuse what would be looked up when it is read: a setting may be published, and an environment holds secrets.

    Raises:
        UsageError: naming the word.
    """
    for word in words:
        # Hydra takes a backslash away.
        if "${" in word.replace("\\", ""):
            raise UsageError(f"argument {word!r}: expected the value itself; nothing of the form ${{...}} is looked up")


def _refuse_memory(conf: DataConf) -> DataConf:
    if conf.memory is not None:
        raise UsageError(f"there is no setting 'data.memory'; all are listed in {conf_dir()}")
    return conf


def _compose(overrides: Sequence[str], name: str, schema: type, sources, other: str, others):
    """A configuration of that name and type, whose data are one of `sources` and not what another command is for."""
    with _composed(overrides, name, sources, other, others) as composed:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), composed))


@contextmanager
def _composed(overrides: Sequence[str], name: str, sources, other: str, others) -> Iterator[DictConfig]:
    """The same before it has a type; within it, whatever Hydra and OmegaConf find wrong becomes a UsageError."""
    refuse_interpolations(overrides)
    for override in overrides:
        if override in ("-m", "--multirun"):
            raise UsageError(f"{override}: goes with dpgen train alone")
        if override.startswith("-"):
            raise UsageError(f"unknown option {override!r}: settings are given as NAME=VALUE, as in privacy.epsilon=2")
        setting, equals, value = override.partition("=")
        if not setting.lstrip("+~") or not (equals or override.startswith("~")):
            raise UsageError(f"argument {override!r}: expected NAME=VALUE, as in privacy.epsilon=2")
        if setting in _GROUPS and (value == "null" or not value.replace("_", "").isalnum()):
            raise UsageError(f"{override}: expected one name, as in data=digits")
        group, at, _ = setting.lstrip("+~").partition("@")
        if at:
            raise UsageError(f"argument {override!r}: expected a name without @, as in {group or 'data'}={value}")
        # Hydra reads inf, nan and 12 as numbers, of which it makes no name.
        if group in _GROUPS and equals:
            known = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
            if value not in known:
                raise UsageError(f"{override}: there is none; expected one of {', '.join(known)}")
    # Within a sweep, Hydra has another configuration at hand.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = compose(name, overrides=list(overrides))
        source = OmegaConf.select(composed, "data.source")
        if source in others:
            raise UsageError(f"data={source}: is for {other}; expected one of {', '.join(sources)}")
        if source is not None and source not in sources:
            raise UsageError(f"data.source={source}: there is none; expected one of {', '.join(sources)}")
        yield composed
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error)) from None
    finally:
        GlobalHydra.instance().clear()
        if outer is not None:
            GlobalHydra.instance().initialize(outer)


def _explain(error: Exception) -> str:
    """Hydra's and OmegaConf's messages, without their traces, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    skipped = ("full_key:", "object_type", "reference_type", "Set the environment", "To append to your config")
    kept = [line for line in lines if not line.startswith(skipped)]
    key = next((line.removeprefix("full_key:").strip() for line in lines if line.startswith("full_key:")), "")
    text = " ".join(kept)
    if isinstance(error, OverrideParseException):
        name, _, value = str(error.override).partition("=")
        quoted = value.replace('"', '\\"')
        return (
            f"argument {error.override!r}: cannot be read; of text with signs other than - _ . / expected quotes, inside "
            f"those of the shell, as in '{name}=\"{quoted}\"'"
        )
    if isinstance(error, MissingConfigException):
        asked = (error.missing_cfg_file or "").replace("/", "=", 1)
        return f"{asked}: there is none; expected one of {', '.join(error.options or [])}"
    if isinstance(error, ConfigCompositionException) and text.startswith("Could not override"):
        return _no_setting(text.removeprefix("Could not override").strip(" .'"))
    if isinstance(error, MissingMandatoryValue):
        return f"{key}: must be given, as in {key}=..."
    if isinstance(error, ConfigKeyError):
        return _no_setting(str(error.full_key))
    if isinstance(error, ValidationError) and (found := re.fullmatch(_NOT_OF_TYPE, text)):
        return f"{key}={found['value']}: expected {_TYPES[found['type']]}"
    return f"{key}: {text}" if key and key not in text else text


def _no_setting(name: str) -> str:
    if (why := _NEVER.get(name.lstrip("+~"))) is not None:
        return f"{name}: {why}"
    if name.startswith("model."):
        return f"there is no setting {name!r} of the model that was chosen; all are listed in {conf_dir() / 'model'}"
    return f"there is no setting {name!r}; all are listed in {conf_dir()}"
