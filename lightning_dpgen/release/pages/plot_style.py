"""The look of matplotlib's plots."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import rc_context

REAL, SYNTHETIC, SOFT, LINE = "#aab3bf", "#1f5fa8", "#5b6675", "#dfe3e8"
# The same on a dark page. A picture that is drawn as SVG asks by itself how the reader's screen is.
_DARK = {REAL: "#77828f", SYNTHETIC: "#7db3f0", SOFT: "#a6b1c0", LINE: "#4a5566"}
DARK_RULES = (
    "@media screen and (prefers-color-scheme: dark) { text { fill: #e4e9f0 } "
    + " ".join(
        f'[style*="fill: {light}"] {{ fill: {dark} !important }} [style*="stroke: {light}"] {{ stroke: {dark} !important }}'
        for light, dark in _DARK.items()
    )
    + " }"
)
# Names of columns, channels and times are never read as formulas.
_STYLE = {
    "text.parse_math": False, "font.family": "sans-serif", "axes.edgecolor": LINE, "axes.labelcolor": SOFT,
    "axes.titlecolor": SOFT, "axes.titlelocation": "left", "xtick.color": SOFT, "ytick.color": SOFT,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
}  # fmt: skip


@contextmanager
def plot_style(**settings: object) -> Iterator[None]:
    """Draw in this style, without warnings of letters that the font lacks.

    Args:
        settings: of matplotlib, with underscores for dots, as in ``font_size=9``.
    """
    changed = {name.replace("_", "."): value for name, value in settings.items()}
    with rc_context(_STYLE | changed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield
