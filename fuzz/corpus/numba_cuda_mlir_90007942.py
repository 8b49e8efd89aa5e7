"""Program 90007942, numba-cuda-mlir: the items of a tuple got different layouts when both had got another one, F."""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', "t1 = lay('c16', (1, 3, 1), 'C', 828)"),
        Piece('module', "h3 = (cap.mapped(t1), lay('c16', (1, 3, 1), 'C', 698))"),
        Piece('step1', "h3 = (lay('c16', (7, 4, 2), 'F', 784), lay('c16', (1, 7, 4), 'F', 240))"),
        Piece('path', 'h3', 'p4'),
        Piece('probe', """\
if $p4[i % 2].size > 0:
    out[i] += float($p4[i % 2][-1 - i % $p4[i % 2].shape[0], 0, -1].real + 2 * $p4[i % 2][-1 - i % $p4[i % 2].shape[0], 0, -1].imag)""", 'p4'),
        Piece('device', """\
@cuda.jit(device=True)
def f_4($*i):
    acc = 0.0""", 'f_4'),
        Piece('f_4', 'acc += $p4[i % 2].size + $p4[i % 2].ndim'),
        Piece('kernel', 'out[i] += f_4($*i)'),
    ),
    threads=1,
    size=2,
    policies=(),
    refused='',
    racy=False,
)
