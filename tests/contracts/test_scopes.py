"""The change that one record can make where bounds are for layers, components or groups, or a lot has several terms."""

import pytest
from contracts.laws.clipping import (
    RULES,
    a_large_person_costs_all_that_was_paid,
    no_person_costs_more_than_the_access,
    no_record_costs_a_mixture_more_than_the_access,
    no_record_costs_its_group_more_than_the_access,
    no_record_costs_layers_more_than_the_access,
)

from lightning_dpgen.gradients.clipping import Fixed, PerLayer, PerPerson, Quantile, Smoothed


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_of_a_group(rule):
    no_record_costs_its_group_more_than_the_access(rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_that_reaches_all_layers(rule):
    no_record_costs_layers_more_than_the_access(rule)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_record_of_a_component(rule):
    no_record_costs_a_mixture_more_than_the_access(rule)


OTHER_RULES = {
    "uneven quantile": Quantile(0.5, target=0.9, share=0.2),
    "for each layer": PerLayer(Fixed(0.5)),
    "smoothed for each layer": PerLayer(Smoothed(RULES["dpnorm"])),
}


@pytest.mark.parametrize("name", [*RULES, *OTHER_RULES])
def test_a_person_whose_gradients_are_summed(name):
    no_person_costs_more_than_the_access(PerPerson((RULES | OTHER_RULES)[name]))


@pytest.mark.parametrize("name", ["fixed", "dpnorm", "quantile"])
def test_a_person_whose_records_are_clipped_each(name):
    no_person_costs_more_than_the_access(RULES[name])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_large_person_costs_all_that_was_paid(rule):
    a_large_person_costs_all_that_was_paid(PerPerson(rule))
