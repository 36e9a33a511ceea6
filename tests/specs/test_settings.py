"""Each setting is declared once, told in one place, and no settings hold a record."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from lightning_dpgen import api
from lightning_dpgen.data.declarations import range_of
from lightning_dpgen.runs.table import decay_line
from lightning_dpgen.specs.config_files import conf_dir
from lightning_dpgen.specs.groups import ProjectSpec
from lightning_dpgen.specs.reference import help_of_settings, reference
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.settings import load_complete_settings
from lightning_dpgen.specs.spec import Spec, names_of, variants
from lightning_dpgen.specs.usage_error import UsageError

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"


def test_the_page_of_settings_is_that_of_their_declarations():
    """Else: python -m lightning_dpgen.specs.reference > docs/reference/settings.md"""
    assert PAGE.read_text(encoding="utf-8") == reference()


@pytest.mark.parametrize("kind", [RunSpec, AuditSpec, ProjectSpec])
def test_every_setting_has_a_meaning(kind):
    for group in kind.model_fields:
        for picked, spec in variants(kind, group).items():
            if isinstance(spec, type) and issubclass(spec, Spec):
                bare = [name for name, field in spec.model_fields.items() if not field.description]
                assert set(bare) <= {"source", "name", "rule", "fidelity_share", "selection"}, (group, picked)


def _fields():
    for kind in (AuditSpec, ProjectSpec):
        for group in kind.model_fields:
            for spec in variants(kind, group).values():
                if isinstance(spec, type) and issubclass(spec, Spec):
                    yield from ((f"{group}.{name}", field) for name, field in names_of(spec).items())


def test_every_number_has_a_range():
    """A range that is enforced elsewhere alone is not in the reference."""
    bare = re.compile(r"(^|or )a (whole )?number( or null)?$")
    assert not {name for name, field in _fields() if bare.search(range_of(field)) or range_of(field) == "a value"}


def test_each_head_of_the_page_can_be_typed():
    for group, name in re.findall(r"^### .*?`(\w+)=(\w+)`", reference(), re.MULTILINE):
        assert (conf_dir() / group / f"{name}.yaml").is_file()


def test_every_setting_of_a_model_says_its_default():
    """A reader can tell then what it is where it is left out."""
    rows = re.findall(r"^\| `(model\.\w+)` \|.*\| (.*) \|$", reference(), re.MULTILINE)
    assert len(rows) > 50
    assert not [name for name, default in rows if not default.strip()]


def test_help_lists_every_setting():
    words = set(re.split(r"[\s|]+", help_of_settings(RunSpec)))
    # A list that is longer than a line is broken after a name, and not within one.
    assert {"run_dir", "seed", "rows", "retail", "series", "uk_demand"} <= words
    assert max(map(len, help_of_settings(RunSpec).splitlines())) <= 112


def test_no_settings_hold_a_record(monkeypatch, tmp_path):
    """Records are arguments: `fit` hands them over beside the settings."""
    seen = []
    monkeypatch.setattr(api, "train", lambda spec, source, *_: seen.append((spec, source)))
    frame = pd.DataFrame({"age": [77, 78], "town": ["Thule", "Ys"]})
    schema = {
        "columns": {
            "age": {"type": "integer", "low": 0, "high": 99},
            "town": {"type": "category", "values": ["Thule", "Ys"]},
        }
    }
    api.fit(frame, schema, epsilon=1.0, n=2000, run_dir=tmp_path / "run")
    ((spec, source),) = seen
    assert "77" not in (text := json.dumps(spec.model_dump())) and "Thule" not in text
    # Addresses of objects are any numbers.
    shown = re.sub("0x[0-9a-f]+", "", repr(spec) + repr(source))
    assert "77" not in shown and "Thule" not in shown


def _settings(*words):
    return load_complete_settings(["data.n=1500", *words])


def test_steps_go_into_the_rhythm_of_a_critic_unless_they_were_declared():
    for rhythm in (1, 4, 7):
        asked = _settings("model=wgan", f"model.critic_steps={rhythm}")
        assert asked.plan().stage("training").count % rhythm == 0
        solved = _settings("model=wgan", f"model.critic_steps={rhythm}", "model.noise=5", "privacy.epsilon=3")
        free = _settings("model=wgan", "model.critic_steps=1", "model.noise=5", "privacy.epsilon=3")
        assert {stage.name: stage.multiple for stage in solved.plan().stages}["training"] == rhythm
        count, most = (settings.plan().stage("training").count for settings in (solved, free))
        assert count % rhythm == 0 and most - rhythm < count <= most
    with pytest.raises(UsageError, match=r"model.steps=101: expected a multiple of model.critic_steps=5.*; take 100"):
        _settings("model=wgan", "model.critic_steps=5", "model.steps=101")


@pytest.mark.parametrize(("scaled", "penalty"), [(0, 10.0), (1, 10.0), (2, 0.1)])
def test_the_penalty_follows_what_most_of_a_record_is(scaled, penalty, tmp_path):
    (tmp_path / "t.csv").write_text("a,b,c\n1,1,1\n")
    number = "{type: integer, low: 0, high: 99"
    columns = "".join(f"  {name}: {number}{', encoding: scaled' * (i < scaled)}}}\n" for i, name in enumerate("abc"))
    (tmp_path / "t.yaml").write_text(f"columns:\n{columns}")
    asked = _settings("data=table", f"data.path={tmp_path / 't.csv'}", f"data.schema={tmp_path / 't.yaml'}", "model=wgan")
    assert asked.spec.model.penalty == penalty


@pytest.mark.parametrize(
    ("words", "share"),
    [
        (["data=adult"], 0.3),
        (["data=adult", "model.label_share=0"], 0.0),
        (["data=adult", "model.bias=learned"], None),
        (["data=adult", "experiment=dpgan_table"], None),
        (["data=adult", "privacy.epsilon=0.001"], 0.0),
        (["data=adult", "model=vae"], None),
        (["data=digits"], None),
    ],
)
def test_adversarial_networks_at_noisy_means_buy_the_label_of_a_table_that_the_budget_can_learn(words, share):
    models = [] if any(word.startswith(("model=", "experiment=")) for word in words) else ["model=wgan"]
    assert _settings(*words, *models).spec.model.label_share == share


def test_a_ratio_is_that_of_the_last_bound_to_the_first_at_the_same_cost():
    words = ["model=wgan", "model.steps=60", "model.critic_steps=5", "model.optimizer=sgd", "model.lr=0.1"]
    decaying, fixed = _settings(*words, "clipping=decay", "clipping.c=2", "clipping.ratio=0.01"), _settings(*words)
    rule = decaying.clipping
    bounds = [rule.known(i) for i in range(60)]
    assert bounds[0] == 2.0 and bounds[-1] == pytest.approx(0.02)
    assert len(set(bounds)) == 12 and bounds[:5] == [2.0] * 5, "once each outer loop"
    assert decaying.plan().epsilon == fixed.plan().epsilon
    assert "2 at first, 0.02 at last" in decay_line(rule, decaying.plan())


WGANS = {
    "ratio of solved steps": (
        ["clipping=decay", "clipping.ratio=0.1", "model.noise=2"],
        "clipping.ratio=0.1: follows from",
    ),
    "ratio without a decay": (
        ["clipping=decay", "clipping.ratio=0.1", "model.steps=2"],
        "2 steps have no decay every 2",
    ),
    "ratio below the least": (
        ["clipping=decay", "clipping.ratio=0.01", "clipping.least=0.5", "model.steps=60"],
        "clipping.ratio=0.01: leads to 0.01, below clipping.least=0.5",
    ),
    "no choices": (["data.classes=0", "model.sampling=straight_through"], "has no choices to be drawn"),
    "ratio and factor": (["clipping=decay", "clipping.ratio=0.1", "clipping.factor=0.9"], "expected one of them"),
    "weight bound": (["model.weight_bound=0.1"], "model.weight_bound=0.1: applies only to model.loss=wgan_clip"),
    "penalty": (["model.loss=vanilla", "model.penalty=1"], "model.penalty=1: applies only to model.loss=wgan_gp"),
    "a bound of 0": (["model.loss=wgan_clip", "model.weight_bound=0"], "model.weight_bound=0: expected a number above 0"),
    "labels": (["model.conditional=true", "model.bias=zero"], "model.conditional=true with model.bias=zero"),
    "no plane": (
        ["model.critic=conv", "data=mushroom"],
        "model.critic=conv: is for pictures and series, and data=mushroom has none",
    ),
    "no series": (["model.network=lstm"], "model.network=lstm: is for series, and data=digits has none"),
    "depth of none": (
        ["model.network=lstm", "model.critic=conv", "model.layers=3"],
        "model.layers=3 with model.network=lstm",
    ),
    "depth": (["model.network=conv", "model.layers=3"], "model.network=conv with model.layers=3"),
    "momentum": (["model.momentum=0.9"], "model.momentum=0.9: applies only to model.optimizer=sgd"),
    "a rate for sgd": (["model.optimizer=sgd"], "model.optimizer=sgd: needs a learning rate"),
}


@pytest.mark.parametrize(("words", "told"), WGANS.values(), ids=WGANS.keys())
def test_a_setting_that_does_not_go_with_the_others_is_refused(words, told):
    with pytest.raises(UsageError, match=told):
        _settings("model=wgan", *words)


LIKELIHOODS = {
    "waves of none": (
        ["model.network=waves", "data=digits"],
        "model.network=waves: is for series, and data=digits has none",
    ),
    "waves of long series": (
        ["model.network=waves", "data=series", "data.path=x.csv", "data.length=3000", "data.low=0", "data.high=1"],
        "model.network=waves: takes series of 2,048 numbers at most, and those of data=series have 3,000",
    ),
    "a floor of none": (["model.likelihood=bernoulli", "model.floor=0.1"], "model.floor=0.1: model.likelihood=bernoulli"),
    "a scale of none": (["model.likelihood=bernoulli", "model.scale=0.1"], "model.scale=0.1: model.likelihood=bernoulli"),
    "below the floor": (["model.likelihood=laplace", "model.scale=0.001"], "model.scale=0.001: is below model.floor"),
    "of 0 and 1": (["data.threshold=7", "model.likelihood=gaussian"], "here each unit is 0 or 1"),
}


@pytest.mark.parametrize(("words", "told"), LIKELIHOODS.values(), ids=LIKELIHOODS.keys())
def test_a_likelihood_that_does_not_fit_is_refused(words, told):
    with pytest.raises(UsageError, match=told):
        _settings(*words)


def test_the_rate_of_sgd_is_not_that_of_the_generators_adam():
    words = ["model=wgan", "model.optimizer=sgd", "model.lr=1"]
    assert _settings(*words).spec.model.generator_lr == 0.002
    assert _settings(*words, "model.generator_lr=0.01").spec.model.generator_lr == 0.01
    assert _settings("model=wgan", "model.lr=0.003").spec.model.generator_lr == 0.003
