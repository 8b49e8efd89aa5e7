"""What a report advises, and why: each kind of advice is one function and one text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType

from cuda_captures.contents import CONSTANT_LIMIT
from cuda_captures.costs import MUCH, duration, ways_out
from cuda_captures.indexing import indexed_by_constants
from cuda_captures.key import Key
from cuda_captures.report import Advice, Row

TINY = 1024  # bytes of a table that may be folded into the instructions which use it
SCALARS = ("bool ", "int ", "float ", "complex ")
LARGE = 1 << 20  # bytes whose way back after each launch is worth a word
CLOSE = 0.8  # of constant memory

NamedIn = tuple[Row, CodeType | None]  # an array, and the code that names it


def advice_for(
    rows: Sequence[NamedIn], keys: Iterable[Sequence[Key]], kernel: str, constant: int
) -> tuple[Advice, ...]:
    """All advice about a kernel.

    Parameters
    ----------
    rows
        Its arrays.
    keys
        For each tuple of argument types, the keys of its specialisations.
    kernel
        Its name.
    constant
        Bytes of constant memory that its captures take.
    """
    found = [advice for row, code in rows for advice in _of_array(row, code)]
    for several in keys:
        found += frozen_scalars(several)
    if constant > CLOSE * CONSTANT_LIMIT:
        found.append(Advice(kernel, NEARLY_FULL.format(used=constant, limit=CONSTANT_LIMIT)))
    return tuple(dict.fromkeys(found))


def _of_array(row: Row, code: CodeType | None) -> Iterator[Advice]:
    if row.policy != "live":
        return
    costly = [copy for copy in row.copies if copy.way == "digest" and copy.cost >= MUCH]
    if costly:
        copy = costly[0]
        text = DIGESTED.format(nbytes=copy.nbytes, cost=duration(copy.cost), why=copy.why)
        yield Advice(row.name, f"{text} {ways_out(row.name, bool(row.written))}".replace("\n", " "))
    if row.written and row.nbytes >= LARGE and any(copy.downloads > 1 for copy in row.copies):
        yield Advice(row.name, COMES_BACK.format(nbytes=row.nbytes, name=row.name))
    local = row.name.rpartition(".")[2]
    if row.written is False and 0 < row.nbytes <= TINY and code is not None and indexed_by_constants(code, local):
        yield Advice(row.name, FOLDS.format(nbytes=row.nbytes, name=row.name))


def frozen_scalars(keys: Sequence[Key]) -> list[Advice]:
    """Advice for scalars in which alone specialisations differ: each of their values was compiled."""
    items = [dict(line.split(" = ", 1) for line in key.text.splitlines() if " = " in line) for key in keys]
    every = {label: None for one in items for label in one}
    varying = [label for label in every if len({one.get(label) for one in items}) > 1]
    found = []
    for label in varying:
        if not all(one.get(label, "").startswith(SCALARS) for one in items):
            continue
        alike: dict[tuple[str | None, ...], set[str]] = defaultdict(set)
        for one in items:
            alike[tuple(one.get(other) for other in varying if other != label)].add(one[label])
        count = max(map(len, alike.values()))
        if count > 1:
            name = label.rpartition(" ")[2]
            found.append(Advice(name, SCALAR.format(name=name, count=count)))
    return found


DIGESTED = "{nbytes:,} bytes are digested at each launch, which takes about {cost}: {why}."

COMES_BACK = (
    "{nbytes:,} bytes come back to the host after each launch. If only kernels use them, make `{name}` a device array: "
    "`{name} = cuda.to_device({name})`, and `{name}.copy_to_host()` when they are needed."
)

FOLDS = (
    "{nbytes:,} bytes, read at fixed indices only. `{name} = cuda_captures.constant({name})` compiles them into the "
    "instructions: no load is left."
)

SCALAR = (
    "has had {count} values, and each was compiled. Pass it as an argument, or put it in a 0-d array, which is "
    "followed without compiling: `{name} = np.array({name})`, read as `{name}[()]`."
)

NEARLY_FULL = (
    "captures take {used:,} of {limit:,} bytes of constant memory; over that, it does not compile. Leave out "
    "`constant(...)` or `cuda.const.array_like(...)` for the largest: captured arrays are in global memory."
)
