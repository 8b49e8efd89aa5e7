"""``cuda-captures inspect``: what it prints, and its exit status."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings

from cuda_captures import backends
from cuda_captures.inspecting import signatures, targets
from cuda_captures.inspecting.deferring import deferring
from cuda_captures.inspecting.importing import IMPORT_FAILED, imported
from cuda_captures.inspecting.inspection import CompilationError, Inspection, inspect
from cuda_captures.inspecting.targets import InspectionError
from cuda_captures.report import Explanation


def main(options: argparse.Namespace) -> int:
    """Inspect what the command line names; captures are enabled already.

    Parameters
    ----------
    options
        ``target``, ``signature``, ``cc``, ``max_constant_bytes`` and ``json``, as the command line has them.

    Returns
    -------
    int
        Exit status: 0; 1 if a kernel does not compile or takes more constant memory than allowed; 2 for what cannot
        be inspected.
    """
    try:
        found, errors = inspected(options.target, options.signature, options.cc)
    except InspectionError as error:
        print(f"cuda-captures inspect: {error}", file=sys.stderr)
        return 2
    if options.json:
        as_dictionary = {
            "kernels": [one.to_dict() for one in found],
            "errors": [one.to_dict() for one in errors],
        }
        print(json.dumps(as_dictionary, indent=2))
    else:
        print("\n".join(map(shown, found)), end="")
    for wrong in errors:
        print(f"\nkernel `{wrong.name}` does not compile for {wrong.signature}:\n{wrong.text}", file=sys.stderr)
    limit = options.max_constant_bytes
    status = 1 if errors else 0
    return status if limit is None else max(status, checked(found, errors, limit))


def inspected(target: str, signature: str | None, cc: str) -> tuple[list[Inspection], list[CompilationError]]:
    """Import what was named and inspect its kernels.

    Raises
    ------
    InspectionError
        For what is not there, cannot be imported, or does not parse.
    """
    capability = signatures.compute_capability(cc)
    name, kernel = targets.split(target)
    with deferring() as deferred, contextlib.redirect_stdout(sys.stderr):
        program = imported(name)
    compilers = tuple(one.module.partition(".")[0] for one in backends.COMPILERS)
    kernels = targets.kernels_in(program.module, compilers)
    if program.stopped and (not kernels or (kernel is not None and kernel not in kernels)):
        raise InspectionError(IMPORT_FAILED.format(name=name, error=program.stopped))
    if program.stopped:
        print(STOPPED.format(name=name, error=program.stopped), file=sys.stderr)
    kernels = targets.chosen(kernels, kernel, name)
    if signature is not None:
        signatures.check(signature, next(iter(kernels.values())))
    found: list[Inspection] = []
    errors: list[CompilationError] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compilers' own, of performance
        for one, dispatcher in kernels.items():
            wanted = [signature] if signature is not None else deferred.of(dispatcher)
            inspection, wrong = inspect(one, dispatcher, wanted, capability)
            found.append(inspection)
            errors += wrong
    return found, errors


def shown(one: Inspection) -> str:
    """What was found out of a kernel, for people."""
    parts = []
    for report in one.reports:
        text = str(report)
        if one.kind != "kernel":
            text = text.replace("captures of kernel", f"captures of {one.kind}", 1)
        parts.append(text)
        if isinstance(report, Explanation):
            parts.append(f"slots: {', '.join(report.slots) or 'none'}\n")
    values = ", ".join(f"{name} = {text}" for name, text in one.values.items() if name != text)  # `int64 = int64`
    if values:
        parts.append(f"compiled in, and followed: {values}\n")
    parts += [f"not identified: `{name}`: {why}\n" for name, why in one.unknown.items()]
    return "".join(parts)


def checked(found: list[Inspection], errors: list[CompilationError], limit: int) -> int:
    """Say which kernels take more constant memory than allowed, or were not compiled; the exit status."""
    status = 0
    wrong = {one.name for one in errors}
    for one in found:
        if one.kind != "kernel" or one.name in wrong:
            continue
        if not one.reports[0].specialisations:
            print(NOT_COMPILED.format(name=one.name), file=sys.stderr)
            status = 2
        elif one.constant_bytes > limit:
            print(EXCEEDED.format(name=one.name, used=one.constant_bytes, limit=limit), file=sys.stderr)
            status = max(status, 1)
    return status


STOPPED = """\
{name} was imported up to where it needs a GPU; what it had made by then is shown.
{error}
"""
EXCEEDED = (
    "kernel `{name}`: its captures take {used:,} bytes of constant memory, and --max-constant-bytes allows {limit:,}"
)
NOT_COMPILED = (
    "kernel `{name}` was not compiled, so that its constant memory is not known: name its argument types with"
    " --signature"
)
