"""The first paragraph of an evaluation: levels follow from scores beside real ones, and a column is told its true cause."""

from dataclasses import replace

import numpy as np
import pytest
from metrics.records import few_trees
from metrics.test_table_evaluation import frame, values

from lightning_dpgen.data.tables.schema_file import parse_schema
from lightning_dpgen.data.tables.values import TableValues
from lightning_dpgen.metrics.classifiers import DETECTION, TRAINING
from lightning_dpgen.metrics.evaluation import Evaluation, evaluate_table
from lightning_dpgen.metrics.judgement import Cause, judge
from lightning_dpgen.metrics.measure import LIMITS, SKILL, Interval
from lightning_dpgen.metrics.quality import HEADLINE, QUALITY

# Sections, scores, and the value that a part of the way from real records to nothing makes of them.
SCORES = {
    "a distance": ("columns", "one column, mean", 0.1, lambda lost: 0.1 + 0.9 * lost, LIMITS),
    "the quality": (QUALITY, HEADLINE, 0.9, lambda lost: 0.9 * (1.0 - lost), LIMITS),
    "a classifier": (TRAINING, "random forest, accuracy", 0.9, lambda lost: 0.9 - 0.3 * lost, SKILL),
    "the best real distance": ("columns", "one column, mean", None, lambda lost: lost, LIMITS),
    "detection": (DETECTION, "AUC", 0.5, lambda lost: 0.5 + 0.5 * lost, (SKILL[0], np.inf)),
}
COMMONEST = {"commonest label, accuracy": 0.6}


@pytest.mark.parametrize("case", SCORES)
def test_a_level_is_the_part_lost_of_the_way_from_real_records_to_nothing(case):
    section, score, real, made, limits = SCORES[case]
    for lost in np.linspace(0.013, 0.987, 40):
        more = COMMONEST if section == TRAINING else {}
        reference = {} if real is None else {section: {score: real} | more}
        found = judge(Evaluation("table", {section: {score: made(lost)} | more}, reference, {}, {}, "", {}))
        assert found.level == ("good", "fair", "poor")[sum(lost > limit for limit in limits)], lost
        assert ("what would help" in found.lines) == (found.level != "good")


def test_where_real_records_do_not_teach_a_label_nothing_is_lost():
    real = {TRAINING: {"random forest, accuracy": 0.6} | COMMONEST}
    made = {TRAINING: {"random forest, accuracy": 0.5} | COMMONEST}
    assert judge(Evaluation("table", made, real, {}, {}, "", {})).level is None


def test_no_judgement_speaks_for_privacy_and_what_speaks_against_it_is_said():
    good = Evaluation("table", {"columns": {"one column, mean": 0.0}}, {}, {}, {}, "", {})
    found = judge(good)
    assert found.level == "good" and found.lines["publish?"].startswith("yes, if") and "attacks" not in found.lines
    assert "nothing of privacy" in found.lines["mind"] and "is not covered by epsilon" in found.lines["mind"]
    assert judge(replace(good, private=False)).lines["publish?"].startswith("no: ")
    name = "closer to a record learned from"
    found = judge(replace(good, intervals={"copies": {name: Interval(0.52, 0.6, 900)}}))
    assert found.level == "fair" and "0.520 to 0.600" in found.lines["attacks"]
    assert found.lines["publish?"].startswith("not before you know why")
    assert judge(replace(good, intervals={"copies": {name: Interval(0.49, 0.6, 900)}})).level == "good"


def test_a_cause_is_named_where_it_explains_half_of_what_real_records_do_not():
    columns = [{"name": "a", "column": 0, "distance": 0.12, "expected": 0.02}]
    for part, told in ((0.049, False), (0.051, True)):
        causes = {("a",): [Cause(0.001, "of nothing", "nothing"), Cause(part, "of the moon", "another moon")]}
        found = judge(Evaluation("table", {}, {}, {}, {}, "", {"columns": columns}, causes=causes))
        assert ("probably because of the moon" in found.lines["columns"]) is told
        assert ("another moon" in found.lines.get("what would help", "")) is told


def _of_ages(bins, synthetic):
    """Evaluate ages of 10 and 60, in so many bins of 0 to 99."""
    schema = parse_schema(f"columns: {{age: {{type: integer, low: 0, high: 99, bins: {bins}}}, b: {{type: boolean}}}}")
    sides = [np.tile([10.0, 60.0], 1000), synthetic]
    both = [TableValues(schema, side[:, None], np.zeros((len(side), 1), np.int32)) for side in sides]
    return evaluate_table(*both, seconds=0.05)


def test_bins_are_blamed_for_what_they_do_and_for_nothing_else():
    """Even ages differ from 10 and 60 by half of them less 11 in 100; 1,000 draws have a deviation of .02 at most."""
    even = np.repeat(np.arange(100.0), 10)
    coarse, fine = (_of_ages(bins, even) for bins in (2, 100))
    (figure,) = (own for own in coarse.figures["columns"] if own["name"] == "age")
    assert abs(figure["of_form"] - 0.39) < 0.08 and figure["expected"] < 0.1
    assert (
        "drawn within the bins" in judge(coarse).lines["columns"] and "more bins" in judge(coarse).lines["what would help"]
    )
    (figure,) = (own for own in fine.figures["columns"] if own["name"] == "age")
    assert figure["of_form"] == 0.0 and "because" not in judge(fine).lines["columns"]


def test_rare_values_in_groups_are_blamed_too():
    """Values whose counts noise hides are drawn evenly: of 40, one that all records have becomes one of 40 or so."""
    names = [f"v{number}" for number in range(40)]
    column = {"type": "category", "values": names, "counts": [0.0] * 40, "counts_noise": 50.0}
    schema = parse_schema(str({"columns": {"c": column, "b": {"type": "boolean"}}}))
    sides = [np.stack([codes, np.zeros(600, int)], axis=1) for codes in (np.zeros(600, int), np.arange(600) % 40)]
    found = evaluate_table(*(TableValues(schema, np.zeros((600, 0)), side) for side in sides), seconds=0.05)
    (figure,) = (own for own in found.figures["columns"] if own["name"] == "c")
    # A group has so many values that at least half of all draws are others.
    assert figure["of_form"] >= 0.5 and "drawn within the groups" in judge(found).lines["columns"]


@pytest.mark.slow
def test_equal_tables_are_good_and_independent_columns_are_not():
    with few_trees():
        real = values(frame(3000, 0))
        same, made = values(frame(1500, 1)), frame(1500, 1)
        apart = values(made.apply(lambda column: column.sample(frac=1, random_state=len(column.name)).to_numpy()))
        good, poor = (judge(evaluate_table(real, side, held_out=values(frame(900, 2)))) for side in (same, apart))
    assert good.level == "good" and good.lines["columns"].startswith("none is off")
    assert poor.level in ("fair", "poor") and "together are off" in poor.lines["pairs"] and "age" in poor.lines["pairs"]
    assert poor.lines["columns"].startswith("none is off")
