"""Program 30000251, numba-cuda: the bytes between the fields of records that are compiled in were other ones at each look."""

from fuzz.program import Piece, Program

# fmt: off
PROGRAM = Program(
    (
        Piece('module', "t1 = lay('record', (2,), 'C', 283)"),
        Piece('module', 'g3 = SimpleNamespace(table=cap.constant(t1), count=2)'),
        Piece('step2', "g3.table = cap.constant(lay('record', (4,), 'repeated', 529))"),
        Piece('path', 'g3.table', 'p4'),
        Piece('probe', """\
if $p4.size > 0:
    out[i] += (float($p4[(i * 1 + 0) % $p4.shape[0]]['x']) + float($p4[(i * 1 + 0) % $p4.shape[0]]['n']))""", 'p4'),
        Piece('device', """\
@cuda.jit(device=True)
def f_1($*i, extra=1.5):
    acc = extra""", 'f_1'),
        Piece('f_1', 'v_2 = $p4.T'),
        Piece('kernel', 'out[i] += f_1($*i)'),
    ),
    threads=1,
    size=2,
    policies=(),
    refused='',
    racy=False,
)
