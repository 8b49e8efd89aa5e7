"""What findings say: reasons, and what to write instead."""

ENABLE = "call `cuda_captures.enable()` before the first launch"

ARGUMENT_OR_CAPTURES = (
    f"pass `{{last}}` to `{{function}}` as an argument; or {ENABLE}: it is then captured by reference."
)
OR_ASK = (
    " A small table that all threads read alike is well in constant memory: ask for it,"
    " `cuda.const.array_like({name})`."
)

COMPILED_FIX = (
    "pass `{last}` to `{function}` as an argument; or compile it with `cuda_captures.compile_with_slots`, and fill the"
    " slots: what `cuda.compile` gives holds captures whether or not `cuda_captures.enable()` is called."
)

OVER_LIMIT = (
    "numba copies a captured NumPy array into constant memory, which has 65,536 bytes: this does not compile, and ptxas"
    " names no variable."
)
UNKNOWN_SIZE = (
    "numba copies a captured NumPy array into constant memory: over 65,536 bytes it does not compile, threads that read"
    " different elements wait for each other, and edits on the host are not seen."
)
SMALL = (
    "numba copies a captured NumPy array into constant memory: threads that read different elements wait for each"
    " other, and edits on the host are not seen."
)
READONLY = "The kernel writes it, and the copy is read-only: this does not compile."
ATOMIC = "The kernel writes it, and the copy is in constant memory: the launch traps."
EDITED = "It is edited on the host after the kernel may have been compiled: launches keep the old contents."
CACHED_HOST = "With cache=True on {kernel}, a later process silently takes the old contents from the disk."
ATTRIBUTE = "It is an attribute of a module, which numba-cuda-mlir does not compile."

ADDRESS = (
    "numba compiles its address in: a launch on a second GPU ends in an illegal address, and when the name is bound to"
    " another array the old one is used."
)
CACHED_DEVICE = (
    "With cache=True on {kernel}, numba-cuda fails with a PicklingError, and numba-cuda-mlir takes a dead address from"
    " the disk in the next process."
)

TUPLE_HOST = (
    "numba copies NumPy arrays in a captured tuple into constant memory, read-only; numba-cuda-mlir ends in an internal"
    " error."
)
TUPLE_DEVICE = (
    "numba compiles the addresses of device arrays in a captured tuple in, and takes the arrays for read-only;"
    " numba-cuda-mlir ends in an internal error."
)
TUPLE_READONLY = "The kernel writes into it: this does not compile."

TOGETHER = (
    "numba copies captured NumPy arrays into constant memory, and a kernel has 65,536 bytes: this does not compile."
)
TOGETHER_FIX = f"pass the arrays as arguments; or {ENABLE}: they are then captured by reference."

_OBJECTS = "kernels cannot capture one: its items are Python objects that may change one by one."
_UNTYPED = "kernels cannot capture one: the compiler cannot type it."
CONTAINER = {
    "list": _OBJECTS,
    "dictionary": _OBJECTS,
    "set": _OBJECTS,
    "frozenset": _UNTYPED,
    "range": _UNTYPED,
}
CONTAINER_FIX = {
    "list": "make it an array, `{name} = np.array({name})`, and pass that as an argument; or a tuple, if it is short"
    " and never changes.",
    "dictionary": "make it two arrays, of keys and of values, or a named tuple.",
    "set": "make it an array, `{name} = np.array(sorted({name}))`, or a tuple.",
    "frozenset": "make it a tuple, `{name} = tuple(sorted({name}))`.",
    "range": "capture its bounds, and write `range(first, last)` in the kernel.",
}

OBJECT = "the compiler cannot type it, nor look up its attributes: this does not compile."
MEMBERS_FIX = (
    "give what is needed of it a name before the kernel is made, `{attribute} = {name}.{attribute}`, and use that; or"
    f" {ENABLE}: its attributes are then captured one by one."
)
OBJECT_FIX = (
    "give what is needed of it a name before the kernel is made, `{attribute} = {name}.{attribute}`, and use that; or"
    " pass that as an argument."
)

IF_ARRAY = (
    "If it is a NumPy array, numba copies it into constant memory (65,536 bytes at most, edits are not seen); if it is"
    " a device array, its address is compiled in; if it is a list, it is refused."
)
IF_ARRAY_FIX = (
    f"if it is an array, pass `{{last}}` to `{{function}}` as an argument, or {ENABLE}; a tuple of numbers is fine."
)
PARAMETER = "what `{name}` is cannot be told from the checked files."
ELSEWHERE = "`{{name}}` comes from `{dotted}`, which is not among the checked files."

REBOUND = "numba compiles the {what} that the name has at the first launch: later launches do not follow."
REBOUND_FIX = f"pass `{{last}}` to `{{function}}` as an argument; or {ENABLE}: launches then follow the name."
REBOUND_LATER = "it goes stale if the kernel is launched both before and after."
REBOUND_IN_FUNCTION = "it goes stale if that is executed after the first launch."

CACHED_VALUE = (
    "cache=True looks at the source of `{kernel}` alone ({path}): a later process in which the value is another"
    " silently takes the old one from the disk."
)
CACHED_ELSEWHERE = (
    "cache=True looks at the source of `{kernel}` alone ({path}): after an edit of {where} a later process silently"
    " takes the old value from the disk."
)
CACHED_FIX = (
    f"pass `{{last}}` as an argument, or leave cache=True out; or {ENABLE}: cached code is then looked up by its"
    " captures."
)
COMPUTED = "it goes stale only if what `{name}` is computed from differs from process to process."

OTHER_ORIGINS = "`{name}` is bound in several places, and what some of them give cannot be told."
OTHER_VALUES = "`{name}` is bound in several places: elsewhere it is {what}."
BY_CALLS = (
    "what `{name}` is was told from the calls in the checked files, a default or an annotation, or by a rule of thumb."
)
