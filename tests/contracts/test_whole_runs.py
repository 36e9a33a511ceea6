"""The laws of whole runs, for every kind of run but those on which `test_broken_pipelines` has the law run first."""

import pytest
from contracts import whole_runs
from contracts.test_broken_pipelines import BROKEN


def _others(law, runs):
    laws = [law_of_case for case in BROKEN.values() for law_of_case in case.laws]
    broken = {law_of_case.args[0] for law_of_case in laws if getattr(law_of_case, "func", None) is law}
    assert broken <= set(runs)
    return [name for name in runs if name not in broken]


@pytest.mark.parametrize("name", _others(whole_runs.given_the_answers_a_release_is_the_same, whole_runs.RUNS))
def test_a_release_follows_from_the_answers_of_mechanisms(name):
    whole_runs.given_the_answers_a_release_is_the_same(name)


@pytest.mark.parametrize("name", _others(whole_runs.no_one_costs_a_run_more_than_its_accesses, whole_runs.MEASURED))
def test_no_unit_costs_more_than_its_accesses(name):
    whole_runs.no_one_costs_a_run_more_than_its_accesses(name)


@pytest.mark.parametrize("name", _others(whole_runs.what_a_run_noises_is_a_sum_over_its_records, whole_runs.MEASURED))
def test_what_is_noised_is_a_sum(name):
    whole_runs.what_a_run_noises_is_a_sum_over_its_records(name)
