"""A run below a reference that is not for a record replaced: nothing is stated, nor charged, as if it were."""

import pytest
from contracts import references


@pytest.mark.parametrize("kind", references.FOLLOWING)
def test_its_certificate_says_nothing_of_a_record_replaced(kind):
    references.its_certificate_says_nothing_of_a_record_replaced(kind)


@pytest.mark.parametrize("kind", references.FOLLOWING)
def test_a_study_of_records_replaced_charges_its_pair(kind):
    references.a_study_of_records_replaced_charges_its_pair(kind)
