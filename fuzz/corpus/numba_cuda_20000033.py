"""Program 20000033, numba-cuda: failure 1: error: AttributeError: 'Boolean' object has no attribute 'bitwidth'"""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', "t1 = lay('bool', (4, 5), 'F', 34)"),
        Piece('module', "t2 = lay('i1', (1,), 'negative', 777)"),
        Piece('module', 'g3 = on_device(t1)'),
        Piece('path', 'g3', 'p4'),
        Piece('probe', """\
if $p4.size > 0:
    out[i] += (1.0 if $p4[(i * 1 + 1) % $p4.shape[0], -1] else 0.25)""", 'p4'),
        Piece('device', """\
@cuda.jit(device=True, inline="always")
def f_2($*i):
    acc = 0.0""", 'f_2'),
        Piece('f_2', """\
if $p4.size > 0:
    $p4[-1 - i % $p4.shape[0], 0] = i % 5 == 0"""),
        Piece('kernel', 'out[i] += f_2($*i)'),
    ),
    threads=8,
    size=8,
    policies=(),
    refused='',
    racy=True,
)
