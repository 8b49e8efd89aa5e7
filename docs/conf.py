"""How Sphinx builds these pages: ``sphinx-build -W --keep-going -b html docs site``."""

from __future__ import annotations

import ast
from pathlib import Path

import cuda_captures

HERE = Path(__file__).parent

project = "cuda-captures"
author = "The cuda-captures developers"
copyright = author
version = release = cuda_captures.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"cuda-captures {release}"

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


def rooms() -> str:
    """The modules of the package by folder, each with the first sentence of its docstring, as tables."""
    source = HERE.parent / "src/cuda_captures"
    parts = []
    for folder in sorted({path.parent for path in source.rglob("*.py")}):
        parts += [f"**`{'.'.join(('cuda_captures', *folder.relative_to(source).parts))}`**", ""]
        parts += ["| module | what is in it |", "|---|---|"]
        for path in sorted(folder.glob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            said = " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|").replace("``", "`")
            parts.append(f"| `{path.stem}` | {said.replace(':func:', '').replace(':class:', '')} |")
        parts.append("")
    return "\n".join(parts)


myst_substitutions = {"plots": plots(), "rooms": rooms()}
