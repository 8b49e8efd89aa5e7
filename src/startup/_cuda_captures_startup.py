"""Captures in programs that are not edited: CUDA_CAPTURES=1 in the environment of an interpreter.

A line in ``cuda_captures.pth``, installed beside this module, leads here.  It runs in every interpreter that has the
variable, most of which never see a compiler, so that nothing is imported here, neither the package nor what it stands
on (which may lie in a directory that is not on ``sys.path`` yet).  The package is imported when the program first
looks for a compiler.  What goes wrong then is raised there, where the program can see it.
"""

import sys

COMPILERS = ("numba.cuda", "numba_cuda_mlir")


class Summons:
    """A finder that finds nothing by itself, and brings in the package when a compiler is looked for.

    One per interpreter.  It stays on ``sys.meta_path``, because taking a finder away while another thread imports
    makes that thread miss one.
    """

    def __init__(self):
        self.answered = False

    def find_spec(self, name, path=None, target=None):
        """None, but for a compiler: then what the finders say once captures are enabled."""
        if self.answered or name not in COMPILERS:
            return None
        self.answered = True
        try:
            import cuda_captures  # noqa: F401  # enables captures: the variable is set
        except BaseException as error:
            self.answered = False
            error.add_note("Captures were asked for by CUDA_CAPTURES=1; unset it to run without them.")
            raise
        from importlib.util import find_spec

        return find_spec(name)


SUMMONS = Summons()


def install():
    """Wait until the program looks for a compiler; again and again is the same, as ``site`` may read a file twice."""
    if SUMMONS not in sys.meta_path:
        sys.meta_path.insert(0, SUMMONS)
