"""Keep the plan of each kind of run, by the planner of today, for the test that it is raised when plans change.

python tests/verification/keep_plans.py
"""

import json
import os
import tempfile
from pathlib import Path

from kinds import KINDS, planned, write_files

from lightning_dpgen.privacy.accounting.events import encode
from lightning_dpgen.privacy.planning.calibration import PLANNER

KEPT = Path(__file__).with_name("kept_plans.json")


def kept_stages(plan):
    """Return the stages of a plan as they are kept."""
    return [{"name": name, "event": encode(event)} for name, event in plan.stage_events]


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files(Path(folder))
        plans = {kind: kept_stages(planned(words)[1]) for kind, words in KINDS.items()}
    KEPT.write_text(json.dumps({"planner": PLANNER, "plans": plans}, indent=1) + "\n")


if __name__ == "__main__":
    main()
