"""Pipelines broken by changing one line of the shipped code: each is caught by the laws that are named beside it.

A case names a function, one of its lines, and the text that replaces it; a line that is no longer in the function is an
error of the case. The law runs first on the shipped code, where it must hold, and then on the broken code. The code of the
function itself is replaced, so that it is broken wherever it was imported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from contracts import killed_trials, references, whole_runs
from contracts.changes import FACTORS, NOISE, change
from contracts.laws.accounts import (
    a_run_is_charged_up_to_a_time_that_its_plan_named,
    a_sampled_access_needs_a_lot,
    each_noise_is_drawn_once_and_only_while_open,
    each_noise_of_an_access_is_counted,
    stopping_early_does_not_lower_what_is_certified,
    the_line_is_on_disk_before_the_noise_is_drawn,
)
from contracts.laws.clipping import (
    RULES,
    given_the_answers_a_mean_embedding_is_the_same_for_any_lot,
    given_the_answers_a_step_is_the_same_for_any_lot,
    no_person_costs_a_group_more_than_the_access,
    no_person_costs_more_than_the_access,
    no_record_costs_a_mixture_more_than_the_access,
    no_record_costs_its_group_more_than_the_access,
    no_record_costs_layers_more_than_the_access,
    no_record_costs_more_than_the_access,
    no_record_costs_several_terms_more_than_the_access,
    the_histogram_counts_each_finite_record_once,
    what_a_lot_with_an_embedding_noises_is_a_sum_over_its_records,
)
from contracts.laws.clustering import (
    given_the_answers_a_split_is_the_same_for_any_records,
    no_record_costs_a_split_more_than_its_accesses,
    the_split_asks_for_what_its_plan_says,
    what_a_split_noises_is_a_sum_over_the_records,
)
from contracts.laws.discovery import (
    keys_come_sorted,
    keys_of_one_record_are_seen_with_its_delta,
    no_person_costs_a_choice_more_than_its_access,
    no_person_costs_a_discovery_more_than_its_access,
    no_person_costs_a_distribution_more_than_its_access,
)
from contracts.laws.gradients import (
    a_norm_is_that_of_what_the_record_adds,
    a_record_in_front_changes_no_other,
    a_record_that_is_not_finite_adds_exact_zeros,
    groups_are_independent_of_who_else_is_there,
    the_norm_of_a_group_is_its_own,
)
from contracts.laws.lots import (
    a_person_is_in_a_lot_with_all_records_or_none,
    a_sample_has_each_record_at_its_own_place,
    inclusion_is_independent_with_the_public_rate,
    the_rate_is_the_plans_however_many_records_there_are,
)
from contracts.laws.manual import (
    an_optimizer_that_may_follow_records_is_private,
    each_step_on_records_is_an_access,
    no_record_is_seen_but_alone,
)
from contracts.laws.metrics import (
    a_far_record_costs_a_bought_mean_all_that_was_paid,
    given_the_answers_a_fit_with_bought_numbers_is_the_same_for_any_records,
    given_the_answers_bought_means_are_the_same_for_any_lot,
    no_record_costs_a_bought_mean_more_than_its_access,
    no_record_costs_a_fit_with_bought_numbers_more_than_its_accesses,
    what_is_bought_of_a_lot_is_a_sum_over_its_records,
)
from contracts.laws.noise import (
    a_step_of_persons_has_the_noise_of_one_bound,
    every_component_is_noised_alike_also_without_records,
    every_mechanism_is_noised_for_all_records_of_a_person,
    no_number_of_the_stream_is_handed_out_twice,
    no_seed_reaches_the_private_stream,
    noise_is_multiplier_times_sensitivity,
    noise_is_that_of_all_records_of_a_person,
    steps_have_noise_of_their_own,
    the_key_of_a_gpu_is_the_operating_systems,
)
from contracts.laws.projections import a_replaced_row_costs_at_most_epsilon, no_sign_vector_passes_the_dual_norm
from contracts.laws.steps import (
    a_lot_is_spent_once,
    a_lot_that_was_not_drawn_is_refused,
    a_record_takes_part_in_its_turns_alone,
    a_rehearsal_notices_noise_of_another_size,
    a_step_is_one_access,
    a_step_takes_no_more_records_than_were_drawn,
    without_privacy_it_is_descent_on_the_sum_over_the_expected_lot,
)
from contracts.laws.studies import (
    a_stopped_run_gives_nothing_back_under_pairs,
    a_study_tells_no_less_than_its_runs_cost_together,
    records_that_differ_in_a_byte_are_others,
    the_ledger_is_stopped_before_its_study,
    what_a_stopped_run_has_drawn_stays_counted,
    what_a_study_states_at_its_orders_fails_with_its_delta,
)

from lightning_dpgen.clustering import kmeans
from lightning_dpgen.clustering.features import Directions
from lightning_dpgen.data.discovery import bounds_and_keys, counts, value_tree
from lightning_dpgen.gradients import clipping, engines, factors, privatize, scopes
from lightning_dpgen.gradients import per_sample_gradients as records
from lightning_dpgen.gradients.clipping import PerPerson
from lightning_dpgen.gradients.embedding_gradients import EmbeddingGradients
from lightning_dpgen.gradients.groups import Groups
from lightning_dpgen.measure import label_gradients
from lightning_dpgen.measure.baskets import ItemsBySize, PairsBySize
from lightning_dpgen.measure.classifier import Spreads
from lightning_dpgen.measure.crossings import CrossingCounts
from lightning_dpgen.measure.statistics import Marginals, SecondMoments
from lightning_dpgen.measure.workload import Workload
from lightning_dpgen.metrics import fidelity
from lightning_dpgen.models.vae import StackedVAE
from lightning_dpgen.optim.private import PrivateOptimizer
from lightning_dpgen.plugins.manual_module import ManualModule
from lightning_dpgen.plugins.manual_runs import Outline
from lightning_dpgen.plugins.noisy_metrics import BoundedNumbers, LotMetrics
from lightning_dpgen.plugins.private_validation import ValidationPasses
from lightning_dpgen.plugins.record_trace import RecordTrace
from lightning_dpgen.privacy import chain, drawn_noise, mechanisms, reconcile
from lightning_dpgen.privacy.access import Access, IssuedLots, OpenAccess
from lightning_dpgen.privacy.account import Account
from lightning_dpgen.privacy.noise import coins
from lightning_dpgen.privacy.noise.stream import PrivateStream
from lightning_dpgen.privacy.plan import Plan
from lightning_dpgen.privacy.sampling.correlated_noise import CorrelatedState
from lightning_dpgen.privacy.sampling.samplers import Cyclic, Poisson
from lightning_dpgen.privacy.studies import entry, study, study_total
from lightning_dpgen.projection import sensitivity
from lightning_dpgen.projection.sensitivity import Noise
from lightning_dpgen.projection.steps import Steps
from lightning_dpgen.release import certificate
from lightning_dpgen.runs import discover as first_pass
from lightning_dpgen.runs import identity
from lightning_dpgen.runs import select as selection
from lightning_dpgen.runs import train as trained_run
from lightning_dpgen.sampling.lots import PoissonLots


@dataclass(frozen=True)
class Broken:
    """A line of a function with its replacement (several, where a line moves), and the laws that must notice."""

    function: Callable
    lines: dict[str, str]
    laws: tuple[Callable[[], None], ...]


DPNORM = RULES["dpnorm"]
WRITE = "self._write(access, ahead=min(block, planned.count - step))"

lot_costs = no_record_costs_more_than_the_access
lot_costs_with_a_histogram = functools.partial(no_record_costs_more_than_the_access, DPNORM)
person_costs = no_person_costs_more_than_the_access
person_costs_by_record = functools.partial(no_person_costs_more_than_the_access, RULES["fixed"])
person_counts_by_record = functools.partial(no_person_costs_more_than_the_access, DPNORM)
split_costs = no_record_costs_a_split_more_than_its_accesses
split_adds_up = what_a_split_noises_is_a_sum_over_the_records
split_answers = given_the_answers_a_split_is_the_same_for_any_records
step_answers = given_the_answers_a_step_is_the_same_for_any_lot
step_noise = every_component_is_noised_alike_also_without_records
group_costs = no_record_costs_its_group_more_than_the_access
layers_cost = functools.partial(no_record_costs_layers_more_than_the_access, DPNORM)
mechanism_noise = noise_is_multiplier_times_sensitivity
float64_noise = functools.partial(noise_is_multiplier_times_sensitivity, dtype=torch.float64)
split_noise = the_split_asks_for_what_its_plan_says
not_finite = a_record_that_is_not_finite_adds_exact_zeros
in_front = a_record_in_front_changes_no_other
constant_divisor = without_privacy_it_is_descent_on_the_sum_over_the_expected_lot
inclusion = functools.partial(inclusion_is_independent_with_the_public_rate, draws=6_000)
planned_rate = the_rate_is_the_plans_however_many_records_there_are
line_first = the_line_is_on_disk_before_the_noise_is_drawn
replaced = a_replaced_row_costs_at_most_epsilon
key_seen = keys_of_one_record_are_seen_with_its_delta
discovery_costs = no_person_costs_a_discovery_more_than_its_access
distribution_costs = no_person_costs_a_distribution_more_than_its_access
same_release = functools.partial(whole_runs.given_the_answers_a_release_is_the_same, "pictures")
same_release_of_a_network = functools.partial(
    whole_runs.given_the_answers_a_release_is_the_same, "pictures by an autoencoder"
)
baskets_cost = functools.partial(whole_runs.no_one_costs_a_run_more_than_its_accesses, "baskets of customers")
classifiers_cost = functools.partial(whole_runs.no_one_costs_a_run_more_than_its_accesses, "pictures and their classifier")
persons_cost = functools.partial(whole_runs.no_one_costs_a_run_more_than_its_accesses, "a table of persons")
persons_add_up = functools.partial(whole_runs.what_a_run_noises_is_a_sum_over_its_records, "a table of persons")
crossed_cost = functools.partial(whole_runs.no_one_costs_a_run_more_than_its_accesses, "a table that is crossed")
wide_cost = functools.partial(whole_runs.no_one_costs_a_run_more_than_its_accesses, "a table of many numbers and values")
embedding_adds_up = what_a_lot_with_an_embedding_noises_is_a_sum_over_its_records
handed_out_once = no_number_of_the_stream_is_handed_out_twice
study_costs = a_study_tells_no_less_than_its_runs_cost_together
orders_fail = what_a_study_states_at_its_orders_fails_with_its_delta
killed_trial = killed_trials.a_killed_trial_costs_what_was_planned_or_fails
for_all_records = every_mechanism_is_noised_for_all_records_of_a_person
stopping_early = stopping_early_does_not_lower_what_is_certified
bought_costs = no_record_costs_a_bought_mean_more_than_its_access
bought_all = a_far_record_costs_a_bought_mean_all_that_was_paid
bought_adds_up = what_is_bought_of_a_lot_is_a_sum_over_its_records
bought_answers = given_the_answers_bought_means_are_the_same_for_any_lot
fit_costs = no_record_costs_a_fit_with_bought_numbers_more_than_its_accesses
fit_answers = given_the_answers_a_fit_with_bought_numbers_is_the_same_for_any_records
named_time = a_run_is_charged_up_to_a_time_that_its_plan_named
pairs_stay_whole = a_stopped_run_gives_nothing_back_under_pairs
ledger_first = the_ledger_is_stopped_before_its_study
drawn_stays_counted = what_a_stopped_run_has_drawn_stays_counted

BROKEN = {
    "no noise": Broken(mechanisms.gaussian, {NOISE: "pass"}, (mechanism_noise, step_noise)),
    "no noise on the gradient": Broken(
        privatize.privatize,
        {"""gaussian(
                access,
                "gradient",
                out.flat,
                sensitivity=sensitivity,
                per_person=True,
                of_shard=out.sharded,
                largest=largest,
            )""": 'access.consume("gradient")'},
        (step_noise, step_answers),
    ),
    "no noise on the first mean of the split": Broken(
        kmeans.private_split,
        {'rounded_gaussian(access, "sum", exact["sum"], unit=kept.unit, sensitivity=FEATURE_NORM)':
         '(access.consume("sum"), exact["sum"].double() * kept.unit)[1]'},
        (split_noise,),
    ),
    "no noise on the second moments of the split": Broken(
        kmeans.private_split,
        {'access, "moments", exact["moments"], unit=kept.unit_of_moments, sensitivity=FEATURE_NORM**2':
         'access, "moments", exact["moments"], unit=kept.unit_of_moments, sensitivity=1e-6'},
        (split_noise,),
    ),
    "records of the split that are not of length 1": Broken(
        Directions._of, {"(LARGEST / norms)": "LARGEST"}, (split_costs,)
    ),
    "noise half as large": Broken(
        mechanisms.gaussian, {NOISE: NOISE.replace("deviation", "0.5 * deviation")}, (mechanism_noise, step_noise)
    ),
    "noise of one record for a person with several": Broken(
        mechanisms.gaussian,
        {"* (1 if per_person else access.max_rows)": ""},
        (noise_is_that_of_all_records_of_a_person,),
    ),
    "records of a person clipped each, with the noise of one": Broken(
        records.PerSampleGradients.of_persons,
        {"self._factors, self._layers, persons.count, self.draw, partition=persons, of_unit=True":
         "self._factors, self._layers, self._size, self.draw, of_unit=True"},
        (person_costs, functools.partial(no_person_costs_more_than_the_access, PerPerson(DPNORM))),
    ),
    "records of a person clipped each, with the reach of one": Broken(
        privatize.privatize, {"reach *= access.max_rows": "pass"}, (person_costs_by_record,)
    ),
    "a person counted once for each record in a histogram": Broken(
        clipping.DPNorm.bounds, {"per_person=norms.of_unit": "per_person=True"}, (person_counts_by_record,)
    ),
    "a person counted for less than a quantile says": Broken(
        clipping.Quantile.bounds,
        {"max(-above, whole + above)": "min(-above, whole + above)"},
        (functools.partial(no_person_costs_more_than_the_access, PerPerson(clipping.Quantile(0.5, 0.9, share=0.2))),),
    ),
    "noise of all records of a person beside the sum of one": Broken(
        records.PerSampleGradients.of_persons,
        {"partition=persons, of_unit=True": "partition=persons"},
        (a_step_of_persons_has_the_noise_of_one_bound,),
    ),
    "records of a person in groups of their own": Broken(
        engines._groups,
        {"stream.integers(lot.units, count)": "stream.integers(len(lot), count)",
         "index[lot.persons.to(device)]": "index"},
        (no_person_costs_a_group_more_than_the_access,),
    ),
    "records of a person drawn one by one": Broken(
        PoissonLots._draw,
        {"sample(self._stage, self._units, rows, number)": "sample(self._stage, len(self._store))"},
        (a_person_is_in_a_lot_with_all_records_or_none,),
    ),
    "noise half as large in float32": Broken(
        PrivateStream._box_muller,
        {"out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation)":
         "out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation / 2)"},
        (mechanism_noise, step_noise),
    ),
    "noise half as large in float64": Broken(
        PrivateStream._box_muller,
        {"out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation)":
         "out[:half].addcmul_(torch.cos(angle, out=wave), radius, value=deviation / (2 if bits > 31 else 1))"},
        (float64_noise,),
    ),
    "noise not scaled by the bound": Broken(
        privatize.privatize, {"rule.scope.sensitivity(bounds) * (reach": "1.0 * (reach"}, (step_noise,)
    ),
    "noise for half the bound": Broken(
        privatize.privatize,
        {"rule.scope.sensitivity(bounds) * (reach": "rule.scope.sensitivity(bounds) / 2 * (reach"},
        (step_noise, lot_costs),
    ),
    "noise for half a record of the split": Broken(
        kmeans.private_split,
        {'exact["means"], unit=unit, sensitivity=radius)': 'exact["means"], unit=unit, sensitivity=radius / 2)'},
        (split_noise, split_costs),
    ),
    "the same noise in every step": Broken(
        PrivateStream.add_normal_, {"flat = out.view(-1)": "flat = out.view(-1); self._seed = 0; self._key()"},
        (steps_have_noise_of_their_own,),
    ),
    "missing clip": Broken(
        privatize.clipped_weights,
        {FACTORS: "factors = lambda norms, bound: torch.ones_like(norms)"},
        (lot_costs, lot_costs_with_a_histogram),
    ),
    "missing clip of the records of the split": Broken(
        kmeans.clipped_sums, {"(whole[long] * (finer * factors)[:, None]).trunc_() / finer": "whole[long]"}, (split_costs,)
    ),
    "clip by twice the bound": Broken(
        privatize.clipped_weights, {FACTORS: "factors = lambda norms, bound: rule.factors(norms, 2 * bound)"}, (lot_costs,)
    ),
    "clip by the largest bound and not by the one that was chosen": Broken(
        privatize.clipped_weights,
        {FACTORS: 'factors = lambda norms, bound: rule.factors(norms, getattr(rule, "c_max", bound))'},
        (lot_costs_with_a_histogram,),
    ),
    "clip by a norm without the bias": Broken(
        records._squares,
        {"else factors.norms()).double()": "else factors.norms()).double() * (factors.materialise().dim() > 3)"},
        (a_norm_is_that_of_what_the_record_adds,),
    ),
    "clip by a norm of one factor of two": Broken(
        records._products, {"factors.mul_(squares.index_select(0, _places(tuple(right), device)))": "factors"},
        (functools.partial(a_norm_is_that_of_what_the_record_adds, dtype=torch.float32),),
    ),
    "weight of a gradient that is not finite not silenced": Broken(
        clipping.clip_weights, {"return weights.masked_fill_(~(norms < largest), 0.0)": "return weights"}, (not_finite,)
    ),
    "product with a gradient that is not finite not silenced": Broken(
        factors.RankOne.weighted_sum, {"_silence(self.right, silenced)": "self.right"}, (not_finite,)
    ),
    "held gradient that is not finite not silenced": Broken(
        factors.Dense.weighted_sum,
        {"flat = _silence(self.gradient, silenced)": "flat = self.gradient"},
        (functools.partial(not_finite, "func"), not_finite),
    ),
    "private stream keyed from torch.manual_seed": Broken(
        PrivateStream._key, {"else Keystream()": "else np.random.PCG64DXSM(torch.initial_seed())"},
        (no_seed_reaches_the_private_stream,),
    ),
    "private stream keyed from a constant": Broken(
        PrivateStream._key, {"else Keystream()": "else np.random.PCG64DXSM(0)"}, (no_seed_reaches_the_private_stream,)
    ),
    "lots sampled from a constant key": Broken(
        PrivateStream._key, {"else np.random.PCG64DXSM()": "else np.random.PCG64DXSM(0)"},
        (no_seed_reaches_the_private_stream,),
    ),
    "private stream of a GPU keyed from torch.manual_seed": Broken(
        PrivateStream._key_of_device, {'int.from_bytes(os.urandom(8), "little")': "torch.initial_seed()"},
        (the_key_of_a_gpu_is_the_operating_systems,),
    ),
    "lots of fixed size": Broken(
        PrivateStream.poisson_sample,
        {"size = random.binomial(population, rate)": "size = round(population * rate)"},
        (inclusion,),
    ),
    "lots of neighbours in the file": Broken(
        PrivateStream.poisson_sample,
        {"random.choice(population, size=size, replace=False, shuffle=False)":
         "(random.integers(population) + np.arange(size)) % population"},
        (inclusion,),
    ),
    "rate inferred from the length of the data": Broken(
        Poisson.draw,
        {"poisson_sample(units, self.sample_rate)": "poisson_sample(units, min(1.0, 8.0 / units))"},
        (planned_rate,),
    ),
    "shared stream, numbers by position": Broken(
        engines.term_gradients,
        {"noise = stream.normal((size, term.noise), dtype=some.dtype, device=some.device)":
         "public = torch.Generator().manual_seed(0); "
         "noise = torch.randn(len(lot), term.noise, dtype=some.dtype, generator=public)"},
        (in_front, functools.partial(in_front, "func")),
    ),
    "shared stream, codes of the autoencoder": Broken(
        StackedVAE.closed_forms, {"normal_numbers, draw_offsets = noise.reshape(":
         "normal_numbers, draw_offsets = torch.randn_like(noise).reshape("},
        (in_front,),
    ),
    "loss divided by the size of the lot": Broken(
        StackedVAE.closed_forms, {"d_logits = cross_entropy_gradient(logits, _repeated(x, draws), self.schema.layout)":
         "d_logits = cross_entropy_gradient(logits, _repeated(x, draws), self.schema.layout) / len(x)"}, (in_front,)
    ),
    "a group's gradient counted once": Broken(
        privatize.privatize, {"* access.ranks.size, 2.0": "* access.ranks.size, 1.0"}, (group_costs,)
    ),
    "a histogram of groups noised like one of records": Broken(
        clipping.DPNorm.bounds, {"(2 if norms.grouped else 1)": "1"}, (group_costs,)
    ),
    "a count of groups noised like one of records": Broken(
        clipping.Quantile.bounds, {"(1.0 if norms.grouped else max(-above, whole + above) * _GRID)": "0.5"},
        (functools.partial(group_costs, RULES["quantile"]),),
    ),
    "layers noised like the longest of them": Broken(
        scopes.Layers.sensitivity, {"math.sqrt(sum(bound**2 for bound in bounds))": "max(bounds)"}, (layers_cost,)
    ),
    "a histogram a layer noised like one": Broken(
        clipping.DPNorm.bounds, {"math.sqrt(norms.touched * (": "math.sqrt(1 * ("}, (layers_cost,)
    ),
    "components noised like the shortest of them": Broken(
        scopes.Components.sensitivity, {"torch.tensor(bounds": "torch.tensor([min(bounds)] * len(bounds)"},
        (functools.partial(no_record_costs_a_mixture_more_than_the_access, RULES["dpnorm"]),),
    ),
    "terms noised like the longer of them": Broken(
        privatize.privatize, {"sensitivity = sensitivity + ": "sensitivity = "},
        (no_record_costs_several_terms_more_than_the_access,),
    ),
    "norms of groups by the size of the largest": Broken(
        Groups.of,
        {"products=products)": "few=pairs[0][1].shape[1] <= 64, products=products)"},
        (the_norm_of_a_group_is_its_own,),
    ),
    "room for the products of the largest group": Broken(
        Groups.of,
        {"products=products)": "products=None)"},
        (the_norm_of_a_group_is_its_own,),
    ),
    "one outer product for groups of one": Broken(
        Groups.of,
        {"sums = OuterSum(pairs, factors.shape, factors.view, products=products)":
         "sums = outer(pairs, factors.shape, factors.view)",
         'if isinstance(factors, RankOne | OuterSum):':
         "from lightning_dpgen.gradients.factors import outer\n    if isinstance(factors, RankOne | OuterSum):"},
        (the_norm_of_a_group_is_its_own,),
    ),
    "groups by position": Broken(
        engines._groups,
        {"torch.from_numpy(stream.integers(lot.units, count))": "(torch.arange(lot.units) % count)"},
        (groups_are_independent_of_who_else_is_there,),
    ),
    "true lot size as denominator": Broken(
        privatize.privatize, {"= expected_batch_size, 1.0": "= max(len(gradients.norms()), 1), 1.0"},
        (constant_divisor, step_noise),
    ),
    "bound chosen from exact norms": Broken(
        clipping.DPNorm.bounds,
        {"return tuple((mode + 1)": "return tuple(float(norms.columns[0].sum()) + (mode + 1)"},
        (step_answers,),
    ),
    "true number of records as denominator": Broken(
        kmeans.private_split,
        {'rounded_gaussian(access, "sum", exact["sum"],':
         'rounded_gaussian(access, "sum", exact["sum"] // max(len(records), 1) * n,'},
        (split_adds_up,),
    ),
    "histogram released exactly": Broken(
        mechanisms.noisy_histogram,
        {"return rounded_gaussian(access, name, counts, sensitivity=sensitivity, per_person=per_person)":
         "return (access.consume(name), counts.double())[1]"},
        (step_answers, the_histogram_counts_each_finite_record_once),
    ),
    "histogram noised beside what is released": Broken(
        mechanisms.noisy_histogram,
        {"return rounded_gaussian(access, name, counts, sensitivity=sensitivity, per_person=per_person)":
         "rounded_gaussian(access, name, counts.clone(), sensitivity=1.0); return counts.double()"},
        (step_answers,),
    ),
    "ledger line written after the noise": Broken(
        Account.open,
        {WRITE: "pass", "opened._check_used_up()": f"opened._check_used_up(); {WRITE}"},
        (line_first,),
    ),
    "ledger line not synced": Broken(
        chain.append, {"_write(file, text)": "file.write(text)"}, (line_first,)
    ),
    "access opened twice for one lot": Broken(
        PrivateOptimizer.pre_step,
        {"        with self._account.open(self._stage, draw=draw) as access:":
         "        with self._account.open(self._stage, draw=draw) as access:\n"
         "            privatize(list(zip(gradients, self._rules)), access, self.expected_batch_size, self._buffer)\n"
         "        with self._account.open(self._stage) as access:"},
        (a_step_is_one_access,),
    ),
    "lot taken again by a second step": Broken(
        IssuedLots.take, {"self._issued.discard(draw)": "pass", "self._spent.add(draw)": "pass"}, (a_lot_is_spent_once,)
    ),
    "access of a step opened without its lot": Broken(
        PrivateOptimizer.pre_step,
        {"open(self._stage, draw=draw)": "open(self._stage)"},
        (a_lot_is_spent_once, a_lot_that_was_not_drawn_is_refused),
    ),
    "lot that was not drawn believed": Broken(
        IssuedLots.check,
        {"draw in self._issued and draw.stage == stage": "True"},
        (a_lot_that_was_not_drawn_is_refused,),
    ),
    "lot of another stage believed": Broken(
        IssuedLots.check,
        {"draw in self._issued and draw.stage == stage": "draw in self._issued"},
        (a_lot_that_was_not_drawn_is_refused,),
    ),
    "lot for another turn believed": Broken(
        IssuedLots.take, {"draw.step is not None and draw.step != step": "False"},
        (a_record_takes_part_in_its_turns_alone,),
    ),
    "records drawn out of their turn": Broken(
        Cyclic.draw, {"members[stream.poisson_sample(len(members), self.sampling_probability)]":
                      "stream.poisson_sample(units, self.sample_rate)"},
        (a_record_takes_part_in_its_turns_alone,),
    ),
    "groups by place": Broken(
        CorrelatedState.turn, {"groups == step % period": "np.arange(units) % period == step % period"},
        (a_record_takes_part_in_its_turns_alone,),
    ),
    "sampled access opened without a lot": Broken(
        Account.open,
        {"if draw is not None or access.sample_rate < 1.0:": "if draw is not None:"},
        (a_sampled_access_needs_a_lot,),
    ),
    "more records than were drawn": Broken(
        PrivateOptimizer._rows,
        {"max(rows) > draw.size": "False"},
        (a_step_takes_no_more_records_than_were_drawn,),
    ),
    "records of each part counted alone": Broken(
        PrivateOptimizer._rows,
        {"rows = list(before or [0] * len(gradients))": "rows = [0] * len(gradients)"},
        (a_step_takes_no_more_records_than_were_drawn,),
    ),
    "noise given out twice": Broken(
        OpenAccess.consume, {"return self._undrawn.pop(name)": "return self._undrawn[name]"},
        (each_noise_is_drawn_once_and_only_while_open,),
    ),
    "access never closed": Broken(
        OpenAccess._close, {"self._open = False": "pass"}, (each_noise_is_drawn_once_and_only_while_open,)
    ),
    "centres of the split started at records": Broken(
        kmeans.private_split,
        {"centres = spread * _SPREAD + (0.0 if settings.projects else mean.float())":
         "centres = spread.clone().index_copy_(0, torch.arange(min(len(records), settings.k)), "
         "Directions(kept, directions)(records[: settings.k]))"},
        (split_costs, split_adds_up),
    ),
    "counts of the split released exactly": Broken(
        kmeans.private_split,
        {'rounded_gaussian(access, "counts", exact["counts"], sensitivity=1.0).float()':
         '(access.consume("counts"), exact["counts"].float())[1]'},
        (split_answers,),
    ),
    "counts of an iteration of the split released exactly": Broken(
        kmeans.private_split,
        {'counts = rounded_gaussian(access, "counts", exact["counts"], sensitivity=1.0)\n        ':
         'counts = (access.consume("counts"), exact["counts"].double())[1]\n        '},
        (split_answers, split_noise),
    ),
    "directions of the split drawn as often as there are records": Broken(
        kmeans.private_split,
        {"spread /= spread.norm(dim=1, keepdim=True)":
         "spread /= spread.norm(dim=1, keepdim=True); torch.randn(len(records), generator=generator)"},
        (split_answers,),
    ),
    "several noises of a lot paid as the largest alone": Broken(
        Access.multiplier.fget, {"return 1.0 / math.sqrt(squares)": "return min(self.multipliers.values())"},
        (lot_costs_with_a_histogram,),
    ),
    "rows of a projection not pulled back": Broken(
        Steps._pull_back, {"if far.any():": "if False:"}, (replaced, functools.partial(replaced, "spherical"))
    ),
    "elements of a projection not cut": Broken(
        Steps._cut, {"np.clip(values, -self._bound, self._bound, out=values)": "pass"},
        (functools.partial(replaced, "laplace", "element"),),
    ),
    "projection calibrated in the wrong norm": Broken(
        Noise.sensitivity, {"return l1_of_a_row(matrix) if self.norm == 1 else l2_of_a_row(matrix)":
                            "return l2_of_a_row(matrix)"},
        (replaced,),
    ),
    "projection calibrated on the mean row": Broken(
        sensitivity.largest_row, {".max()": ".mean()"}, (functools.partial(replaced, "gaussian", "element"),)
    ),
    "Laplace noise half as large": Broken(
        PrivateStream.add_rounded_laplace_, {"(-1, 1), scale)": "(-1, 1), scale / 2)"},
        (replaced, functools.partial(replaced, "laplace", "element")),
    ),
    "spherical noise of the length of one number": Broken(
        PrivateStream.add_rounded_spherical_, {"len(part), k, scale)": "len(part), k, scale / k)"},
        (functools.partial(replaced, "spherical"),),
    ),
    "Gaussian noise under replace-one halved twice": Broken(
        drawn_noise.Mechanism.scale_in_units, {"multiplier / 2.0": "multiplier / 4.0"},
        (functools.partial(replaced, "gaussian"),),
    ),
    "a threshold for keys that forgets how many one record holds": Broken(
        mechanisms.key_threshold, {"math.log1p(-delta) / most": "math.log1p(-delta)"}, (key_seen,)
    ),
    "a threshold for keys counted from zero": Broken(
        mechanisms.key_threshold, {"real = 1.0 - multiplier": "real = -multiplier"}, (key_seen,)
    ),
    "a threshold for keys that forgets the sensitivity": Broken(
        mechanisms.key_threshold, {"multiplier * math.sqrt(most)": "multiplier"}, (key_seen,)
    ),
    "a key that one person holds twice counts twice": Broken(
        counts.held_at_most,
        {"np.unique(owners.astype(np.int64) * kinds + codes)": "owners.astype(np.int64) * kinds + codes"},
        (discovery_costs,),
    ),
    "a person counts for all their keys": Broken(
        counts.held_at_most, {"[rank < most]": "[rank >= 0]"}, (discovery_costs,)
    ),
    "the noise of keys for one of them": Broken(
        mechanisms.select_keys, {"sensitivity=math.sqrt(most)": "sensitivity=1.0"}, (key_seen, discovery_costs)
    ),
    "the noise of bounds for one bucket": Broken(
        bounds_and_keys.find_bounds_in, {"sensitivity=math.sqrt(most)": "sensitivity=1.0"},
        (discovery_costs,),
    ),
    "keys in the order of the records": Broken(
        mechanisms.select_keys, {"keys, places = np.unique(keys, return_index=True)": "places = np.arange(len(keys))"},
        (keys_come_sorted,),
    ),
    "figure of fidelity released without noise": Broken(
        fidelity.measure_fidelity,
        {'noisy = rounded_gaussian(access, "means", sums, unit=unit, sensitivity=radius)[0]':
         'noisy = (rounded_gaussian(access, "means", sums.clone(), unit=unit, sensitivity=radius), sums * unit)[1][0]'},
        (same_release,),
    ),
    "right answers released without noise": Broken(
        fidelity.measure_fidelity,
        {'float(rounded_gaussian(access, "answers", right, sensitivity=1.0))':
         '(rounded_gaussian(access, "answers", right.clone(), sensitivity=1.0), float(right))[1]'},
        (same_release,),
    ),
    "figure of fidelity over the true number of records": Broken(
        fidelity.measure_fidelity,
        {'n = max(1.0, float(rounded_gaussian(access, "records", total, sensitivity=1.0)))':
         'rounded_gaussian(access, "records", total, sensitivity=1.0); n = float(len(real))'},
        (same_release,),
    ),
    "figure of fidelity that tells how many records there are": Broken(
        fidelity.measure_fidelity, {'"records, with noise": round(n)': '"records, with noise": len(real)'}, (same_release,)
    ),
    "figure of fidelity noised for a record of a person": Broken(
        fidelity.measure_fidelity,
        {"sums, unit=unit, sensitivity=radius)": "sums, unit=unit, sensitivity=radius, per_person=True)"},
        (baskets_cost,),
    ),
    "gradients of a classifier that are not shortened": Broken(
        label_gradients._whole_errors,
        {"factors * (1.0 / in_shares)": "(1.0 / in_shares)",
         "whole.where(whole.square().sum(dim=1, keepdim=True) <= room, 0)": "whole"},
        (classifiers_cost,),
    ),
    "squares of a classifier that are not shortened": Broken(
        Spreads._summed, {"whole_rows(coordinates.square() / self._expected, self.bound, self.unit)":
                          "(coordinates.square() / self._expected / self.unit).long()"}, (classifiers_cost,)
    ),
    "mean embedding over the true lot": Broken(
        EmbeddingGradients.given,
        {"(total / expected_batch_size)": "(total / max(len(self.rows), 1))"},
        (embedding_adds_up,),
    ),
    "mean embedding handed on without its noise": Broken(
        EmbeddingGradients.given,
        {"total = gaussian(access, self.noise, (kept * factors[:, None]).sum(dim=0), sensitivity=sensitivity)":
         "total = (kept * factors[:, None]).sum(dim=0); "
         "gaussian(access, self.noise, total.clone(), sensitivity=sensitivity)"},
        (embedding_adds_up, given_the_answers_a_mean_embedding_is_the_same_for_any_lot),
    ),
    "reserve of normals that overlaps by one": Broken(
        PrivateStream._from_reserve,
        {"reserve[:size], reserve[size:]": "reserve[:size], reserve[max(size - 1, 0) :]"},
        (handed_out_once,),
    ),
    "reserve of normals that keeps a single one": Broken(
        PrivateStream._from_reserve,
        {"reserve[:size], reserve[size:]": "reserve[:size], reserve[size if size > 1 else 0 :]"},
        (handed_out_once,),
    ),
    "reserve of one type filled from that of the other": Broken(
        PrivateStream._from_reserve,
        {"given, self._reserve[dtype] =":
         "self._reserve.setdefault(torch.float32, reserve.float()); given, self._reserve[dtype] ="},
        (handed_out_once,),
    ),
    "items of baskets capped at twenty": Broken(
        ItemsBySize.sums, {"units.sum(axis=1)": "np.minimum(units.sum(axis=1), 20)"}, (baskets_cost,)
    ),
    "pairs of items capped at two hundred": Broken(
        PairsBySize.sums,
        {"sizes * (sizes - 1) // 2": "np.minimum(sizes * (sizes - 1) // 2, 200)"},
        (baskets_cost,),
    ),
    "bought number noised for a record of a person": Broken(
        first_pass.run_discovery, {"([records.n]), sensitivity=1.0": "([records.n]), sensitivity=1.0, per_person=True"},
        (persons_cost,),
    ),
    "bounds found by row": Broken(
        first_pass.InMemoryRecords.find_bounds, {"part.whole, **whose": "part.whole"}, (persons_cost,)
    ),
    "distributions found by row": Broken(
        first_pass.InMemoryRecords.find_values, {"leaves.reference, **whose": "leaves.reference"}, (persons_cost,)
    ),
    "the noise of a distribution for a third of a record": Broken(
        value_tree._children, {"sensitivity=1.0": "sensitivity=1 / 3"}, (persons_cost, distribution_costs, wide_cost)
    ),
    "moments of many numbers of records that are not shortened": Broken(
        SecondMoments.sums, {"self._radius, self._radius /": "9 * self._radius, self._radius /"}, (wide_cost,)
    ),
    "moments of many numbers noised for half a record": Broken(
        SecondMoments.__init__, {"self.bound, self.shape, self.unit = radius**2,":
                                 "self.bound, self.shape, self.unit = radius**2 / 2,"}, (wide_cost,)
    ),
    "counts of tables noised for half a record": Broken(
        Marginals.__init__,
        {"math.sqrt(len(self.tables))": "max(math.sqrt(len(self.tables)) / 2, 1)"}, (crossed_cost, wide_cost),
    ),
    "how much crossings tell noised for a quarter of a record": Broken(
        CrossingCounts.__init__, {"else 2.0 * math.sqrt": "else 0.5 * math.sqrt"}, (crossed_cost,)
    ),
    "scores of crossings three times as large": Broken(
        CrossingCounts.scores, {".abs().sum()": ".abs().sum() * 3"}, (crossed_cost,)
    ),
    "categories found by row": Broken(
        first_pass.open_first_pass, {"of_column(values, numbers, salts)": "of_column(values)"}, (persons_cost,)
    ),
    "measurements noised for a record of a person": Broken(
        Workload.measure,
        {"rounded_gaussian(access, name, scores, unit=unit, sensitivity=bound)":
         "rounded_gaussian(access, name, scores, unit=unit, sensitivity=bound, per_person=True)"},
        (persons_cost,),
    ),
    "measurements over the true number of records": Broken(
        Workload.measure, {"released = rounded_gaussian(access, name, scores, unit":
                           "released = rounded_gaussian(access, name, scores * 60 // len(records), unit"},
        (persons_add_up,),
    ),
    "expected lot of the true number of records": Broken(
        trained_run.trained_mixture,
        {"module = run.settings.module(account)":
         "module = run.settings.module(account); own = module.private_optimizer; "
         "module.private_optimizer = lambda inner: (o := own(inner), setattr(o, 'expected_batch_size', "
         "o.expected_batch_size * len(records) / module.n))[0]"},
        (same_release_of_a_network,),
    ),
    "killed trial that plans anew": Broken(
        selection._Trials._learn,
        {"run_folder.reopen_account(folder, stream, exact=True)": "run_folder.reopen_account(folder, stream)"},
        (killed_trial,),
    ),
    "killed trial that plans anew within its budget": Broken(
        Account.go_on, {"if self._exact and plan != promise:": "if self._exact and plan.epsilon > promise.epsilon:"},
        (killed_trial,),
    ),
    "orders of a study with more than its delta": Broken(
        study_total._shares, {"of_all if order == first": "4.0 * of_all if order == first"}, (orders_fail,)
    ),
    "other orders of a study with more than its delta": Broken(
        study_total._shares, {"rest = of_all": "rest = 4.0 * of_all"}, (orders_fail,)
    ),
    "replace-one run entered in a study by its moments": Broken(
        study.study_entry,
        {"moments = plan.relation == ADD_OR_REMOVE_ONE and": "moments =",
         '= {"relation": plan.relation}': '= {"relation": ADD_OR_REMOVE_ONE}'},
        (study_costs,),
    ),
    "replace-one run entered in a study as its pair for a record added": Broken(
        study.study_entry,
        {'= {"relation": plan.relation}': '= {"relation": ADD_OR_REMOVE_ONE}'},
        (study_costs,),
    ),
    "choice of scores that fall and rise noised as of scores that only rise": Broken(
        mechanisms.report_noisy_max, {"(1.0 if monotonic else 2.0) * ": ""},
        (for_all_records, no_person_costs_a_choice_more_than_its_access),
    ),
    "a choice of a record for a person": Broken(
        mechanisms.report_noisy_max, {"_checked(name, sensitivity) * access.max_rows": "_checked(name, sensitivity)"},
        (for_all_records, no_person_costs_a_choice_more_than_its_access),
    ),
    "Laplace or spherical noise of a record for a person": Broken(
        mechanisms._take_scale,
        {"records = 1 if per_person":
         "records = 1 if per_person or mechanism.name in ('rounded_laplace', 'rounded_spherical')"},
        (for_all_records,),
    ),
    "equal noises of an access counted once": Broken(
        Access.event_at,
        {"for name in sorted(self.kinds)": "for name in sorted({self.multipliers[n]: n for n in self.kinds}.values())"},
        (each_noise_of_an_access_is_counted,),
    ),
    "records of a later block that stand in the first": Broken(
        coins.poisson_sample, {"start + heads(": "heads("}, (a_sample_has_each_record_at_its_own_place,)
    ),
    "sign vectors of the last chunk alone": Broken(
        sensitivity._largest_over_signs, {"largest = max(largest, ": "largest = max(0.0, "},
        (no_sign_vector_passes_the_dual_norm,),
    ),
    "fingerprint of the first records": Broken(
        identity.fingerprint, {"np.ascontiguousarray(array)": "np.ascontiguousarray(array[: 1 << 20])"},
        (records_that_differ_in_a_byte_are_others,),
    ),
    "rehearsal that compares noise with itself": Broken(
        PrivateOptimizer.rehearse,
        {"multiplier / self.expected_batch_size, self._buffer.views":
         "float(self._buffer.flat.std()), self._buffer.views"},
        (a_rehearsal_notices_noise_of_another_size,),
    ),
    "draw as large as the data set": Broken(
        Account.sample, {"LotId(stage, len(positions), ": "LotId(stage, units, "},
        (functools.partial(a_step_takes_no_more_records_than_were_drawn, rate=0.3),),
    ),
    "reference for records added charged in a study of records replaced": Broken(
        study.study_entry, {"if moments and (plan.reference is None or plan.reference.replaceable):": "if moments:"},
        (references.a_study_of_records_replaced_charges_its_pair,),
    ),
    "reference for records added stated for a record replaced": Broken(
        certificate.make_certificate,
        {"replaceable = reference is None or reference.replaceable": "replaceable = True"},
        (references.its_certificate_says_nothing_of_a_record_replaced,),
    ),
    "certificate reads an odometer at the stop": Broken(
        reconcile.certify, {"if drawn.epsilon > planned.epsilon:": "if True:"}, (stopping_early,)
    ),
    "certificate asks the ledger alone": Broken(
        certificate.make_certificate,
        {"event, spending = account.certify()":
         "event, spending = account.event, compute_epsilon(account.event, plan.delta)"},
        (stopping_early,),
    ),
    "bought numbers beyond their bounds": Broken(
        BoundedNumbers.sum_of, {".clamp_(-1.0, 1.0)": ""}, (bought_costs, fit_costs)
    ),
    "bought numbers that are not finite": Broken(BoundedNumbers.sum_of, {".nan_to_num_(nan=0.0)": ""}, (bought_costs,)),
    "noise of one bought number for several": Broken(
        BoundedNumbers.sensitivity.fget, {"math.sqrt(len(self.bounds) + 1)": "1.0"}, (bought_costs, fit_costs)
    ),
    "noise for fewer bought numbers": Broken(
        BoundedNumbers.sensitivity.fget, {"len(self.bounds) + 1": "len(self.bounds)"}, (bought_costs, fit_costs)
    ),
    "noise for more bought numbers than there are": Broken(
        BoundedNumbers.sensitivity.fget, {"len(self.bounds) + 1": "len(self.bounds) + 2"}, (bought_all,)
    ),
    "bought numbers less their mean": Broken(
        BoundedNumbers.sum_of, {"row.copy_(values[name])": "row.copy_(values[name] - values[name].mean())"},
        (bought_adds_up,)
    ),
    "means by the exact number of records": Broken(
        LotMetrics.release,
        {"noisy[-1].expand": "torch.stack(parts).sum(dim=0)[-1].to(noisy).mul(self.numbers.unit).expand"},
        (bought_answers,),
    ),
    "bought numbers without noise": Broken(
        LotMetrics.release,
        {"gaussian(access, METRICS, exact, sensitivity=self.numbers.sensitivity)":
         "(access.consume(METRICS), exact)[1]"},
        (bought_costs, bought_answers),
    ),
    "validation without noise": Broken(
        ValidationPasses._look,
        {"rounded_gaussian(access, METRICS, sums, unit=unit, sensitivity=numbers.sensitivity)":
         "(access.consume(METRICS), sums.double() * unit)[1]"},
        (fit_costs, fit_answers),
    ),
    "validation noised for one number": Broken(
        ValidationPasses._look, {"unit=unit, sensitivity=numbers.sensitivity": "unit=unit, sensitivity=1.0"}, (fit_costs,)
    ),
    "validation means by the exact number of records": Broken(
        ValidationPasses._look, {"[count] * k": "[float(len(lot))] * k"}, (fit_answers,)
    ),
    "certificate reads an odometer at a named time": Broken(
        Plan.named_stop, {"return next((stop for": "return next((made[self._last.name] for"}, (named_time,)
    ),
    "charged up to the named time before the stop": Broken(
        Plan.named_stop, {"0 < made[self._last.name] <= stop": "0 < made[self._last.name] < stop + 2"},
        (named_time,),
    ),
    "each named time with all of delta": Broken(
        Plan.cost_of, {"self.part_of_delta if delta is None": "self.delta if delta is None"}, (named_time,)
    ),
    "a named time for a run that may go on": Broken(
        Account.certify, {"self.named_stop": "self.plan.named_stop(self.accesses)"}, (named_time,)
    ),
    "rest of a run given back to a study by pairs": Broken(
        study.Study.stop,
        {"encode(drawn) if by_moments else whole[\"event\"]": "encode(drawn)",
         "line = whole | {": "line = whole | {\"pair\": (0.5 * whole[\"pair\"][0], whole[\"pair\"][1]), "},
        (pairs_stay_whole,),
    ),
    "study counts less before the ledger is stopped": Broken(
        Account.stop,
        {"if not self.finished:": "self.ledger.stopped = True\n        self._entry.stop(self.ledger, self.plan)\n"
         "        self.ledger.stopped = False\n        if not self.finished:"},
        (ledger_first,),
    ),
    "all of a stopped run given back": Broken(
        entry.StudyEntry.stop, {"reconcile.counted_event(plan, ledger.accesses)": "None"}, (drawn_stays_counted,)
    ),
    "stopped run enters its study again": Broken(
        study.Study._with, {"self._refuse_stopped(entries, run)": "pass"}, (drawn_stays_counted,)
    ),
    "records handed to a step that sees none": Broken(
        ManualModule._step_on, {"place, wrapped = self._place,": "self._many, place, wrapped = lot.records, self._place,"},
        (no_record_is_seen_but_alone,),
    ),
    "a step of a module's own left out": Broken(
        ManualModule._step_on,
        {"self._place += 1": "self._place += 2"},
        (each_step_on_records_is_an_access,),
    ),
    "an optimizer told public by its last loss alone": Broken(
        Outline.step,
        {"any(self.losses[number])": "self.losses[number][-1]"},
        (functools.partial(an_optimizer_that_may_follow_records_is_private, "first"),),
    ),
    "values read of a batch not followed": Broken(
        RecordTrace.follows,
        {"self._is_read or ": ""},
        (functools.partial(an_optimizer_that_may_follow_records_is_private, "value"),),
    ),
}  # fmt: skip


def _name(law: Callable) -> str:
    return getattr(law, "func", law).__name__


# Whole runs, each beside a cheaper fault of the same kind.
SLOW = ("killed trial that plans anew", "figure of fidelity noised for a record of a person")
PAIRS = [
    pytest.param(case, law, id=f"{name}: {_name(law)}", marks=pytest.mark.slow if name in SLOW else ())
    for name, case in BROKEN.items()
    for law in case.laws
]


@functools.cache
def _holds_as_shipped(law: Callable) -> None:
    law()


@pytest.mark.parametrize(("case", "law"), PAIRS)
def test_is_caught(monkeypatch, case, law):
    _holds_as_shipped(law)
    change(monkeypatch, case.function, case.lines)
    # Nothing but the law may fail: an error of another kind would be a case that does not run.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        law()


def test_a_line_that_is_gone_is_an_error_of_the_case(monkeypatch):
    with pytest.raises(AssertionError, match="does not have this line once"):
        change(monkeypatch, mechanisms.gaussian, {"no such line": "pass"})
