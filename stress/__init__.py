"""Programs that launch very often, make very many kernels, or launch from many threads at once, and count what stays.

``python -m stress launches``, ``kernels`` and ``threads`` need a GPU; each says what it found at some points, and exits
with 1 if anything grew beyond what it states, or a result was wrong.  ``python -m stress sanitize`` runs tests of the
GPU under compute-sanitizer.  ``python -m stress NAME --help`` says more.
"""
