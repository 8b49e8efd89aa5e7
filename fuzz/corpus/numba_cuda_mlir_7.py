"""Program 7, numba-cuda-mlir: records under the policy `constant` ended in an error that named no array."""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', """\
t1 = lay('record', (3,), 'C', 970)
"""),
        Piece('closure', 'c2 = Open(cap.constant(t1), 4)'),
        Piece('path', 'c2.table', 'p3'),
        Piece('kernel', "out[i] += float($p3[i % 3]['x'])"),
        Piece('probe', "out[i] += float($p3[0]['x'])", 'p3'),
    ),
    threads=8,
    size=8,
    policies=(),
    refused='',
    racy=False,
)
