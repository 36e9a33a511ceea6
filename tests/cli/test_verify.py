"""`dpgen verify` passes an intact release and refuses a changed one, in a line that a person understands."""

import copy
import json
import os
import re
import shutil

import pytest
from contracts.sealed import rewrite

from lightning_dpgen.common import pace
from lightning_dpgen.privacy.accounting.accountant import INTERVALS
from lightning_dpgen.privacy.accounting.epsilon_range import gaussian_epsilon, round_up
from lightning_dpgen.privacy.accounting.pld import Unaccountable
from lightning_dpgen.privacy.noise.stream import SECURE, STANDARD
from lightning_dpgen.release.bounds import MOST_BYTES_IN_ALL
from lightning_dpgen.release.certificate import digest
from lightning_dpgen.release.drawing.opened import file_hash
from lightning_dpgen.verification.verify import verify

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_release_is_consistent_wherever_it_is_copied(dpgen, release):
    status, out, err = dpgen("verify", release)
    assert status == 0 and "CONSISTENT" in out and "epsilon recomputed" in out and not err


@pytest.mark.parametrize("words", [("verify",), ("sample", "--seed", 3), ("evaluate", "data=digits", "--seconds", 1e-9)])
def test_a_run_stands_for_its_release(dpgen, trained, words):
    command, *rest = words
    of_run, of_release = (dpgen(command, folder, *rest) for folder in (trained, trained / "release"))
    assert of_run == of_release and of_run[0] == 0


def test_a_release_within_a_release_is_not_checked_in_its_place(dpgen, trained, release):
    shutil.copytree(trained / "release", release / "release")
    rewrite(release, lambda c: c.__setitem__("epsilon", c["epsilon"] / 2))
    assert dpgen("verify", release)[0] == 2


def test_settings_are_there_as_a_whole_or_the_verdict_says_that_there_are_none(dpgen, release):
    """Else a certificate without its settings would look as one that was held against them."""
    assert "No settings say" not in dpgen("verify", release)[1]
    rewrite(release, lambda c: c["declared"].pop("model"))
    status, out, _ = dpgen("verify", release)
    assert (
        status == 2 and "BAD  declared: its settings are not whole: model='missing' beside classes, clipping, split" in out
    )
    rewrite(release, lambda c: [c["declared"].pop(name) for name in ("classes", "split", "clipping")])
    assert "model='missing', and this is a model that they make" in dpgen("verify", release)[1]
    rewrite(release, lambda c: c["declared"].update(model="a mixture of mine"))
    status, out, _ = dpgen("verify", release)
    assert status == 0 and "No settings say whether these events are all that the run needs" in out
    assert not verify(release).has_plan


def _event(tree):
    return lambda c: c.__setitem__("event", tree)


def _leaf(change):
    """Change the first noise multiplier of event and stage alike."""

    def apply(c):
        c["event"]["events"][0]["noise_multiplier"] = change
        c["stages"][0]["event"]["noise_multiplier"] = change

    return apply


def _both(first, second):
    return lambda c: (first(c), second(c))


def _finer(c):
    c["accountant"]["value_discretization_interval"] = INTERVALS[1]


GAUSSIAN = {"type": "GaussianDpEvent", "noise_multiplier": 5.0}


LAPLACE = {"type": "LaplaceDpEvent", "noise_multiplier": 2.0}
SAMPLED = {"type": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": GAUSSIAN}


def _stages(events):
    return [{"name": f"s{i}", "event": event, "epsilon": 1.0} for i, event in enumerate(events)]


def _different(count):
    return [{**SAMPLED, "event": {**GAUSSIAN, "noise_multiplier": 1.0 + i / 1000}} for i in range(count)]


def _sampled(inner):
    return _event({"type": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": inner})


def _nested(event, depth):
    for _ in range(depth):
        event = {"type": "SelfComposedDpEvent", "count": 10**9, "event": event}
    return event


STUDY = {"name": "x", "runs": 10, "epsilon": 9.0, "delta": 1e-5, "relation": "add_or_remove_one", "total_epsilon": 3.0}
SEALED = {
    "epsilon too small": (lambda c: c.update(epsilon=c["epsilon"] * 0.999), "the event tree costs"),
    "epsilon too large": (lambda c: c.update(epsilon=c["epsilon"] * 1.1), "costs only"),
    "stage too small": (lambda c: c["stages"][0].update(epsilon=0.1), "stage"),
    "delta 1/n": (lambda c: c.update(delta=0.001), "1/n"),
    "less noise": (_leaf(0.5), "costs"),
    "tiny noise": (_both(_finer, _leaf(1e-9)), "too fine for an event"),
    "no noise to speak of": (_leaf(1e-300), "accounted for"),
    "a stage left out": (lambda c: c["stages"].pop(), "composition of the stages"),
    "another relation": (lambda c: c.update(relation="replace_one"), "relation"),
    "above the budget": (lambda c: c.update(target_epsilon=c["epsilon"] / 2), "above the budget"),
    "no files": (lambda c: c.update(files={}, released=[]), "files"),
    "released without a hash": (lambda c: c["released"].append("other.bin"), "other.bin"),
    "a path outside": (lambda c: c["files"].update({"../x": "0" * 64}), "files"),
    "no accountant": (lambda c: c.update(accountant="PLD"), "accountant"),
    "too fine an interval": (lambda c: c["accountant"].update(value_discretization_interval=1e-9), "none that this"),
    "no interval": (lambda c: c["accountant"].update(value_discretization_interval=0), "the accountant is not"),
    "another accountant": (lambda c: c["accountant"].update(name="closed form"), "the accountant is not"),
    "a file that is not released": (lambda c: c["released"].remove("synthetic.parquet"), "not said to be released"),
    "two stages of one name": (lambda c: c["stages"][1].update(name=c["stages"][0]["name"]), "two stages"),
    "chosen among several": (lambda c: c.update(selection="the best of ten"), "selection"),
    "a study": (lambda c: c.update(study=STUDY), "study: epsilon 9 is above the total of 3"),
    "a study that costs less than its run": (
        lambda c: c.update(study=STUDY | {"epsilon": 0.1}),
        "less than what this run alone costs",
    ),
    "a study of a tiny delta": (lambda c: c.update(study=STUDY | {"epsilon": 2.9, "delta": 1e-300}), "study: delta"),
    "format by another type": (lambda c: c.update(format_version=True), "format_version"),
    "replacing made cheap": (lambda c: c["also"].update(replace_one_epsilon=0.1), "'also'"),
    "a cheap curve": (lambda c: c["also"]["curve"][0].__setitem__(1, 0.01), "'also'"),
    "a larger mu": (lambda c: c["also"].update(gaussian_mu=9.0), "'also'"),
    "a tiny delta": (lambda c: c.update(delta=1e-300), "delta"),
    "sampled composition": (_sampled({"type": "ComposedDpEvent", "events": [GAUSSIAN, GAUSSIAN]}), "merged before"),
    "sampled repetition": (_sampled({"type": "SelfComposedDpEvent", "count": 2, "event": GAUSSIAN}), "merged before"),
    "sampled twice": (
        _sampled({"type": "PoissonSampledDpEvent", "sampling_probability": 0.1, "event": GAUSSIAN}),
        "merged before",
    ),
    "sampled nothing": (_sampled({"type": "NonPrivateDpEvent"}), "merged before"),
    "a bomb": (_event(_nested(GAUSSIAN, 3)), "accesses"),
    "not private": (lambda c: c.update(private=False), "not a private release"),
    "seeded": (lambda c: c["noise"].update(seeded=True), "known seed"),
    "an unknown generator": (lambda c: c["noise"].update(source="AES-256, or so"), "noise.source"),
    "a foreign event": (_event({"type": "os.system", "command": "x"}), "os.system"),
    "huge count": (_event({"type": "SelfComposedDpEvent", "count": 10**15, "event": {}}), "accounted for"),
    "an interval at delta 0": (lambda c: c.update(delta=0.0), "cannot be accounted for"),
    "a pure event of stages that are not": (
        lambda c: c.update(event=LAPLACE, stages=_stages([GAUSSIAN]), delta=0),
        "composition of the stages",
    ),
    "stages that no replaced record is accounted for": (
        lambda c: c.update(event=GAUSSIAN, stages=_stages([LAPLACE, SAMPLED]), relation="replace_one"),
        "composition of the stages",
    ),
    "a noise stated twice": (lambda c: c["noise"]["sums"].append(c["noise"]["sums"][0]), "of access 0 is stated twice"),
    "a place between two": (lambda c: c["noise"]["sums"][0].update(access=0.0), "0.0 is not of type 'integer'"),
    "a reference behind a fraction": (lambda c: c.update(reference={"after": 1.0, "replaceable": True}), "'integer'"),
    "a foreign field": (lambda c: c.update(extra=1), "'extra' was unexpected"),
    "another format": (lambda c: c.update(format_version=99), "format_version"),
}


@pytest.mark.parametrize(("change", "words"), SEALED.values(), ids=SEALED.keys())
def test_a_certificate_that_was_changed_and_sealed_again(dpgen, release, change, words):
    rewrite(release, change)
    status, out, err = dpgen("verify", release)
    assert status == 2 and "NOT TO BE TRUSTED" in out and words in out and not err, out


@pytest.mark.parametrize("field", ["epsilon", "delta", "unit", "statement", "files", "declared", "versions"])
def test_any_change_breaks_the_digest(release, field):
    rewrite(release, lambda c: c.__setitem__(field, 0.5), seal=False)
    assert not verify(release).good


FIELDS = [
    "format_version", "private", "epsilon", "delta", "relation", "unit", "target_epsilon", "accountant", "event",
    "stages", "noise", "declared", "selection", "study", "released", "files", "versions", "statement", "digest",
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
def test_wrong_types_are_problems_and_not_crashes(dpgen, release, field):
    original = (release / "privacy.json").read_text()
    for value in (None, "x", 10**300, 10**400, True, [{}], {"a": [1]}):
        if value == json.loads(original)[field]:
            continue
        (release / "privacy.json").write_text(original)
        rewrite(release, lambda c, value=value: c.__setitem__(field, value), seal=False)
        status, _, err = dpgen("verify", release)
        # No double holds it, so readers would differ in what it is: the file is refused before anything in it is looked at.
        assert status == 2 and ("more than a double can hold" in err if value == 10**400 else not err)
    (release / "privacy.json").write_text(original)
    rewrite(release, lambda c: c.pop(field), seal=False)
    assert dpgen("verify", release)[0] == 2


def _append(path):
    path.write_bytes(path.read_bytes() + b" ")


FILES = {
    "changed": (lambda r: _append(r / "synthetic.parquet"), "file changed: synthetic.parquet"),
    "missing": (lambda r: (r / "samples.png").unlink(), "file missing: samples.png"),
    "too many": (lambda r: (r / "notes.txt").write_text("x"), "file too many: notes.txt"),
    "a folder": (lambda r: (r / "more").mkdir(), "file too many: more"),
    "a link": (
        lambda r: ((r / "README.md").rename(r.parent / "x"), (r / "README.md").symlink_to(r.parent / "x")),
        "README.md is not an ordinary file",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), FILES.values(), ids=FILES.keys())
def test_files(dpgen, release, spoil, words):
    spoil(release)
    status, out, _ = dpgen("verify", release)
    assert status == 2 and words in out


@pytest.mark.parametrize("name", ["model.json", "report.html", "README.md", "synthetic.parquet", "privacy.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop", "device", "too large"])
def test_only_ordinary_files_are_opened(dpgen, release, name, kind):
    path, away = release / name, release.parent / "away"
    path.rename(away)
    if kind == "too large":
        path.touch()
        os.truncate(path, MOST_BYTES_IN_ALL + 1)
    else:
        {
            "pipe": os.mkfifo,
            "folder": os.mkdir,
            "link": lambda path: path.symlink_to(away),
            "loop": lambda path: path.symlink_to(path.name),
            "device": lambda path: path.symlink_to("/dev/zero"),
        }[kind](path)
    for command in ("verify", "sample") if name == "model.json" else ("verify",):
        status, out, err = dpgen(command, release)
        if (command, kind) == ("sample", "link"):
            # Links, as in a cache of downloads.
            assert status == 0
        else:
            assert status == 2 and "Traceback" not in err and (name in out or name in err), (out, err)


def test_files_of_a_release_have_a_size_in_all(dpgen, release):
    for i in range(2):
        (release / f"f{i}").touch()
        os.truncate(release / f"f{i}", MOST_BYTES_IN_ALL // 2)
    rewrite(release, lambda c: c["files"].update({f"f{i}": "0" * 64 for i in range(2)}))
    status, out, _ = dpgen("verify", release)
    assert status == 2 and f"expected at most {MOST_BYTES_IN_ALL:,}" in out


@pytest.mark.parametrize("name", ["README.md", "report.html"])
def test_a_page_that_says_something_else(dpgen, release, name):
    text = (release / name).read_text()
    (release / name).write_text(text.replace("differentially private", "perfectly private"))
    rewrite(release, lambda c: c["files"].update({name: file_hash(release / name)}))
    status, out, _ = dpgen("verify", release)
    assert status == 2 and f"{name} does not hold the certificate's statement" in out


def test_what_would_take_forever_is_refused(dpgen, release):
    noise = {**GAUSSIAN, "noise_multiplier": 0.0351}
    event = {"type": "PoissonSampledDpEvent", "sampling_probability": 0.9, "event": noise}

    def expensive(c):
        _event(event)(c)
        c["accountant"]["value_discretization_interval"] = 5e-6

    rewrite(release, expensive)
    status, out, _ = dpgen("verify", release)
    assert status == 2 and "too fine for an event" in out


def test_stages_of_which_the_event_is_not_made_are_not_evaluated(dpgen, release):
    rewrite(release, lambda c: c.update(event=GAUSSIAN, stages=_stages(_different(1000))))
    status, out, _ = dpgen("verify", release)
    assert status == 2 and "composition of the stages" in out and "epsilon of stage" not in out


@pytest.mark.parametrize(("count", "words"), [(200, "more different noises"), (20, "is stated as 1.0")])
def test_stages_behind_a_reference_are_bounded_too(dpgen, release, count, words):
    """These stages are no part of the event, which costs little."""

    def change(c):
        stages, reference = _stages([GAUSSIAN, *_different(count)]), {**GAUSSIAN, "noise_multiplier": 1.0}
        stages[0]["epsilon"] = round_up(gaussian_epsilon(0.2, c["delta"]))
        c.update(event={"type": "ComposedDpEvent", "events": [GAUSSIAN, reference]}, stages=stages)
        c.update(reference={"after": 1, "replaceable": False}, epsilon=round_up(gaussian_epsilon(1.04**0.5, c["delta"])))
        c["accountant"].update(name="closed form", value_discretization_interval=0.0)

    rewrite(release, change)
    status, out, _ = dpgen("verify", release)
    assert status == 2 and words in out


def test_few_problems_are_printed_of_many(dpgen, release):
    rewrite(release, lambda c: c["files"].update({f"f{i}": "0" * 64 for i in range(60)}))
    status, out, _ = dpgen("verify", release)
    assert status == 2 and out.count("BAD") == 21 and re.search(r"BAD  and \d+ more\n", out)


def test_an_account_that_fails_is_a_problem(dpgen, release, monkeypatch):
    def also(*_):
        raise Unaccountable("no account of this")

    monkeypatch.setattr("lightning_dpgen.verification.epsilon_check.also", also)
    status, out, _ = dpgen("verify", release)
    assert status == 2 and "BAD  the event tree cannot be accounted for: no account of this" in out


def test_a_name_cannot_look_like_a_verdict(dpgen, release):
    (release / "x\nverdict: CONSISTENT. ").write_text("x")
    status, out, _ = dpgen("verify", release)
    assert status == 2 and not [line for line in out.splitlines() if line.startswith("verdict: CONSISTENT")]


def test_the_name_of_the_folder_cannot_look_like_a_verdict(dpgen, release):
    moved = release.rename(release.with_name("x\n  ok   all fine\x1b[31m"))
    status, out, _ = dpgen("verify", moved)
    assert status == 0 and "verdict: CONSISTENT" in out and "x?  ok   all fine?[31m" in out and "\x1b" not in out


def test_the_delta_of_a_study_that_says_little_is_noted(dpgen, release):
    for delta, noted in ((0.9999999999, True), (1e-6, False)):
        study = STUDY | {"epsilon": 90.0, "total_epsilon": 99.0, "delta": delta}
        rewrite(release, lambda c, study=study: c.update(study=study))
        _, out, _ = dpgen("verify", release)
        assert ("note study: delta=1 is 1/n or more" in out) == noted, out


def test_a_key_that_stands_twice_says_two_things(dpgen, release):
    path = release / "privacy.json"
    path.write_text(path.read_text().replace('"epsilon":', '"epsilon": 0.1, "epsilon":', 1))
    status, _, err = dpgen("verify", release)
    assert status == 2 and "'epsilon' appears twice" in err


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e400"])
def test_what_json_has_no_number_for(dpgen, release, text):
    path = release / "privacy.json"
    path.write_text(re.sub(r'"epsilon": [\d.]+', f'"epsilon": {text}', path.read_text(), count=1))
    status, out, err = dpgen("verify", release)
    assert status == 2 and "Traceback" not in err and "CONSISTENT" not in out


def _leaves(value, path=()):
    if isinstance(value, (dict, list)) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


# Fields that a certificate only quotes; nothing else in it contradicts them.
QUOTED = {"declared", "versions", "unit"}
# A target may be larger than what was spent. Names of noises are quoted, too.
QUOTED_FIELDS = {*(("stages", i, "name") for i in range(9)), ("accountant", "version"), ("target_epsilon",)}


def test_every_single_field_is_held_to_something(release):
    """Each leaf of a real certificate is changed in turn: unsealed, the digest shows it; sealed, something else does."""
    original = json.loads((release / "privacy.json").read_text())
    for path, value in _leaves(original):
        for seal in (False, True):
            if seal and (path[0] in {*QUOTED, "digest", "statement"} or path in QUOTED_FIELDS or "names" in path):
                continue

            def change(c, path=path, value=value):
                for key in path[:-1]:
                    c = c[key]
                if isinstance(value, bool):
                    c[path[-1]] = not value
                elif isinstance(value, (int, float)):
                    c[path[-1]] = value * 1.01 + 1e-9 if isinstance(value, float) else value + 1
                else:
                    c[path[-1]] = "0" * 64 if path[0] == "files" else "other"

            if not seal:
                changed = copy.deepcopy(original)
                change(changed)
                assert digest(changed) != changed["digest"], path
                continue
            (release / "privacy.json").write_text(json.dumps(original))
            rewrite(release, change, seal=seal)
            assert not verify(release).good, path


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", "null", "\ud800".encode("utf-8", "surrogatepass"), "[" * 10**5])
def test_what_is_no_certificate(dpgen, tmp_path, text):
    (tmp_path / "privacy.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    status, out, err = dpgen("verify", tmp_path)
    assert status == 2 and "Traceback" not in err and len((out + err).strip().splitlines()) <= 2


def test_no_release_at_all(dpgen, tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        status, _, err = dpgen("verify", place)
        assert status == 2 and err.startswith("dpgen: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("switch", ["privacy=off", "debug.private_seed=3"])
def test_what_is_not_private_is_labelled_and_refused(dpgen, tmp_path, switch, monkeypatch):
    """Wherever an epsilon could be read, before, during and after."""
    from .conftest import QUICK

    monkeypatch.delenv("TQDM_DISABLE")
    for seconds in ("_FIRST", "_LINE"):
        monkeypatch.setattr(pace, seconds, 0.0)
    status, out, err = dpgen("train", *QUICK, switch, f"run_dir={tmp_path / 'run'}")
    made = tmp_path / "run" / "release"
    certificate = json.loads((made / "privacy.json").read_text())
    assert status == 0 and certificate["private"] is False
    assert "NOT A PRIVATE RELEASE" in out and "training (NOT PRIVATE)" in err and not re.search(r"epsilon [\d.]+ of", err)
    for name in ("README.md", "report.html"):
        assert "NOT A PRIVATE RELEASE" in (made / name).read_text()
        assert "as private as" not in (made / name).read_text()
    if switch != "privacy=off":
        assert "debugging seed" in certificate["noise"]["source"] and certificate["noise"]["seeded"]
        for text in (err, dpgen("budget", switch)[2]):
            assert f"warning: {switch}: NOT PRIVATE" in text
    status, out, _ = dpgen("verify", made)
    assert status == 2 and "not a private release" in out
    shutil.rmtree(made)


def test_secure_noise_is_named_and_standard_noise_does_not_boast(dpgen, trained, tmp_path):
    from .conftest import QUICK

    assert dpgen("train", *QUICK, "privacy.noise=secure", f"run_dir={tmp_path / 'run'}")[0] == 0
    made = tmp_path / "run" / "release"
    certificate = json.loads((made / "privacy.json").read_text())
    assert certificate["private"] and (certificate["noise"]["source"], certificate["noise"]["seeded"]) == (SECURE, False)
    assert "come from a cryptographic generator" in certificate["statement"]
    assert SECURE in (made / "report.html").read_text()
    status, out, _ = dpgen("verify", made)
    assert status == 0 and "CONSISTENT" in out
    standard = json.loads((trained / "release" / "privacy.json").read_text())
    assert standard["noise"]["source"] == STANDARD and "not cryptographic" in standard["statement"]
    # A source of noise that is changed without the statement is noticed.
    rewrite(made, lambda c: c["noise"].update(source=STANDARD), seal=False)
    assert "the statement does not say what the fields say" in verify(made).problems
