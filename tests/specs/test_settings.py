"""Each setting is declared once, told in one place, and no settings hold a record."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from lightning_dpgen import api
from lightning_dpgen.specs.compose import conf_dir
from lightning_dpgen.specs.projection import ProjectSpec
from lightning_dpgen.specs.reference import listed, reference
from lightning_dpgen.specs.run import AuditSpec, RunSpec
from lightning_dpgen.specs.spec import Spec, names_of, range_of, variants

PAGE = Path(__file__).parents[2] / "docs" / "SETTINGS.md"


def test_the_page_of_settings_is_that_of_their_declarations():
    """Else: python -m lightning_dpgen.specs.reference > docs/SETTINGS.md"""
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


def test_help_lists_every_setting():
    words = set(re.split(r"[\s|]+", listed(RunSpec)))
    assert {"run_dir", "seed", "rows"} <= words


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
    assert "77" not in repr(spec) + repr(source) and "Thule" not in repr(spec) + repr(source)


MISTAKES = {
    "train": ["data.n=x", "model.hiden=3", "model.rate=2", "clipping=fixd", "hydra.launcher.n_jobs=4"],
    "budget": ["model.stepz=3"],
    "budget project": ["project.kk=3", "model=vae"],
    "audit": ["audit.drawz=3", "model.stepz=3", "data.n=5", "run_dir=x"],
    "project": ["project.radius=x", "model=vae", "project.kk=3"],
}  # fmt: skip


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_in_a_setting_is_told_before_anything_heavy_is_imported(command):
    code = (
        "import sys; from lightning_dpgen.cli.main import main; "
        "print([main([*sys.argv[1].split(), word]) for word in sys.argv[2:]], "
        "[name for name in ('torch', 'pytorch_lightning', 'scipy', 'pandas') if name in sys.modules])"
    )
    words = MISTAKES[command]
    done = subprocess.run([sys.executable, "-c", code, command, *words], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[2] * len(words)} []\n", done
    told = done.stderr.splitlines()
    assert len(told) == len(words) and all(word.partition("=")[0] in said for word, said in zip(words, told, strict=True))
