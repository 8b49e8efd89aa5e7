"""Program 30000252, numba-cuda: the bytes between the fields of records that are compiled in were other ones at each look."""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', "t3 = lay('record', (1, 4), 'negative', 390)"),
        Piece('module', "t9 = lay('i2', (4,), 'C', 337)"),
        Piece('closure', 'c8 = Open((t9, cap.constant(t3)))'),
        Piece('path', 'c8.table[1]', 'p10'),
        Piece('probe', """\
if $p10.size > 0:
    out[i] += (float($p10[(i * 2 + 0) % $p10.shape[0], (i * 1 + 1) % $p10.shape[1]]['x']) + float($p10[(i * 2 + 0) % $p10.shape[0], (i * 1 + 1) % $p10.shape[1]]['n']))""", 'p10'),
        Piece('device', """\
@cuda.jit(device=True)
def f_1($*i, extra=1.5):
    acc = extra""", 'f_1'),
        Piece('f_1', """\
if $p10.size > 0:
    acc += (float($p10[(i * 3 + 2) % $p10.shape[0], 0]['x']) + float($p10[(i * 3 + 2) % $p10.shape[0], 0]['n']))"""),
        Piece('kernel', 'out[i] += f_1($*i)'),
    ),
    threads=8,
    size=5,
    policies=(),
    refused='',
    racy=True,
)
