"""The change that one record can make where bounds are for layers, components or groups, or a lot has several terms."""

import pytest
from contracts.laws.clipping import (
    RULES,
    no_record_costs_a_mixture_more_than_the_access,
    no_record_costs_its_group_more_than_the_access,
    no_record_costs_layers_more_than_the_access,
    no_record_costs_several_terms_more_than_the_access,
)
from contracts.laws.gradients import groups_are_independent_of_who_else_is_there, the_norm_of_a_group_is_its_own


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_of_a_group(rule):
    no_record_costs_its_group_more_than_the_access(rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_that_reaches_all_layers(rule):
    no_record_costs_layers_more_than_the_access(rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_of_a_component(rule):
    no_record_costs_a_mixture_more_than_the_access(rule)


def test_a_record_of_several_terms():
    no_record_costs_several_terms_more_than_the_access()


def test_the_norm_of_a_group_is_its_own():
    the_norm_of_a_group_is_its_own()


def test_groups_are_independent_of_who_else_is_there():
    groups_are_independent_of_who_else_is_there()
