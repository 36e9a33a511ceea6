"""The book's settings for Sphinx: `make -C docs html` builds it into docs/_build/html, without a network."""

from lightning_dpgen import __version__

project = "lightning_dpgen"
author = "the lightning_dpgen authors"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
# Docstrings name objects in single backticks. A name that the book has a page for becomes a link.
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_block"]
myst_heading_anchors = 4
# Notebooks hold their outputs: `python docs/run_notebooks.py` runs them.
nb_execution_mode = "off"
# A cell may mix Python with a command of the shell.
suppress_warnings = ["misc.highlighting_failure"]

autosummary_generate = True
# The packages load their names when they are first used, so nothing is imported from elsewhere in them.
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = False
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "lightning_dpgen"
html_favicon = "_static/icon.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def _link_by_last_name(app, env, node, content):
    """Resolve a name in a docstring as a reader does: by itself, wherever the object is documented, if only one has it."""
    name = node.get("reftarget", "").removesuffix("()")
    if node.get("refdomain") != "py" or not name.isidentifier():
        return None
    objects = env.domains.python_domain.objects
    found = [full for full in objects if full.rpartition(".")[2] == name and not objects[full].aliased]
    if len(found) != 1:
        return None
    node["reftarget"] = found[0]
    return env.domains.python_domain.resolve_xref(
        env, node["refdoc"], app.builder, node.get("reftype", "obj"), found[0], node, content
    )


def setup(app):
    app.connect("missing-reference", _link_by_last_name)
