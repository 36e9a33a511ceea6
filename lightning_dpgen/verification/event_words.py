"""Events of a certificate held against those that are planned: do they agree, and how do they read in words?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

# Rates and failures are written as they are declared, but for last digits.
ROUNDING = 1e-9
# The most characters of a part of a message.
LONGEST = 240


def event_and_count(event: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Return the event of one access of a stage, and how many there are."""
    return (event["event"], event["count"]) if event["type"] == "SelfComposedDpEvent" else (event, 1)


def agree(planned: Any, stated: Any, tolerance: float | None) -> bool:
    """Return whether two event trees are the same but for last digits; multipliers within a tolerance, or any for None."""
    if isinstance(planned, dict):
        if not isinstance(stated, dict) or planned.keys() != stated.keys():
            return False
        return all(
            (tolerance is None or math.isclose(planned[name], stated[name], rel_tol=tolerance))
            if name == "noise_multiplier"
            else agree(planned[name], stated[name], tolerance)
            for name in planned
        )
    if isinstance(planned, list):
        return len(planned) == len(stated) and all(agree(*pair, tolerance) for pair in zip(planned, stated, strict=True))
    if isinstance(planned, float):
        return math.isclose(planned, stated, rel_tol=ROUNDING)
    return planned == stated


def difference_message(stage: str, planned: str, stated: str) -> str:
    return f"stage {stage[:80]!r}: its settings give {planned[:LONGEST]}, and the certificate states {stated[:LONGEST]}"


def describe_event(event: Mapping[str, Any], *, noise: bool = True) -> str:
    """Return an event in words; without noise, where no multiplier was planned."""
    match event:
        case {"type": "PoissonSampledDpEvent"}:
            return f"lots of rate {event['sampling_probability']:.6g} with {describe_event(event['event'], noise=noise)}"
        case {"type": "SelfComposedDpEvent"}:
            return f"{event['count']:,} times {describe_event(event['event'], noise=noise)}"
        case {"events": [*parts]}:
            return " and ".join(describe_event(part, noise=noise) for part in parts)
        case {"type": "EpsilonDeltaDpEvent"}:
            return f"a failure of probability {event['delta']:.6g}"
        case {"type": "GaussianDpEvent" | "LaplaceDpEvent", "noise_multiplier": multiplier}:
            law = event["type"].removesuffix("DpEvent")
            return f"{law} noise of multiplier {multiplier:.6g}" if noise else f"{law} noise"
    return f"a {event['type']}"


def quote_names(names: Iterable[str]) -> str:
    return (", ".join(repr(name[:80]) for name in names) or "none")[:LONGEST]
