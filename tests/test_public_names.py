"""The public names: few at the top, the rest in namespaces, each with types, and among them all that errors speak of."""

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import lightning_dpgen

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "lightning_dpgen"
NAMESPACES = sorted(name for name in lightning_dpgen.__all__ if inspect.ismodule(getattr(lightning_dpgen, name)))
# All packages whose names are imported when they are first used.
LAZY = ["lightning_dpgen", *(f"lightning_dpgen.{name}" for name in NAMESPACES if name != "clipping")]


def _public(package):
    """Return the public names of a package, and the objects."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__ if not inspect.ismodule(getattr(module, name))}


OFFERED = {name: found for package in ["lightning_dpgen.clipping", *LAZY] for name, found in _public(package).items()}


def test_few_names_are_at_the_top_and_all_others_in_a_namespace():
    top = _public("lightning_dpgen")
    assert 30 <= len(top) <= 40
    assert {"clipping", "measure", "metrics", "privacy"} <= set(NAMESPACES)
    below = {name for package in NAMESPACES for name in getattr(lightning_dpgen, package).__all__}
    assert set(top) - below == {"Fitted", "__version__", "fit", "verify"}, "what is at the top is in its namespace, too"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lightning_dpgen.no_such_name
    assert set(dir(lightning_dpgen)) == set(lightning_dpgen.__all__)


@pytest.mark.parametrize("name", sorted(OFFERED))
def test_every_name_is_documented_and_its_signature_has_types(name):
    found = OFFERED[name]
    assert found.__doc__, f"{name} has no docstring"
    functions = [found] if inspect.isfunction(found) else []
    if inspect.isclass(found):
        for value in [value for key, value in vars(found).items() if key == "__init__" or not key.startswith("_")]:
            value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            functions += [value] if inspect.isfunction(value) and value.__module__.startswith("lightning_dpgen") else []
    for function in functions:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name not in ("self", "cls")]
        missing = [
            p.name for p in parameters if p.annotation is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        assert not missing, f"{name}: {function.__qualname__} has no type for {missing}"
        assert "return" in function.__annotations__, f"{name}: {function.__qualname__} has no type for its result"


@pytest.mark.parametrize("package", LAZY)
def test_no_name_is_also_that_of_a_module(package):
    """Importing the module would put it in the place of the name."""
    module = importlib.import_module(package)
    inside = {info.name for info in pkgutil.iter_modules(module.__path__)}
    assert not inside & set(module.__all__) - (set(NAMESPACES) if module is lightning_dpgen else set())


def test_the_package_says_its_version():
    assert lightning_dpgen.__version__ == importlib.metadata.version("lightning_dpgen")


def test_namespaces_cost_nothing_until_a_name_is_used():
    code = f"import sys\nimport {', '.join(LAZY)}\nassert not {{'torch', 'pytorch_lightning', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def _defined():
    """Return the public classes and functions of the package."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    kinds = ast.ClassDef | ast.FunctionDef
    return trees, {node.name for tree in trees.values() for node in tree.body if isinstance(node, kinds)}


def _raised(tree):
    """Yield each statement that raises: only statements hold statements, so expressions are not visited."""
    nodes = [tree]
    for node in nodes:
        if isinstance(node, ast.Raise):
            yield node
        nodes += [own for name in ("body", "orelse", "handlers", "finalbody", "cases") for own in getattr(node, name, ())]


def test_every_name_that_an_error_speaks_of_can_be_imported():
    trees, defined = _defined()
    missing = {}
    for path, tree in trees.items():
        for node in _raised(tree):
            words = " ".join(x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str))
            # A method that is named after a dot belongs to an object that the reader has.
            for name, called in re.findall(r"(?<![\w.])([A-Za-z]\w+)(\(?)", words):
                told = name in defined and (name != name.lower() or called or "_" in name)
                if told and name not in OFFERED and not name.startswith("_"):
                    missing.setdefault(name, path.name)
    # A method of the engine, which bears the name of a function elsewhere.
    assert set(missing) <= {"make_private"}


def test_a_type_checker_finds_no_mistake_and_no_any(tmp_path):
    """In the files that `tool.mypy` names, in an engineer's program, and for each public name."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        files = tomllib.load(file)["tool"]["mypy"]["files"]
    every = [(package, name) for package in ["lightning_dpgen.clipping", *LAZY] for name in _public(package)]
    lines = [f"import {package}" for package in dict(every)] + [f"reveal_type({package}.{name})" for package, name in every]
    (tmp_path / "revealed.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [sys.executable, "-m", "mypy", "--strict-equality", "--no-error-summary", *files, "tests/typed_example.py"]
    ran = subprocess.run([*words, str(tmp_path / "revealed.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    revealed = re.findall(r'Revealed type is "(.*)"', ran.stdout)
    others = [line for line in ran.stdout.splitlines() if "Revealed type is" not in line]
    assert not others and not ran.stderr and ran.returncode == 0, "\n".join(others) + ran.stderr
    assert len(revealed) == len(every) and not [found for found in revealed if found == "Any" or "_wrapper" in found]


def test_the_package_says_that_it_has_types():
    assert (PACKAGE / "py.typed").is_file()
