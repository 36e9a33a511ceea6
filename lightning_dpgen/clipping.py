"""The clipping rules: how the bounds of a lot are chosen."""

from lightning_dpgen.gradients.clipping import (
    ClippingRule,
    Decay,
    DPNorm,
    Fixed,
    Normalised,
    PerComponent,
    PerLayer,
    PerPerson,
    Quantile,
    Schedule,
    Smoothed,
)

__all__ = [
    "ClippingRule",
    "DPNorm",
    "Decay",
    "Fixed",
    "Normalised",
    "PerComponent",
    "PerLayer",
    "PerPerson",
    "Quantile",
    "Schedule",
    "Smoothed",
]
