"""The laws of whole runs, for every kind of run."""

import pytest
from contracts import whole_runs


@pytest.mark.parametrize("name", whole_runs.RUNS)
def test_a_release_follows_from_the_answers_of_mechanisms(name):
    whole_runs.given_the_answers_a_release_is_the_same(name)


@pytest.mark.parametrize("name", whole_runs.MEASURED)
def test_no_unit_costs_more_than_its_accesses(name):
    whole_runs.no_one_costs_a_run_more_than_its_accesses(name)


@pytest.mark.parametrize("name", whole_runs.MEASURED)
def test_what_is_noised_is_a_sum(name):
    whole_runs.what_a_run_noises_is_a_sum_over_its_records(name)
