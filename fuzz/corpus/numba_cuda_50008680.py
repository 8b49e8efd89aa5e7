"""Program 50008680, numba-cuda: the items of a tuple got different layouts when all of them had got another one."""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', "t2 = lay('m8[s]', (2,), 'repeated', 582)"),
        Piece('module', "h7 = (cap.mapped(t2), lay('m8[s]', (2,), 'repeated', 282))"),
        Piece('step1', "h7 = (lay('m8[s]', (1,), 'repeated', 484), lay('m8[s]', (1,), 'repeated', 443))"),
        Piece('path', 'h7', 'p8'),
        Piece('probe', """\
if $p8[i % 2].size > 0:
    out[i] += (1.0 if $p8[i % 2][-1] > $p8[i % 2][-1] else 0.5)""", 'p8'),
        Piece('kernel', """\
    for x_1 in $p8[i % 2]:
        out[i] += (1.0 if x_1 > $p8[i % 2][0] else 0.5)"""),
    ),
    threads=1,
    size=2,
    policies=(),
    refused='',
    racy=False,
)
