"""The version of the package, as it was installed."""

from importlib.metadata import version

__version__ = version("lightning_dpgen")
