"""Each check of what is written finds what it looks for, and names file and line."""

import subprocess
import sys
import tempfile

import pytest

from . import english, links, public_names, references, refusals, setting_names, structure
from .files import PAGES, write
from .programs import Mypy, read_mypy


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a file."""

    def write_file(text, name="written.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def _lines(findings):
    """Return the lines of the files that findings name."""
    return [int(finding.split(":")[1]) for finding in findings]


@pytest.mark.parametrize("text", ["x = 1  #: Of two.\n", '"""\n    What it is."""\n', "'How.'\n"])
def test_openings_without_a_subject_are_found(written, text):
    assert _lines(english.check_openings([written(text)], [])) == [1]


@pytest.mark.parametrize(
    ("text", "lines"), [("a: 1  # of it\n", [1]), ("# @package _global_\n# Of it\n", [2]), ("# It\n# of\n", [])]
)
def test_openings_of_settings_are_found(written, text, lines):
    assert _lines(english.check_openings([], [written(text, "a.yaml")])) == lines


def test_docstrings_are_found_wherever_a_statement_may_stand(written):
    kinds = (
        "if x:", "else:", "for x in y:", "else:", "while x:", "else:", "try:", "except E:", "else:", "finally:", "with x:",
        "match x:\n case 1:", "class C:", "def f():", "async def f():",
    )  # fmt: skip
    text = ""
    for kind in kinds:
        depth = 2 if "case" in kind else 1
        text += f"{kind}\n{' ' * depth}def own():\n{' ' * (depth + 1)}'Of one.'\n"
    path = written(text)
    assert [opening for _, opening in english._docstrings(path)] == ["Of one."] * len(kinds)
    assert len(list(english.check_openings([path], []))) == len(kinds)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f():\n    '''A sum.'''\n", [1]),
        ("\nasync def f():\n    '''`x` is.'''\n", [2]),
        ("def f():\n    '''Return it.'''\n", []),
        ("class A:\n    @property\n    def f(self):\n        '''The sum.'''\n", []),
        ("def test_f():\n    '''A law.'''\n", []),
    ],
)
def test_docstrings_without_a_verb_are_found(written, text, lines):
    assert _lines(english.check_verbs([written(text)])) == lines


def test_words_that_no_engineer_uses_are_found(written):
    assert _lines(english.check_words([written("one\nwhoever reads\nwhat comes of it\n", "page.md")])) == [2, 3]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\n% b\n", [2]),
        ("a" * 125, [1]),
        ("```\n" + "a" * 125 + "\n```\n", []),
        ("| a | " + "b" * 801 + " |\n", [1]),
        ("| " + "a | " * 500, []),
    ],
)
def test_lines_that_a_reader_of_a_page_would_lose_are_found(written, text, lines):
    assert _lines(english.check_lines_of_pages([written(text, "page.md")])) == lines


@pytest.mark.parametrize(
    "text",
    ["'set data.n=5'", "f'split.{name}={value}: expected'", "f'{path} (privacy.epsilon).'", "'raise privacy.epsilon.'"],
)
def test_a_message_that_names_a_setting_is_found(written, text):
    assert len(setting_names.NAMES) > 100
    assert _lines(setting_names.check_messages([written(text)])) == [1]


def test_a_setting_that_does_not_exist_is_found_on_a_page(written):
    text = "privacy.epsilon\nprivacy.epsilom data.json\n| earlier | today |\nprivacy.mu\n"
    assert _lines(setting_names.check_pages([written(text, "page.md")])) == [2]


def test_an_import_from_below_is_found(written):
    path = written("import os\nfrom lightning_dpgen.release import bundle\n", "package/data/a.py")
    for name in ("package/data/__init__.py", "package/other/__init__.py"):
        written("from lightning_dpgen.privacy import account\n", name)
    findings = list(structure.check_imports(path.parents[1]))
    assert _lines(findings[:1]) == [2] and "release" in findings[0]
    assert len(findings) == 2 and "no place" in findings[1]


def test_a_file_that_is_not_there_is_found_on_a_page(written):
    text = "`privacy/account.py`\n`privacy/no_such.py`, `conf/config.yaml`\n"
    assert _lines(structure.check_files_of_pages([written(text, "page.md")])) == [2]


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (("", ""), None),
        (("  privacy/   money\n", ""), "the map lists"),
        (("account.py plan.py", "account.py\n           no_such.py"), "no such file: privacy/no_such.py"),
        (("           first: lots.py\n", ""), "no file of sampling/"),
    ],
)
def test_mistakes_of_the_map_are_found(written, change, finding):
    first = {"privacy": "account.py plan.py", "sampling": "lots.py"}
    text = "# A\n## Where things live\n```\n"
    for folder in structure.ORDER:
        text += f"  {folder}/   money\n           first: {first.get(folder, '__init__.py')}\n"
    assert change[0] in text
    page = written(text.replace(*change) + "conf/\n```\n", "page.md")
    findings = list(structure.check_map(page))
    assert _lines(findings) == [2] * len(findings)
    assert finding in findings[0] if finding else not findings


def test_mistakes_of_rooms_are_found(written):
    text = '"""Money.\n\nRead first: plan.py, {}.\n"""\n'
    written("", "package/privacy/plan.py")
    for room, name in (("privacy", "plan.py"), ("data", "privacy/plan.py"), ("release", "no_such.py")):
        page = written(text.format(name).replace("plan.py,", "privacy/plan.py,"), f"package/{room}/__init__.py")
    written('"""Studies."""\n', "package/privacy/studies/__init__.py")
    findings = list(structure.check_rooms(page.parents[1]))
    assert _lines(findings) == [1, 3] and "no_such.py" in findings[1]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("## D1. A\n\n## D2. B\n\nD1\n", []),
        ("## D2. A\n\n## D1. B\n", [3]),
        ("## D1. A\n\n## D1. B\n", [3]),
        ("## D1. A\n\nsee D4\n", [3]),
    ],
)
def test_wrong_numbers_of_decisions_are_found(written, text, lines):
    record = written(text, "decisions/page.md")
    assert _lines(structure.check_decisions(record.parent, written("", "page.md"))) == lines


@pytest.mark.parametrize(
    ("message", "source", "found"),
    [
        ("a b", "x = 'a ' 'b'", True),
        ("a ... b", "x = f'a {x} ' 'b'", True),
        ("a x b", "x = f'a {x} b'", False),
        ("a b", "x = f'a {x} b'", False),
        ("a ... b", "x = ['a', 'b']", False),
        ("a b", "'a b'", False),
    ],
)
def test_a_message_is_one_string(message, source, found):
    assert any(refusals._pattern(message).search(text) for text in refusals._strings(source)) == found


@pytest.mark.parametrize(
    ("row", "finding"),
    [
        ("| `the lot has ... records` | it is | cure it |", None),
        ("| `the lot has no records` | it is | cure it |", "no message"),
        ("| `the lot ...` | it is | cure it |", "no message"),
        ("| the lot has ... records | it is | cure it |", "is code"),
        ("| `the lot has ... records` | it is |", "a reason and a cure"),
        ("| `the number of rows is odd` | it is | cure it |", "twice"),
    ],
)
def test_mistakes_of_the_page_of_refusals_are_found(written, row, finding):
    code = written("x = [f'the lot has {n} records', 'the number of rows is odd']\n")
    head = "| message | reason | cure |\n| --- | --- | --- |\n| `the number of rows is odd` | it is | cure it |\n"
    page = written(f"{head}{row}\n", "page.md")
    findings = list(refusals.check_refusals(page, [code], fewest=2))
    assert _lines(findings) == [4] * bool(finding)
    assert not finding or finding in findings[0]
    assert "rows were found" in next(refusals.check_refusals(page, [code]))


def test_a_public_function_without_words_or_types_is_found():
    def unnamed(x, *, y: int = 1): ...

    findings = list(public_names.check_signatures({"unnamed": unnamed}))
    assert len(findings) == 3 and all(finding.startswith("tests/prose/test_prose.py:") for finding in findings)
    assert "no docstring" in findings[0] and "no type for x" in findings[1] and "for its result" in findings[2]


def test_a_name_in_an_error_that_cannot_be_imported_is_found(written):
    code = "def compose(): ...\ndef fit(): ...\nclass _Own: ...\nif x:\n    raise TypeError(f'not {y}: compose(')\n"
    code += "raise ValueError('compose a fit() of .compose() and _Own')\n"
    findings = list(public_names.check_errors([written(code)]))
    assert _lines(findings) == [5] and "no public name" in findings[0]


def test_a_name_that_is_not_there_is_found_in_the_reference(written):
    text = public_names.REFERENCE.read_text(encoding="utf-8")
    assert not list(public_names.check_reference())
    findings = list(public_names.check_reference(written(text.replace("`verify`", "`verifi`"), "page.md")))
    assert any("lightning_dpgen has no verifi" in finding for finding in findings)
    assert any("verify is listed" in finding for finding in findings)


@pytest.mark.parametrize(
    ("link", "lines"),
    [("page.md", []), ("#two-words", []), ("#anchor", []), ("https://a.b", []), ("other.md", [3]), ("page.md#three", [3])],
)
def test_a_link_that_leads_nowhere_is_found(written, link, lines):
    page = written(f"# Two *words*\n(anchor)=\n[text]({link})\n```\n[a](b.md)\n```\n", "page.md")
    assert _lines(links.check_links([page])) == lines


def test_a_section_that_is_not_there_is_found(written):
    page = "docs/DESIGN.md"
    text = f'# {page},\n# "Where things live"\n\n# {page} ("No such part")\n'
    assert [finding.endswith("No such part") for finding in links.check_sections([written(text)])] == [True]


def test_names_of_no_type_are_found(tmp_path):
    words = 'a.py:1: error: wrong\nr.py:1: note: Revealed type is "Any"\nr.py:2: note: Revealed type is "int"'
    process = subprocess.Popen([sys.executable, "-c", f"print({words!r})"], stdout=subprocess.PIPE, text=True)
    mypy = Mypy(process, ["reveal_type(a.b)", "reveal_type(a.c)"], tempfile.TemporaryDirectory(dir=tmp_path))
    assert list(read_mypy(mypy)) == ["a.py:1: error: wrong", "mypy: reveal_type(a.b): Any"]


def test_a_finding_names_a_file_as_the_root_does():
    assert write(PAGES[0], 3, "x").startswith(f"{PAGES[0].name}:3: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("`PoissonLots`", True), ("`sampling.lots.PoissonLots`", True), ("lots.py", True), ("`sampling/lots.py`", True),
        ("`PoissonLot`", False), ("`samplings.lots.PoissonLots`", True), ("`sampling.lot.PoissonLots`", False),
        ("lot.py", False), ("`sampling/lot.py`", False),
    ],
)  # fmt: skip
def test_names_that_are_nowhere_are_found(written, name, is_there):
    path = written(f'"""One.\n\nIt is as {name}."""\n\nx = 1  # as {name}\n')
    assert sorted(_lines(references.check_references([path]))) == ([] if is_there else [3, 5])
