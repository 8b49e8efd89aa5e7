"""What a compiler may not do with a captured array, said alike by every backend."""

from __future__ import annotations

import builtins
import difflib
import functools
import linecache
from typing import Any

from cuda_captures.arrivals import arrived
from cuda_captures.errors import CaptureTypingError, pointer
from cuda_captures.members import is_users_class
from cuda_captures.places import function_of
from cuda_captures.session import Captured, current


def refuse_writes(effects: Any, function: Any, cause: BaseException | None = None) -> None:
    """Refuse a function that for certain writes a captured array that may not be written.

    Raises
    ------
    CaptureTypingError
        Naming the array, the line of the write, why it may not be written, and the ways out.
    """
    for captured, statement in effects.certainly.items():
        if isinstance(captured, Captured) and captured.signature.readonly:
            raise refused(captured, function, statement) from cause


def refused(captured: Captured, function: Any, statement: Any, through: str = "") -> CaptureTypingError:
    """What is raised for a captured array that a statement writes and that may not be written."""
    flags = "arrived" if arrived(captured.value) else "flags"
    reason, cure = READONLY[captured.policy if captured.policy in READONLY else flags]
    where = pointer(holding(function, statement.loc), captured.name, statement.loc.line)
    name = captured.name
    return CaptureTypingError(
        WRITES.format(name=name, where=where + through, reason=reason, cure=cure.format(name=name))
    )


def holding(function: Any, place: Any) -> Any:
    """The function that a place of compiled code was written in: not the compiled one where calls are inlined.

    Parameters
    ----------
    function
        What is compiled.
    place
        The compiler's: with ``filename`` and ``line``.
    """
    session = current()
    others = session.discovery.reached if session is not None else []
    for one in (function, *(reached.function for reached in others)):
        code = one.__code__
        if code.co_filename == place.filename and any(line == place.line for *_, line in code.co_lines()):
            return one
    return function


def refuse_writes_of_callees(front_end: Any, func_ir: Any, effects: Any, function: Any, cause: BaseException) -> None:
    """Refuse a function that hands an array that may not be written to one that writes it, and for that was not typed.

    What a function that was not typed writes of its own arguments is noted in the session, for those that call it.

    Raises
    ------
    CaptureTypingError
        Naming the array, the line of the call, the line of the write, and the ways out.
    """
    session = current()
    assert session is not None
    for index, statement in effects.certainly.items():
        if isinstance(index, int):
            name = func_ir.arg_names[index]
            written = name, pointer(function, name, statement.loc.line)
            session.writers.setdefault((function, index), written)
    for assign in front_end.assignments(func_ir):
        call: Any = assign.value
        if not isinstance(call, front_end.nodes("Expr")) or call.op != "call":
            continue
        callee = function_of(front_end.value_of(func_ir, call.func))
        for index, variable in enumerate(call.args):
            if callee is None or (callee, index) not in session.writers:
                continue
            argument, there = session.writers[callee, index]
            for origin in effects.refers.get(variable.name, ()):
                if isinstance(origin, int):
                    session.writers.setdefault((function, origin), (argument, there))
                elif origin.signature.readonly:
                    through = THROUGH.format(callee=callee.__name__, argument=argument, there=there)
                    raise refused(origin, function, assign, through) from cause


def note_place(error: BaseException, function: Any) -> None:
    """Add the line that could not be typed to an error of a compiler that does not say it.

    Parameters
    ----------
    error
        What type inference raised.
    function
        What it typed.
    """
    if getattr(error, "loc", None) is not None:
        return
    frames = error.__traceback__
    while frames is not None:
        place = getattr(frames.tb_frame.f_locals.get("constraint"), "loc", None)
        if place is not None:
            name = holding(function, place).__name__
            source = linecache.getline(place.filename, place.line).strip()
            error.add_note(f"{place.filename}:{place.line}, in {name}\n    {source}".rstrip())
            return
        frames = frames.tb_next


def refuse_object(named: Any, function: Any, cause: BaseException) -> None:
    """Refuse an object of a class of the user's, after the compiler has found no type for it.

    Raises
    ------
    CaptureTypingError
        Naming the object, and what to write instead.
    """
    kind = type(named.value)
    if current() is not None and kind in UNTYPABLE:
        where = pointer(function, named.name)
        cure = UNTYPABLE[kind].format(name=named.name)
        raise CaptureTypingError(NO_TYPE.format(name=named.name, kind=kind.__name__, where=where, cure=cure)) from cause
    if current() is not None and is_users_class(kind) and not isinstance(named.value, type):
        text = OBJECT.format(name=named.name, kind=kind.__qualname__, where=pointer(function, named.name))
        raise CaptureTypingError(text) from cause


def refuse_container(named: Any, function: Any) -> None:
    """Refuse a list, dictionary or set, also in a tuple: no compiler can lower these.

    Raises
    ------
    CaptureTypingError
        Naming the item, and what to write instead.
    """
    found = _container(named.name, named.value) if current() is not None else None
    if found is not None:
        name, value = found
        where = pointer(function, named.name)
        cures = CURES if name == named.name else CURES_IN_TUPLE
        cure = next(text for kind, text in cures.items() if isinstance(value, kind))
        cure = cure.format(name=name, whole=named.name)
        raise CaptureTypingError(CONTAINER.format(name=name, kind=type(value).__name__, where=where, cure=cure))


def _container(name: str, value: Any) -> tuple[str, Any] | None:
    """The first list, dictionary or set that something is or holds in tuples, with its name."""
    if isinstance(value, (list, set, dict)):
        return name, value
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", ())
        for index, item in enumerate(value):
            found = _container(f"{name}.{fields[index]}" if fields else f"{name}[{index}]", item)
            if found is not None:
                return found
    return None


def refuse_undefined(named: Any, function: Any, error: BaseException) -> None:
    """Raise what Python raises for a name that is nowhere, and say where it is used.

    Raises
    ------
    NameError
        Naming the variable, the function, the file, the line, and a name that is like it.  It is a typing error of
        the compiler as well, ``error`` being one: programs that expect that go on to work, and the compiler says
        which call of a device function it is about.
    """
    name = named.name
    function = holding(function, named.loc)
    namespace = function.__globals__
    if current() is None or name in namespace or name in function.__code__.co_freevars or hasattr(builtins, name):
        return
    if name == function.__name__:  # a function that calls itself
        return
    alike = difflib.get_close_matches(name, [*namespace, *function.__code__.co_varnames], 1)
    cure = f" Did you mean `{alike[0]}`?" if alike else ""
    text = UNDEFINED.format(name=name, where=pointer(function, name), cure=cure)
    undefined = _undefined(type(error))(text)  # type: ignore[arg-type]
    undefined.plain = text  # type: ignore[attr-defined]
    raise undefined from None


@functools.lru_cache(maxsize=8)
def _undefined(typing_error: type[BaseException]) -> type[BaseException]:
    described = {"__module__": "cuda_captures.errors", "__doc__": "A name that is nowhere."}
    return type("UndefinedName", (typing_error, NameError), described)


UNDEFINED = """\
NameError: name '{name}' is not defined
  {where}
Bind it before the kernel is compiled.{cure}"""

CURES: dict[type, str] = {
    list: "Make it an array, which is captured by reference: `{name} = np.array({name})`.",
    set: "Make it an array, which is captured by reference: `{name} = np.array(sorted({name}))`.",
    dict: (
        "Make it an object, whose attributes kernels read: `{name} = types.SimpleNamespace(**{name})`,\n"
        "or two arrays, of keys and of values."
    ),
}
CURES_IN_TUPLE: dict[type, str] = {
    list: "Make it an array, `np.array(...)`, or a tuple where `{whole}` is made.",
    set: "Make it an array, `np.array(sorted(...))`, or a tuple where `{whole}` is made.",
    dict: "Make it an object, `types.SimpleNamespace(...)`, or arrays of keys and of values, where `{whole}` is made.",
}

CONTAINER = """\
`{name}` is a {kind}, and kernels cannot capture a {kind}: its items are Python objects that may change one by one.
  {where}
{cure}"""

UNTYPABLE: dict[type, str] = {
    frozenset: "Make it a tuple, `{name} = tuple(sorted({name}))`.",
    range: "Capture its bounds, and write `range(first, last)` in the kernel.",
}

NO_TYPE = """\
`{name}` is a {kind}, and the compiler has no type for a {kind} from outside of a kernel.
  {where}
{cure}"""

OBJECT = """\
`{name}` is an object of class {kind}, and kernels cannot capture objects of just any class.
  {where}
Bind what the kernel needs to a name of its own before the kernel is defined (`part = {name}.part`), or make the class a
dataclass: kernels read the attributes of those."""

WRITES = """\
a kernel writes `{name}`, {reason}.
  {where}
{cure}"""

THROUGH = """
It is handed to `{callee}`, and written under the name `{argument}`:
  {there}"""

READONLY = {
    "flags": (
        "which is not writeable (its flags.writeable is False)",
        "Capture a writeable array: `{name} = {name}.copy()`, or `{name}.flags.writeable = True` if it owns its data.",
    ),
    "arrived": (
        "which came with the kernel from another process, and is read-only: kernels here share it",
        "Write `cuda_captures.live({name})` where the kernel is sent from: then each kernel that is sent has its own.",
    ),
    "snapshot": (
        "which is captured under the policy `snapshot`: kernels read a copy, and would write into that",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
    "constant": (
        "which is captured under the policy `constant`: constant memory cannot be written",
        "Write `cuda_captures.live({name})`, so that what kernels write comes back to it.",
    ),
}

UNTYPED = """\
`{name}` is captured, and the compiler cannot type it: {reason}
  {where}
Convert it to an array that the compiler takes as an argument."""
