"""How Sphinx builds these pages: ``sphinx-build -W --keep-going -b html docs site``."""

from __future__ import annotations

from pathlib import Path

import cuda_captures

HERE = Path(__file__).parent

project = "cuda-captures"
author = "The cuda-captures developers"
copyright = author
version = release = cuda_captures.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["plots/README.md"]
html_theme = "furo"
html_title = f"cuda-captures {release}"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist", "substitution"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_use_ivar = True


def plots() -> str:
    """The pictures that plot_benchmarks.py has drawn, as Markdown; where there are none, how to get them."""
    pictures = sorted((HERE / "plots").glob("*.png"))
    if not pictures:
        return "No plots were drawn before these pages were built."
    return "\n\n".join(f"![{picture.stem}](plots/{picture.name})" for picture in pictures)


myst_substitutions = {"plots": plots()}
