"""A program from its number: arrays, the names that lead to them, what happens between launches."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from fuzz.lacking import NOTHING, Lacking
from fuzz.program import Piece, Program
from fuzz.statements import Subject, Writer
from fuzz.worlds import LAYOUTS

NUMBERS = ("f8", "f8", "f4", "i8", "i4", "u4", "u8", "i2", "i1", "u1", "u2", "f2", "c8", "c16", "bool")
OTHERS = ("M8[D]", "m8[s]", "record")
OTHER_WIDTH = {"f8": "f4", "f4": "f8", "i8": "i4", "i4": "i8", "u8": "u4", "u4": "u8"}
VIEWS = ("[1:]", "[::-1]", "[::2]", "[:-1]", "", ".T")
PLAIN_KINDS = tuple(dtype for dtype in NUMBERS if dtype not in ("f2", "c8", "c16"))

# Ways to name an array: what a name is bound to, in which ARRAY is the array; the path; and what a step assigns to.
CONTAINERS = (
    ("bare", "ARRAY", "NAME"),
    ("bare", "ARRAY", "NAME"),
    ("tuple", "(5, ARRAY)", "NAME[1]"),
    ("tuple", "(ARRAY, SECOND)", "NAME[-2]"),
    ("named", "Pair(ARRAY, 2.5)", "NAME.first"),
    ("nested", "(1, (Pair(SECOND, ARRAY), 7))", "NAME[1][0].second"),
    ("frozen", "Frozen(ARRAY, 4)", "NAME.table"),
    ("open", "Open(ARRAY, 4)", "NAME.table"),
    ("simple", "SimpleNamespace(table=ARRAY, count=2)", "NAME.table"),
    ("inner", "SimpleNamespace(inner=Frozen(ARRAY), count=2)", "NAME.inner.table"),
    ("tuple inside", "Open((SECOND, ARRAY))", "NAME.table[1]"),
    ("class", "type('Holder', (), {'table': ARRAY})", "NAME.table"),
    ("module", "ModuleType('tables')", "NAME.table"),
)
ATTRIBUTES = {"open", "simple", "class", "module"}  # those whose attribute can be bound anew


@dataclass
class Target:
    """An array of a program.

    Parameters
    ----------
    name
        Of the variable that has it.
    dtype, shape, layout
        As :func:`fuzz.worlds.laid` has them.
    policy
        ``live``, ``snapshot``, ``mapped``, ``constant`` or ``device``.
    viewed
        Whether another name has a view of its memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    policy: str
    viewed: bool = False

    def takes_place_of(self, other: Target) -> bool:
        """Whether a name of another array can be bound to this one."""
        alike = (self.dtype, len(self.shape)) == (other.dtype, len(other.shape))
        return alike and self.policy == other.policy == "live" and self.writable >= other.writable

    @property
    def writable(self) -> bool:
        """Whether kernels may write it."""
        return self.policy in ("live", "mapped", "device") and not (self.layout == "repeated" and self.shape)


@dataclass
class Generator:
    """What makes one program."""

    random: random.Random
    lacking: Lacking = NOTHING
    pieces: list[Piece] = field(default_factory=list)
    policies: dict[str, str] = field(default_factory=dict)
    targets: list[Target] = field(default_factory=list)
    counter: int = 0

    def new(self, prefix: str) -> str:
        """A name that the program does not have yet."""
        self.counter += 1
        return f"{prefix}{self.counter}"

    def put(self, section: str, text: str, name: str = "") -> None:
        """Add a piece."""
        self.pieces.append(Piece(section, text, name))

    def shape(self, ndim: int) -> tuple[int, ...]:
        """A small shape, seldom an empty one."""
        return tuple(
            self.random.choice((1, 2, 3, 3, 4, 5, 7, 0 if self.random.random() < 0.2 else 2)) for _ in range(ndim)
        )

    def lay(self, target: Target, shape: tuple[int, ...], layout: str) -> str:
        """Source text of a new array of a target's kind, marked as the target is."""
        made = f"lay({target.dtype!r}, {shape}, {layout!r}, {self.random.randrange(1000)})"
        if target.policy == "device":
            return f"on_device({made})"
        return f"cap.{target.policy}({made})" if target.policy in ("snapshot", "constant") else made

    def widened(self, target: Target) -> str:
        """Source text of a new array of another type, with which all that is done to a target can be done."""
        if target.dtype not in OTHER_WIDTH or target.policy == "device":
            return ""
        return self.lay(replace(target, dtype=OTHER_WIDTH[target.dtype]), target.shape, target.layout)

    def reshaped(self, target: Target) -> str:
        """Source text of a new array with the same contents in another shape."""
        if len(target.shape) < 2 or target.policy not in ("live", "constant"):
            return ""
        made = f"np.array({target.name}, order='C').reshape({target.shape[::-1]})"
        return f"cap.constant({made})" if target.policy == "constant" else made

    def target(self) -> Target:
        """A new array."""
        rng = self.random
        others = [dtype for dtype in OTHERS if dtype not in self.lacking.dtypes]
        dtype = rng.choice(NUMBERS if not others or rng.random() < 0.85 else others)
        shape = self.shape(rng.choice((0, 1, 1, 1, 2, 2, 3)))
        if self.targets and rng.random() < 0.4:  # of one kind with another, so that one can take the other's place
            dtype, shape = self.targets[0].dtype, self.shape(len(self.targets[0].shape))
        policy = rng.choice(("live",) * 7 + ("snapshot", "mapped", "constant", "device"))
        layout = rng.choice(("C", "C", "C", *(one for one in LAYOUTS if one not in self.lacking.layouts)))
        if policy == "device":
            dtype, layout = rng.choice(NUMBERS), rng.choice(("C", "F", "gapped", "negative", "permuted"))
        if policy == "constant" and layout == "repeated":  # is laid out anew, which its argument form is not
            policy = "live"
        target = Target(self.new("t"), dtype, shape, layout, policy)
        self.put("module", f"{target.name} = lay({dtype!r}, {shape}, {layout!r}, {rng.randrange(1000)})")
        self.targets.append(target)
        return target

    def subjects(self, target: Target) -> list[Subject]:
        """One or two names for an array, and for views of it."""
        rng, found = self.random, []
        views = [""]
        if target.policy == "live" and target.shape and rng.random() < 0.3:
            views.append(rng.choice(VIEWS))
            target.viewed = True
        for view in views:
            array = f"{target.name}{view}"
            if target.policy == "device":
                array = f"on_device({array})"
            elif target.policy in ("snapshot", "constant") or (target.policy == "live" and rng.random() < 0.1):
                array = f"cap.{target.policy}({array})"
            elif target.policy == "mapped" and rng.random() < 0.5:
                array = f"cap.mapped({array})"
            found.append(self.named(target, array, view))
        return found

    def named(self, target: Target, array: str, view: str) -> Subject:
        """Bind a name to an array, somehow, with what steps do to it."""
        rng = self.random
        if target.shape and not view and rng.random() < 0.12:
            return self.tuple_of_two(target, array)
        label, value, path = rng.choice(CONTAINERS)
        closure = rng.random() < 0.4
        name = self.new("c" if closure else "g")
        section = "closure" if closure else "module"
        second = self.new("t") if "SECOND" in value else ""
        if second:
            self.put("module", f"{second} = lay('i2', (4,), 'C', {rng.randrange(1000)})")

        def bound(text: str) -> str:
            lines = f"{name} = {value.replace('ARRAY', text).replace('SECOND', second)}"
            return f"{lines}\n{name}.table = {text}" if label == "module" else lines

        self.put(section, bound(array))
        path = path.replace("NAME", name)
        if target.policy == "mapped" and not array.startswith("cap."):
            self.policies[name if label == "bare" or rng.random() < 0.5 else path] = "mapped"
        for step in ("step1", "step2"):
            happening = rng.random()
            others = [one.name for one in self.targets if one.takes_place_of(target)]
            made = ""
            if others and happening < 0.15:
                made = rng.choice(others)  # which another name may have already, or a name of this array had before
            elif happening < 0.2 and target.policy != "snapshot":  # one copy for all snapshots of the same memory
                made = array
            elif happening < 0.35:
                same = rng.random() < 0.6
                shape = target.shape if same else self.shape(len(target.shape))
                layout = target.layout if same or not target.writable else rng.choice(("C", "F", target.layout))
                made = self.lay(target, shape, layout)
            elif happening < 0.4:
                made = self.widened(target)
            elif happening < 0.45:
                made = self.reshaped(target)
            if made:
                again = f"{path} = {made}" if label in ATTRIBUTES and rng.random() < 0.7 else bound(made)
                self.put(step, again)
        subject = Subject(self.new("p"), target.dtype, len(target.shape), target.writable, target.name, target.layout)
        self.put("path", path, subject.path)
        return subject

    def tuple_of_two(self, target: Target, array: str) -> Subject:
        """A tuple of arrays of one kind, of which an index that varies takes one."""
        name = self.new("h")
        self.put("module", f"{name} = ({array}, {self.lay(target, target.shape, target.layout)})")
        if self.random.random() < 0.3:
            first, second = (self.lay(target, self.shape(len(target.shape)), target.layout) for _ in "12")
            self.put("step1", f"{name} = ({first}, {second})")
        subject = Subject(self.new("p"), target.dtype, len(target.shape), target.writable, target.name, "", "[i % 2]")
        self.put("path", name, subject.path)
        return subject

    def scalar(self) -> str:
        """A captured number: its path."""
        rng = self.random
        values = [
            rng.choice(("3", "-2", "2.5", "True", "np.int16(7)", "np.float32(1.5)", "np.uint8(200)")) for _ in "123"
        ]
        closure = rng.random() < 0.5
        name = self.new("c" if closure else "g")
        kind, path = rng.choice(
            (("{}", "{}"), ("(0, {})", "{}[1]"), ("Frozen(0, {})", "{}.scale"), ("Open(0, {})", "{}.scale"))
        )
        self.put("closure" if closure else "module", f"{name} = {kind.format(values[0])}")
        for step, value in zip(("step1", "step2"), values[1:], strict=True):
            if rng.random() < 0.35:
                self.put(step, f"{name} = {kind.format(value)}")
        path_name = self.new("s")
        self.put("path", path.format(name), path_name)
        return path_name


def generate(number: int, lacking: Lacking = NOTHING) -> Program:
    """The program of a number, for a compiler that lacks something."""
    rng = random.Random(f"captures {number}")
    make = Generator(rng, lacking)
    targets = [make.target() for _ in range(rng.choice((1, 1, 2, 2, 3)))]
    subjects = [subject for target in targets for subject in make.subjects(target)]
    scalars = [make.scalar() for _ in range(rng.choice((0, 0, 1, 2)))]
    for target in targets:
        edits = target.writable or target.policy in ("snapshot", "constant")
        if edits and target.policy != "device" and not (target.layout == "repeated" and target.shape):
            for step in ("step1", "step2"):
                if rng.random() < 0.4:
                    make.put(step, f"alter({target.name}, {rng.randrange(1000)})")
    # Arrays as default values are compiled in, so only those that nothing can write.
    unwritten = [one for one in targets if one.policy == "live" and not one.writable]
    defaults = [Subject("", one.dtype, len(one.shape), False, one.name) for one in unwritten]
    writer = Writer(rng, subjects, scalars, defaults, lacking)
    writer.write(make.put)
    refused = ""
    if rng.random() < 0.04:
        refused = writer.forbidden(make.put)
    return Program(
        tuple(make.pieces),
        threads=rng.choice((1, 3, 8, 8, 8)),
        size=rng.choice((8, 8, 5)),
        policies=tuple(make.policies.items()),
        refused=refused,
        racy=writer.writes,
    )
