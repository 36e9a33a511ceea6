"""The packages that the program `dpgen` needs and the engine does not, and the line that says how to install them.

``pip install lightning_dpgen`` installs what a private training needs, up to the verification of its weights. What reads
records of a user's files, makes models of them and draws charts comes with ``pip install 'lightning_dpgen[dpgen]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lazy_loader

from lightning_dpgen.privacy.errors import NotInstalled

# The modules of the packages of the extra.
OF_DPGEN = {
    "PIL", "dtaidistance", "duckdb", "hydra", "matplotlib", "omegaconf", "pandas", "pyarrow", "pydantic", "sklearn",
    "tensorboard", "threadpoolctl",
}  # fmt: skip


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Let an import within the block that lacks a package of the extra end in one line.

    Args:
        what: the part that imports it, as the subject of that line.

    Raises:
        NotInstalled: naming the package, and how to install it.

    Example:
        >>> with needing("dpgen train"):
        ...     raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        Traceback (most recent call last):
        lightning_dpgen.privacy.errors.NotInstalled: dpgen train needs pandas: pip install 'lightning_dpgen[dpgen]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OF_DPGEN:
            raise
        raise NotInstalled(f"{what} needs {package}: pip install 'lightning_dpgen[dpgen]'") from None


def attach(name: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names are imported when they are first asked for.

    Args:
        name, file: of the package, which has a stub beside it (`lazy_loader.attach_stub`).
    """
    load, listed, names = lazy_loader.attach_stub(name, file)

    def get(attribute: str) -> Any:
        with needing(f"{name}.{attribute}"):
            return load(attribute)

    return get, listed, names
