"""The errors that concern privacy."""


class PrivacyError(Exception):
    """Base of the errors of this package that concern privacy."""


class BudgetTooSmall(PrivacyError):
    """The budget does not buy what was asked for; the message says what would fit."""


class PlanMismatch(PrivacyError):
    """The draws are not those that the plan promised: a fault of the program, never of the data."""


class LedgerError(PrivacyError):
    """Noise was asked for outside an open access, twice, after the end of the run, or for records spent already."""


class OtherNoise(LedgerError):
    """A run goes on with noise of another source, or of another seed, than it began with."""


class DamagedState(PrivacyError):
    """The saved state of an interrupted run cannot be read."""


class NoiseMissing(PrivacyError, RuntimeError):
    """Noise of another size than was planned reached a parameter; nothing has been spent."""


class RankLost(PrivacyError):
    """One of the processes that make a run together has stopped; the ledger holds whatever was drawn."""


class RanksDiffer(PrivacyError):
    """The processes that make a run together are not alike."""


class NotInstalled(PrivacyError, ImportError):
    """A package is not installed: one that a part of this software needs, or whose version a certificate names."""
