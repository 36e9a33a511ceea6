"""The release that a network starts from, its data declared public by name; public records at which a split starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from lightning_dpgen.common.folders import place_of
from lightning_dpgen.data.declarations import as_text
from lightning_dpgen.data.schema import Schema, first_difference
from lightning_dpgen.data.tables.categories import Category
from lightning_dpgen.data.tables.column import Column
from lightning_dpgen.data.tables.grouped import Grouped
from lightning_dpgen.data.tables.numeric import Numeric
from lightning_dpgen.data.tables.relative import Relative
from lightning_dpgen.models.initial import TRAINED
from lightning_dpgen.models.labelled import without_label
from lightning_dpgen.models.mixture import Mixture
from lightning_dpgen.release.certificate import digest
from lightning_dpgen.release.drawing.model_files import weights_digest
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.release.drawing.release import Release, load_release
from lightning_dpgen.release.files import CERTIFICATE, MODEL, WEIGHTS, NotARelease, read_certificate, release_folder
from lightning_dpgen.specs.network import NetworkSpec, VAESpec
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.usage_error import UsageError

M = TypeVar("M", bound=NetworkSpec)
# Sizes that a network without them has not written down.
_IMPLIED = {"likelihood": "bernoulli", "prior": "normal", "centred": False}


@dataclass(frozen=True, eq=False)
class InitialNetwork:
    """A network that a training starts from.

    Args:
        public: the name of the data that it was learned from, which are declared to be public.
        mixture: of the release.
    """

    public: str
    mixture: Mixture

    @cached_property
    def declaration(self) -> dict[str, str]:
        """The declaration, as it stands in a certificate."""
        return {"public": self.public, "weights": weights_digest(self.mixture.network)}

    @property
    def line(self) -> str:
        """The declaration in words."""
        digest = self.declaration["weights"][:12]
        return (
            f"starts from a network of data declared to be public: {self.public} (weights {digest}); nothing in it "
            "was protected, as in a twin of private data: this run's certificate promises nothing to people in both"
        )


def read_initial(spec: RunSpec) -> InitialNetwork | None:
    """Return the network that the settings ask for to start from; None for none.

    Raises:
        UsageError: if there is no such release, it is of another model, or its certificate says that its data are private.
    """
    model = spec.model
    if not isinstance(model, NetworkSpec) or model.init is None:
        return None
    folder, setting = release_folder(model.init), f"model.init={model.init}"
    try:
        release = load_release(folder)
        if isinstance(release, Release):
            # Weights may be so large that nothing can be generated.
            release.sample_encoded(100, seed=0)
        certificate = read_certificate(folder) if (folder / CERTIFICATE).exists() else None
    except NotARelease as error:
        raise UsageError(f"{setting}: {error}") from None
    except OSError as error:
        raise UsageError(f"{setting}: {error.strerror}; expected the folder of a release") from None
    # A label on top of a network has no part in its training.
    kind = type(without_label(release.mixture.network)) if isinstance(release, Release) else None
    if kind is not TRAINED[model.name]:
        is_of = next((name for name, network in TRAINED.items() if network is kind), None)
        content = "no network" if is_of is None else f"a network of model={is_of}"
        raise UsageError(f"{setting}: holds {content}; expected one of model={model.name}")
    if certificate is not None:
        _check_certificate(certificate, folder, setting)
    # A model that does not say otherwise is of protected data, also where its certificate is lost.
    if release.private or (certificate is not None and certificate["private"]):
        raise UsageError(
            f"{setting}: its model or its certificate says that its data are private, so they cannot be declared public, "
            "and no certificate would state its cost; expected a network of public data, trained with privacy=off"
        )
    return InitialNetwork(model.init_public, release.mixture)


def _check_certificate(certificate: Mapping[str, Any], folder: Path, setting: str) -> None:
    """Refuse a certificate that was changed, or that is of other weights than those beside it."""
    files = certificate.get("files")
    if not isinstance(certificate.get("private"), bool) or digest(certificate) != certificate.get("digest"):
        raise UsageError(f"{setting}: its certificate was changed after it was written; expected one as it was published")
    for name in (MODEL, WEIGHTS):
        if not isinstance(files, Mapping) or files.get(name) != file_hash(folder / name):
            raise UsageError(
                f"{setting}: its {name} is not the one in its certificate; expected a release as it was published"
            )


def take_sizes(spec: RunSpec, initial: InitialNetwork) -> RunSpec:
    """Return the settings with the sizes and the number of components of the network that is started from.

    Raises:
        UsageError: for a setting that says otherwise.
    """
    network = initial.mixture.network
    k = spec.split.k
    if k is not None and network.k not in (1, k):
        raise UsageError(
            f"split.k={k}: model.init={spec.model.init} has {network.k} components; expected {network.k}, or a release of 1"
        )
    if network.k > 1:
        spec = spec.changed(split=spec.split.changed(k=network.k))
    return spec.changed(model=_with_sizes(spec.model, network))


def _with_sizes(model: M, network: Any) -> M:
    settings = dict(network.settings)
    # A prior is one setting of a network, and several of the program.
    if isinstance(model, VAESpec):
        prior = dict(settings.pop("prior", {"kind": "normal"}))
        settings |= {"prior": prior.pop("kind")} | {f"prior_{name}": value for name, value in prior.items()}
    sizes = {name: settings.get(name, _IMPLIED.get(name)) for name in model.sizes}
    for name, value in sizes.items():
        size = getattr(model, name)
        if name in model.model_fields_set and size is not None and size != value:
            raise UsageError(
                f"model.{name}={as_text(size)}: expected {as_text(value)}, as model.init={model.init} has it; leave it "
                "out, or start from another release"
            )
    changed = model.changed(**sizes)
    # Sizes may not go with other settings.
    changed.check()
    return changed


def take_bins(schema: Schema, initial: InitialNetwork) -> Schema:
    """Return the schema of a table with the bins and groups of the network's columns, where it leaves these open."""
    theirs = initial.mixture.network.schema
    known = {column.name: column for column in theirs.modelled if isinstance(column, Numeric) and not column.undecided}
    grouped = {column.name: column.value for column in theirs.modelled if isinstance(column, Grouped)}

    def take(column: Column) -> Column:
        if isinstance(column, Relative):
            return column.with_apart(take(column.apart))
        if isinstance(column, Category) and not column.counts and (category := grouped.get(column.name)) is not None:
            same = column.values == category.values
            return column.with_counts(category.counts, category.counts_noise) if same else column
        other = known.get(column.name)
        if other is None or not isinstance(column, Numeric) or not column.undecided:
            return column
        cut = ("bins", "edges", "density", "density_noise") + ("transform",) * bool(other.edges)
        same = (column.low, column.high, column.scale) == (other.low, other.high, other.scale)
        # Other bounds are refused where the schemas are compared.
        return column.with_values(**{name: getattr(other, name) for name in cut}) if same else column

    return schema.with_values(map(take, schema.columns))


def check_records(spec: RunSpec, initial: InitialNetwork, schema: Schema, open_parts: Any) -> None:
    """Refuse to start from a network of other records, or of records that are not described before they are read.

    Args:
        open_parts: the names of parts of the description that are found privately.
    """
    setting = f"model.init={spec.model.init}"
    if open_parts:
        raise UsageError(
            f"{setting}: a network is of records that are wholly described, and {next(iter(open_parts))} is to be found "
            "privately; declare it as the release does"
        )
    if (difference := first_difference(schema, initial.mixture.network.schema)) is not None:
        raise UsageError(f"{setting}: is of other records ({difference}); expected the same description of a record")


ENDING = ".npy"


def read_centres(path: str, k: int, width: int) -> torch.Tensor:
    """Return (k, width) float32 public records.

    Raises:
        UsageError: if there is no such file, or it holds something else.
    """
    expected = f"expected ({k}, {width:,}) numbers from 0 to 1, a public record for each of split.k clusters"
    file = place_of(path)
    if not file.is_file():
        raise UsageError(f"split.start={path}: there is no such file; {expected}")
    try:
        centres = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UsageError(f"split.start={path}: is not a numpy array; {expected}") from None
    if not isinstance(centres, np.ndarray) or centres.dtype.kind not in "buif":
        raise UsageError(f"split.start={path}: does not hold numbers; {expected}")
    if centres.shape != (k, width):
        raise UsageError(f"split.start={path}: has shape {centres.shape}; {expected}")
    # NaN fails too.
    if not ((centres >= 0) & (centres <= 1)).all():
        raise UsageError(f"split.start={path}: holds NaN, or numbers below 0 or above 1; {expected}")
    return torch.from_numpy(centres.astype(np.float32))
