"""Privacy that is spent: accesses, ledger, mechanisms (the only door to noise), accountant, plan, noise source."""

from typing import TYPE_CHECKING

from lightning_dpgen.lazy import lazy_names

if TYPE_CHECKING:
    from lightning_dpgen.privacy.access import Access as Access
    from lightning_dpgen.privacy.account import Account as Account
    from lightning_dpgen.privacy.accountant import Spent as Spent
    from lightning_dpgen.privacy.accountant import spent as spent
    from lightning_dpgen.privacy.calibration import make_first_plan as make_first_plan
    from lightning_dpgen.privacy.calibration import make_plan as make_plan
    from lightning_dpgen.privacy.calibration import make_rest as make_rest
    from lightning_dpgen.privacy.errors import BudgetTooSmall as BudgetTooSmall
    from lightning_dpgen.privacy.errors import DamagedState as DamagedState
    from lightning_dpgen.privacy.errors import LedgerError as LedgerError
    from lightning_dpgen.privacy.errors import NoiseMissing as NoiseMissing
    from lightning_dpgen.privacy.errors import PlanMismatch as PlanMismatch
    from lightning_dpgen.privacy.errors import PrivacyError as PrivacyError
    from lightning_dpgen.privacy.errors import RankLost as RankLost
    from lightning_dpgen.privacy.errors import RanksDiffer as RanksDiffer
    from lightning_dpgen.privacy.ledger import Ledger as Ledger
    from lightning_dpgen.privacy.mechanisms import discrete_laplace as discrete_laplace
    from lightning_dpgen.privacy.mechanisms import gaussian as gaussian
    from lightning_dpgen.privacy.mechanisms import laplace as laplace
    from lightning_dpgen.privacy.mechanisms import noisy_histogram as noisy_histogram
    from lightning_dpgen.privacy.mechanisms import report_noisy_max as report_noisy_max
    from lightning_dpgen.privacy.mechanisms import select_keys as select_keys
    from lightning_dpgen.privacy.mechanisms import spherical as spherical
    from lightning_dpgen.privacy.noise import PrivateStream as PrivateStream
    from lightning_dpgen.privacy.open_access import OpenAccess as OpenAccess
    from lightning_dpgen.privacy.plan import Plan as Plan
    from lightning_dpgen.privacy.plan import Stage as Stage
    from lightning_dpgen.privacy.stage_spec import StageSpec as StageSpec
    from lightning_dpgen.privacy.study import Study as Study
else:
    __all__, __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "access": ["Access"],
            "account": ["Account"],
            "accountant": ["Spent", "spent"],
            "calibration": ["make_first_plan", "make_plan", "make_rest"],
            "errors": [
                "BudgetTooSmall",
                "DamagedState",
                "LedgerError",
                "NoiseMissing",
                "PlanMismatch",
                "PrivacyError",
                "RankLost",
                "RanksDiffer",
            ],
            "ledger": ["Ledger"],
            "mechanisms": [
                "discrete_laplace",
                "gaussian",
                "laplace",
                "noisy_histogram",
                "report_noisy_max",
                "select_keys",
                "spherical",
            ],
            "noise": ["PrivateStream"],
            "open_access": ["OpenAccess"],
            "plan": ["Plan", "Stage"],
            "stage_spec": ["StageSpec"],
            "study": ["Study"],
        },
    )
