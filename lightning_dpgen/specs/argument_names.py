"""Arguments that a message of the library names, as the settings that give them."""

from __future__ import annotations

import re

from lightning_dpgen.specs.spec import Spec, names_of

_AS_TYPED = {"None": "null", "True": "true", "False": "false"}


def as_settings(message: object, group: str, spec: Spec | type[Spec]) -> str:
    """Return a message whose arguments, such as `length=3`, are named as settings of a group, with null, true and false.

    An argument begins the message, or stands behind a blank or a bracket, so names within values are left alone.

    Args:
        message: text, or an error.
        group: the group of settings.
        spec: the settings, or their class.

    Example:
        >>> from lightning_dpgen.specs.split import SplitSpec
        >>> as_settings("k=0: expected 1 or more, or 'x.k=1' (dimensions=None)", "split", SplitSpec)
        "split.k=0: expected 1 or more, or 'x.k=1' (split.dimensions=null)"
    """
    kind = spec if isinstance(spec, type) else type(spec)
    argument = re.compile(rf"(?:^|(?<=[\s(]))({'|'.join(map(re.escape, names_of(kind)))})=(None\b|True\b|False\b)?")
    return argument.sub(lambda found: f"{group}.{found[1]}={_AS_TYPED.get(found[2], '')}", str(message))
