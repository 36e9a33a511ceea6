"""Each function that the package lists for the installed torch is called again, with other records beside each (slow)."""

import pytest
from search_torch import search_all

from lightning_dpgen.gradients.isolation import unknown_functions

pytestmark = pytest.mark.slow


def test_no_record_changes_the_result_of_another():
    finding = search_all()
    listed = unknown_functions.read_listed()[unknown_functions.MINOR]
    assert sum(finding.accepted.values()) > 10_000
    assert not listed & finding.blamed
    assert listed <= set(finding.accepted), "run python -m tests.gradients.search_torch"
