"""Sphinx over the pages that `docs/builder/stage.py` puts together: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the builder

import whence

project = "Whence"
author = "The Whence authors"
copyright = author
release = version = whence.__version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "builder.mathml", "builder.short_names", "builder.docstrings"]
root_doc = "index"
source_suffix = {".md": "markdown"}
exclude_patterns = ["files/**"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!whence\.).*"),  # other projects' pages are elsewhere, and nothing is asked for there
    (
        "py:.*",
        r"whence\.(captum|engine|runs|views|adapters\.requests|subject\.passes|evaluation\.(examples|columns)|registry\.F$).*",
    ),  # inside
]

myst_heading_anchors = 4  # as the pages' own links write them
myst_enable_extensions = ["attrs_inline"]
suppress_warnings = ["myst.header"]  # a page that is read on its own may begin below its first level

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"
default_role = "code"

html_theme = "furo"
html_title = "Whence"
html_static_path = ["builder/static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would ask for every page found, which a page that is opened as a file may not
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
