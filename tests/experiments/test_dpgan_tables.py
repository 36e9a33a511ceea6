"""Table 1 of dp-GAN: settings of every variant can be planned, and a row is trained and scored once."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lightning_dpgen
from experiments.common.kept import Kept
from experiments.dpgan import tables as dpgan_tables
from experiments.league.tasks import AdultBalanced, Mushroom
from lightning_dpgen.specs.settings import load_complete_settings

ADULT = Path(lightning_dpgen.__file__).parent / "data/bundled/adult.schema.yaml"


@pytest.fixture
def unwritten(monkeypatch):
    """Name files of Adult that are not there, since plans need none of them."""
    monkeypatch.setattr(AdultBalanced, "files", lambda self, run: (Path("adult.csv"), ADULT))
    monkeypatch.setattr(dpgan_tables.AdultChosen, "files", AdultBalanced.files)


@pytest.mark.slow
def test_settings_of_every_variant_are_accepted_for_adult(tmp_path, unwritten):
    task = dpgan_tables.AdultChosen(tmp_path)
    for name in dpgan_tables.VARIANTS:
        assert load_complete_settings(dpgan_tables.settings_of(task, name, 3.0, 0)).spec.data.n == task.n < AdultBalanced.n


def test_every_variant_has_a_plan_within_its_budget(tmp_path):
    task, epsilon = Mushroom(tmp_path), 3.0
    for name in dpgan_tables.VARIANTS:
        asked = load_complete_settings(dpgan_tables.settings_of(task, name, epsilon, 2))
        plan = asked.plan()
        assert asked.spec.data.n == task.n and asked.spec.seed == 2
        if "no privacy" in name:
            assert not plan.private
        else:
            assert plan.epsilon <= epsilon and plan.delta == 1e-5
            # All of the budget is used, whether noise or steps are solved for.
            assert plan.epsilon > 0.9 * epsilon


def test_the_row_of_the_paper_is_its_preset_in_batches_of_256(tmp_path):
    task = Mushroom(tmp_path)
    row = load_complete_settings(dpgan_tables.settings_of(task, "paper", 3.0, 0)).spec
    alone = load_complete_settings(["experiment=dpgan_table", "data=mushroom", "privacy.epsilon=3", "seed=0"]).spec
    assert row == alone.changed(model=alone.model.changed(rate=row.model.rate)) and round(row.model.rate * task.n) == 256


def test_the_farthest_column_is_told(tmp_path, monkeypatch):
    """Rows that say brown of each cap are as far away as there are other caps; rows drawn from the real ones are near."""
    task, (real, _) = Mushroom(tmp_path), dpgan_tables.tables("mushroom", 3.0, 0)
    rows = real.schema.decode(real.encoded, np.random.default_rng(0)).to_pandas()
    release = SimpleNamespace(sample=lambda n, seed: rows.sample(n, replace=True, random_state=seed))
    # Shares of 6,499 rows, of columns of at most 12 values: a false alarm in 1,000 of such seeds.
    assert dpgan_tables.farthest(task, release, 3.0, 1) < 0.02
    others = (rows["cap-color"] != "n").mean()
    rows["cap-color"] = "n"
    assert abs(dpgan_tables.farthest(task, release, 3.0, 1) - others) < 0.02


def test_each_run_has_a_folder_of_its_own(tmp_path):
    task = Mushroom(tmp_path)
    folders = [
        dpgan_tables.folder_of(task, name, epsilon, run)
        for name in dpgan_tables.VARIANTS for epsilon in (1.0, 3.0) for run in range(2)
    ]  # fmt: skip
    assert len(set(folders)) == len(folders) and all(folder.parent == tmp_path for folder in folders)


def test_a_row_is_trained_once_and_told_with_its_spread(tmp_path, monkeypatch, capsys):
    made = []

    def scored(task, name, epsilon, run):
        made.append((task.data, name, epsilon, run))
        return [0.5 + 0.1 * run]

    monkeypatch.setattr(dpgan_tables, "scored", scored)
    monkeypatch.setattr(
        sys, "argv", ["dpgan_tables.py", str(tmp_path), "mushroom", "--runs", "2", "--only", "paper", "measured"]
    )
    for _ in range(2):
        dpgan_tables.main()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("mushroom, epsilon 3: RF, farthest column;")
        assert lines[1:] == ["paper: 0.5500 (0.0500)", "measured: 0.5500 (0.0500)"]
    assert made == [("mushroom", name, 3.0, run) for name in ("paper", "measured") for run in range(2)]


def test_rows_that_settings_are_chosen_on_are_held_out(tmp_path, monkeypatch):
    rows = [f"{number},x" for number in range(20)]

    def files(self, run):
        path = self.folder / f"all_{run}.csv"
        path.write_text("\n".join(["age,job", *rows]) + "\n")
        return path, ADULT

    monkeypatch.setattr(AdultBalanced, "files", files)
    monkeypatch.setattr(dpgan_tables.AdultChosen, "n", 16)
    task = dpgan_tables.AdultChosen(tmp_path)
    held_out = []
    for run in range(2):
        table, _ = task.files(run)
        kept, aside = (path.read_text().splitlines()[1:] for path in (table, task.held_out(run)))
        assert len(kept) == 16 and sorted([*kept, *aside]) == sorted(rows)
        held_out.append(aside)
    assert held_out[0] != held_out[1] and np.isin(held_out[0], rows).all()


RESULTS = Path(__file__).parents[2] / "experiments/results"


def _kept_rows():
    """Return the last columns of the page's table, from what is kept of Adult."""
    rows = {}
    for about, found in Kept(RESULTS / "dpgan_tables.json").found.items():
        cell = json.loads(about)
        if cell["data"] == "adult-balanced":
            rows.setdefault((cell["epsilon"], *cell["variant"]), []).append(found)
    for (epsilon, *variant), found in rows.items():
        (forest, boosting, far), (spread, other, _) = np.mean(found, axis=0), np.std(found, axis=0)
        cells = [
            f"{forest:.3f} ({spread:.3f})",
            f"{boosting:.3f} ({other:.3f})",
            f"{far:.3f}, worst {np.max(found, 0)[2]:.3f}",
        ]
        yield pytest.param(" | ".join(cells).replace("0.", "."), id=f"{epsilon:g} {' '.join(variant)}")


@pytest.mark.parametrize("cells", _kept_rows())
def test_the_page_shows_the_results_that_are_kept(cells):
    assert f"| {cells} |" in (RESULTS.parent / "dpgan/README.md").read_text(encoding="utf-8")
