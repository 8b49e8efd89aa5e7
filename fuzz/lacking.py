"""What compilers are known to lack, with arguments as with captures.

Programs are generated without it: a statement that the compiler refuses says nothing of captures, and one that it gets
wrong must not run on a GPU, where it may write outside of its array, and so, where that array is mapped, over the
memory of this process.  On the CPU one program in some is generated with all of it, so that what is said of it, and
what was mended since, is seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Lacking:
    """What one compiler lacks.

    Parameters
    ----------
    dtypes, layouts
        Of arrays, by the names that :mod:`fuzz.worlds` has for them.
    statements
        Patterns of statements that it lacks.
    of_many
        Patterns of statements that it lacks for arrays of two dimensions or more.
    """

    dtypes: frozenset[str] = frozenset()
    layouts: frozenset[str] = frozenset()
    statements: tuple[str, ...] = ()
    of_many: tuple[str, ...] = ()

    def has(self, statement: str, ndim: int) -> bool:
        """Whether a statement on an array of some dimensions is among it."""
        patterns = self.statements + (self.of_many if ndim > 1 else ())
        return any(re.search(pattern, statement) for pattern in patterns)


NOTHING = Lacking()

LACKING = {
    # numba.cuda.atomic has no index of no dimensions.
    "numba-cuda": Lacking(statements=(r"atomic\.\w+\(\S+, \(\)",)),
    # 0.6.0: records and dates compile in few forms; of arrays that are not aligned, other bytes are read; slices
    # with a step, a negative bound or an end behind the array are other elements, as is a negative index of an atomic
    # or of a slice that is written; `len` is not the first extent; transposing and iterating over bools do not compile.
    "numba-cuda-mlir": Lacking(
        dtypes=frozenset({"record", "M8[D]", "m8[s]"}),
        layouts=frozenset({"unaligned"}),
        statements=(
            r"atomic\.\w+\(\S+, \(\)",
            r"atomic\..*-1",
            r"\.T\b",
            r"::-?[12]|-2:|1:3|:-1",
            r"(?s)^v_\d+ = .*-1.*\] = ",
            r"1\.0 if x_",
        ),
        of_many=(r"\blen\(",),
    ),
}


def lacking_of(compiler: str, gpu: bool) -> Lacking:
    """What is not to be generated for a compiler."""
    known = LACKING[compiler]
    # numba-cuda reads and changes some arrays that are not aligned as if they were, which no GPU survives.
    return replace(known, layouts=known.layouts | {"unaligned"}) if gpu else known
