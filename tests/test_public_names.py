"""The public names: few at the top, the rest in namespaces, imported when they are first used."""

import importlib.metadata
import subprocess
import sys

import pytest
from prose.files import PACKAGE, ROOT
from prose.public_names import LAZY, NAMESPACES, list_public

import lightning_dpgen


def test_few_names_are_at_the_top_and_all_others_in_a_namespace():
    top = list_public("lightning_dpgen")
    assert 30 <= len(top) <= 40
    assert {"clipping", "measure", "metrics", "privacy"} <= set(NAMESPACES)
    below = {name for package in NAMESPACES for name in getattr(lightning_dpgen, package).__all__}
    assert set(top) - below == {"Fitted", "__version__", "fit", "verify"}, "what is at the top is in its namespace, too"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = lightning_dpgen.no_such_name
    assert set(dir(lightning_dpgen)) == set(lightning_dpgen.__all__)


def test_the_package_says_its_version():
    assert lightning_dpgen.__version__ == importlib.metadata.version("lightning_dpgen")


def test_namespaces_cost_nothing_until_a_name_is_used():
    code = f"import sys\nimport {', '.join(LAZY)}\nassert not {{'torch', 'pytorch_lightning', 'numpy'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_the_package_says_that_it_has_types():
    assert (PACKAGE / "py.typed").is_file()
