"""The label of a table that is drawn given all other columns: its settings, for any model, and its accesses."""

from __future__ import annotations

from lightning_dpgen.data.schema import Schema
from lightning_dpgen.measure.labels import label_workload
from lightning_dpgen.measure.recipe import what_to_leave_out
from lightning_dpgen.models.bases import Scattering
from lightning_dpgen.models.labelled import can_label, feature_count, is_classified
from lightning_dpgen.privacy.planning.stage_spec import StageSpec
from lightning_dpgen.specs.model import MeasuredSpec
from lightning_dpgen.specs.network import TrainedSpec
from lightning_dpgen.specs.usage_error import UsageError

# Features whose curvature, a matrix, is decomposed in a minute and in a GiB of memory, and weights of all labels, which
# are fitted in about as much.
_MOST_FEATURES, _MOST_WEIGHTS = 4096, 1 << 20


def check_label(spec: TrainedSpec | MeasuredSpec, schema: Schema, share: float | None) -> None:
    """Refuse settings of the label that have no effect, or that the records have no use for.

    Args:
        share: the share of the label, as it was given or by default.

    Raises:
        UsageError: naming the setting.
    """
    if spec.label_sharpness is not None and not share:
        raise UsageError(
            f"model.label_sharpness={spec.label_sharpness:g}: applies only to labels that model.label_share has paid for, "
            "and it is 0 here; give it a share, as in model.label_share=0.3, or leave this out"
        )
    if spec.label_share and not can_label(schema):
        raise UsageError(
            f"model.label_share={spec.label_share:g}: expected 0 where there is no label, or nothing besides it"
        )
    if share and is_classified(schema) and (count := Scattering(schema.layout, schema.axes).count) > _MOST_FEATURES:
        raise UsageError(
            f"model.label_share={share:g}: a record of so many channels has {count:,} features: expected "
            f"{_MOST_FEATURES:,} or fewer; take fewer channels"
        )


def complete_label(spec: TrainedSpec, schema: Schema) -> TrainedSpec:
    """Return the settings of a network with those of the label filled in.

    Raises:
        UsageError: as `check_label`; for records that are no table, or of too many choices.
    """
    if spec.label_share and not schema.label_given_rest:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: applies only to tables, and these records are of kind "
            f"{schema.kind}; leave it out"
        )
    check_label(spec, schema, spec.label_share)
    if not spec.label_share:
        return spec
    if (features := feature_count(schema.layout)) > _MOST_FEATURES:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: the label is drawn given {features:,} features, most of them nothing "
            f"but noise: expected {_MOST_FEATURES:,} or fewer; {what_to_leave_out(schema)}"
        )
    labels = schema.layout.groups[schema.layout.label]
    if features * labels > _MOST_WEIGHTS:
        raise UsageError(
            f"model.label_share={spec.label_share:g}: {labels:,} labels, each drawn given {features:,} features, are "
            f"{features * labels:,} numbers, most of them nothing but noise: expected {_MOST_WEIGHTS:,} or fewer; "
            f"{what_to_leave_out(schema)}"
        )
    return spec if spec.label_sharpness is not None else spec.changed(label_sharpness=1.0)


def label_specs(spec: TrainedSpec, n: int, left: float) -> list[StageSpec]:
    """Return the accesses of the label of a network, if it has any.

    Args:
        spec: complete.
        left: share of the budget that network and label may spend.

    Raises:
        UsageError: if there is none.
    """
    if not spec.label_share:
        return []
    if left <= 0.0:
        raise UsageError(
            f"the shares of the budget that are given leave {left:.2g} for network and label: set smaller ones "
            "(data.n_share, privacy.fidelity_share, split.moments_share, split.lloyd_share, split.means_share)"
        )
    return [label_workload(n, spec.label_share, agreement=False).spec(left)]
