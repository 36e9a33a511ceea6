"""The report page and the card of a release, rendered from its certificate and what else it shows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lightning_dpgen.privacy.accountant import round_up

_TEMPLATES = Path(__file__).parent / "templates"


def write_pages(folder: Path, certificate: dict[str, Any], kind: str, **shown: Any) -> None:
    """Write ``report.html`` (one self-contained page, no script, nothing loaded from elsewhere) and the card ``README.md``.

    Args:
        folder: where.
        certificate: its fields are shown, but no hash, since the certificate hashes both pages.
        kind: of release: ``synthetic`` or ``projected``.
        shown: what else the pages of this kind show.
    """
    for name, suffix in (("report.html", "html"), ("README.md", "md")):
        page = _environment(autoescape=suffix == "html").get_template(f"{kind}.{suffix}.jinja")
        text = page.render(c=certificate, mechanisms=_mechanisms(certificate), curve=_curve(certificate), **shown)
        (folder / name).write_text(text, encoding="utf-8")


def _environment(autoescape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["eps"] = lambda value: "none" if value is None else f"{round_up(value, 4):g}"
    return environment


def describe(tree: dict[str, Any]) -> str:
    """An event tree in words.

    Example:
        >>> describe({"type": "SelfComposedDpEvent", "count": 3,
        ...           "event": {"type": "GaussianDpEvent", "noise_multiplier": 2.0}})
        '3 times: Gaussian noise, multiplier 2'
    """
    kind = tree["type"]
    if kind == "GaussianDpEvent":
        return f"Gaussian noise, multiplier {tree['noise_multiplier']:.4g}"
    if kind == "PoissonSampledDpEvent":
        return f"each record with probability {tree['sampling_probability']:.4g}, {describe(tree['event'])}"
    if kind == "SelfComposedDpEvent":
        return f"{tree['count']:,} times: {describe(tree['event'])}"
    if kind == "ComposedDpEvent":
        return "; ".join(describe(event) for event in tree["events"])
    if kind == "LaplaceDpEvent":
        # What is pure in another way (spherical or discrete noise, a noisy maximum) is written so too.
        return f"pure noise, accounted for as Laplace noise of multiplier {tree['noise_multiplier']:.4g}"
    if kind == "EpsilonDeltaDpEvent":
        return f"what one record alone holds is seen with probability at most {tree['delta']:.4g}"
    if kind == "NonPrivateDpEvent":
        return "no noise"
    return kind


def _mechanisms(certificate: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": s["name"], "what": describe(s["event"]), "epsilon": s["epsilon"]} for s in certificate["stages"]
    ]


def _curve(certificate: dict[str, Any]) -> Markup | None:
    """The certificate's epsilons at other deltas as a small SVG; None where there are none."""
    points = [(-math.log10(delta), epsilon) for delta, epsilon in (certificate["also"] or {}).get("curve", [])]
    if len(points) < 2:
        return None
    top = max(epsilon for _, epsilon in points) * 1.15
    width, height, left, bottom = 520, 220, 48, 34

    def x(exponent: float) -> float:
        return left + (exponent - points[0][0]) / (points[-1][0] - points[0][0]) * (width - left - 26)

    def y(epsilon: float) -> float:
        return (height - bottom) * (1 - epsilon / top) + 6

    line = " ".join(f"{x(e):.1f},{y(epsilon):.1f}" for e, epsilon in points)
    ticks = "".join(
        f'<text x="{x(e):.1f}" y="{height - 14}" text-anchor="middle">1e-{e:.0f}</text>' for e, _ in points
    )
    levels = "".join(
        f'<line x1="{left}" x2="{width - 26}" y1="{y(v):.1f}" y2="{y(v):.1f}" class="grid"/>'
        f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.3g}</text>'
        for v in (0.0, top / 1.15 / 2, top / 1.15)
    )
    return Markup(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="epsilon over delta">{levels}'
        f'<polyline points="{line}"/>{ticks}<text x="{width / 2}" y="{height}" text-anchor="middle">delta</text></svg>'
    )
