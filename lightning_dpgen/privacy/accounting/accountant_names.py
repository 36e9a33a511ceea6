"""The accountants by name, and the reasons for which others are refused."""

from __future__ import annotations

PLD, RDP = "pld", "rdp"
ACCOUNTANTS_BY_NAME = (PLD, RDP)
# Names that users of Opacus and dp-accounting know, each with the reason for which it answers for no certificate.
_REFUSED = {
    "prv": (
        "Opacus' accountant bounds the loss of a record removed and not of one added, and no bound covers the rounding of "
        f"its sums: take {PLD!r}, which is as tight"
    ),
    "gdp": (
        "a central limit theorem gives an approximation and no upper bound, below the true epsilon for some runs: take "
        f"{PLD!r}, which is as tight and holds"
    ),
    "zcdp": f"one number says less than the Renyi moments of all orders: take {RDP!r}, or {PLD!r}, which is tighter",
    "moments": f"moments of the loss and Renyi moments are the same account, whose name here is {RDP!r}",
}
_REFUSED |= {"clt": _REFUSED["gdp"], "ma": _REFUSED["moments"]}


def check_accountant(name: object) -> None:
    """Refuse a name that is of no accountant whose answer is an upper bound.

    Raises:
        ValueError: saying why, and which to take.

    Example:
        >>> check_accountant("pld")
        >>> check_accountant("gdp")
        Traceback (most recent call last):
        ValueError: accountant='gdp': a central limit theorem gives an approximation and no upper bound, ...
    """
    if isinstance(name, str) and name in ACCOUNTANTS_BY_NAME:
        return
    why = _REFUSED.get(name) if isinstance(name, str) else None
    expected = f"expected {PLD!r} (privacy loss distributions, the tightest) or {RDP!r} (Renyi moments)"
    raise ValueError(f"accountant={str(name)[:60]!r}: {why or expected}")
