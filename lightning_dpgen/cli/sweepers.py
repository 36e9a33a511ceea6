"""A sweeper that chooses by results is refused, in a line that holds the words of a charged selection over the same space.

The bound of a selection (Papernot and Steinke 2022) is about a secret number of trials, each drawn from one law whatever
others have shown. A sweeper of Optuna, Ax, Nevergrad or Orion draws each trial by the results of those before, and their
number is known; so its search space is taken over, and not its way through it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import OverrideParseException

from lightning_dpgen.common.nearest_word import suggest
from lightning_dpgen.data.declarations import members_of
from lightning_dpgen.specs.run import RunSpec
from lightning_dpgen.specs.spec import declared_settings
from lightning_dpgen.specs.usage_error import UsageError
from lightning_dpgen.specs.words import name_of, parse_word

_SWEEPER = ("hydra/sweeper", "hydra.sweeper")
_SWEEPERS = ("basic", "optuna", "ax", "nevergrad", "orion")
_PARAMETERS = "hydra.sweeper.params."
_TRIALS = ("hydra.sweeper.n_trials", "hydra.sweeper.budget", "hydra.sweeper.max_trials")
# Values in place of an interval.
_VALUES = 5


def refuse_sweepers(words: Sequence[str], hydra: Sequence[str]) -> None:
    """Refuse every sweeper but Hydra's own, which tries what is listed.

    Args:
        words: of settings.
        hydra: words for Hydra.

    Raises:
        UsageError: with the words to type instead.
    """
    asked = [word for word in hydra if name_of(word).startswith(_SWEEPER) and word != "hydra/sweeper=basic"]
    if not asked:
        return
    setting, _, sweeper = asked[0].partition("=")
    if setting == "hydra/sweeper" and sweeper not in _SWEEPERS and (near := suggest(sweeper, _SWEEPERS, f"{setting}={{}}")):
        raise UsageError(f"{asked[0]}: there is none{near}")
    trials = [word.partition("=")[2] for word in asked if name_of(word) in _TRIALS]
    space = [f"{name_of(word)[len(_PARAMETERS) :]}={word.partition('=')[2]}" for word in asked if _PARAMETERS in word]
    typed = [as_list(word) for word in (*words, *space)]
    mean = f" privacy.selection_mean={trials[-1]}" if trials and trials[-1].isdecimal() else ""
    raise UsageError(
        f"{asked[0]}: a sweeper that chooses by results would select on the records without paying for it, and no bound "
        "covers trials that follow from others; a charged selection draws them from the same space: dpgen train "
        f"{shlex.join(typed)}{' ' if typed else ''}privacy.selection=logarithmic{mean} privacy.selection_score=fidelity "
        "privacy.fidelity_share=0.1"
    )


def as_list(word: str) -> str:
    """Return a word with a few values in place of an interval, equally far apart, in the logarithm where one asks for it.

    Example:
        >>> as_list("model.lr=tag(log, interval(0.001, 0.1))"), as_list("split.k=interval(2, 10)"), as_list("seed=1")
        ('model.lr=0.001,0.00316,0.01,0.0316,0.1', 'split.k=2,4,6,8,10', 'seed=1')
    """
    try:
        interval = parse_word(word).value()
    except OverrideParseException:
        return word
    if not isinstance(interval, IntervalSweep):
        return word
    low, high = interval.start, interval.end
    parts = [step / (_VALUES - 1) for step in range(_VALUES)]
    if "log" in interval.tags and low > 0.0:
        values = [math.exp(math.log(low) + part * (math.log(high) - math.log(low))) for part in parts]
    else:
        values = [low + part * (high - low) for part in parts]
    fields = declared_settings(RunSpec).get(name_of(word), [])
    whole = any(int in members_of(field.annotation) for field in fields)
    texts = dict.fromkeys(str(round(value)) if whole else f"{value:.3g}" for value in values)
    return f"{name_of(word)}={','.join(texts)}"
