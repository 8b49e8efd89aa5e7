"""From the LLVM IR that numba-cuda lowers to LLVM IR that runs on the host.

The steps of :func:`translate`, each on text, because llvmlite's bindings change no instructions:

1. upstream's own replacement of ``___numba_atomic_…`` declarations; names of NVVM's intrinsics and lines of PTX
   become names that :mod:`cpu_runtime` defines; debugging information goes;
2. the modules and the device functions of :mod:`cpu_runtime` are linked, under NVPTX's data layout, so that LLVM
   prints the alignment that NVVM would assume of every access;
3. slots, declared ``external`` in address space 4, get storage: here the harness defines them, as the PTX text
   does on a GPU;
4. before each load, store, atomic and copy comes a call that checks the address (:mod:`cpu_launcher`): the GPU
   faults on a misaligned access that an x86 processor forgives, and a test should fail where a process would crash;
5. integers are divided as on a GPU, where no divisor is an error;
6. ``device.launch``, which runs every thread of every block, one after another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import llvmlite.binding as llvm
from numba.cuda.cudadrv import nvvm

from cpu_launcher import HARNESS, READ, WRITE, launcher
from cpu_runtime import device_functions, function_name

DATA_LAYOUT = re.compile(r'^target (?:triple|datalayout) = ".*"\n', re.MULTILINE)
DEBUG_CALL = re.compile(r'^ *call void @"?llvm\.dbg\..*\n', re.MULTILINE)
DEBUG_NOTE = re.compile(r",? !dbg ![0-9]+")
DEBUG_UNITS = re.compile(r"^!(?:llvm\.(?:dbg\.cu|module\.flags)|nvvm\.annotations) = .*\n", re.MULTILINE)
ASSEMBLY = re.compile(r'call (?P<type>\w+) asm (?P<flags>[a-z ]*)"(?P<text>[^"]*)", "[^"]*"\((?P<args>[^()]*)\)')

NAME = r'(?:"[^"]*"|[-\w.$]+)'
DEFINITION = re.compile(rf"^define .*?@(?P<name>{NAME})\(")
GLOBAL = re.compile(
    rf"^@(?P<name>{NAME}) = (?P<words>(?:[a-z_]+ )*?)(?P<space>addrspace\((?P<number>\d+)\) )?"
    r"(?:externally_initialized )?(?P<kind>global|constant) (?P<rest>.*)$"
)
SLOT = re.compile(r"(?:i64|\[(?P<words>\d+) x i64\])(?:, align (?P<align>\d+))?")
ALLOCA = re.compile(rf"^  %(?P<name>{NAME}) = alloca ")
FIXED_ELEMENT = re.compile(
    rf"^  %(?P<name>{NAME}) = getelementptr [^%]*, ptr %(?P<base>{NAME})(?:, i\d+ -?\d+)+(?:, ![\w.]+ !\d+)*$"
)
POINTER = rf"ptr(?P<space> addrspace\(\d+\))? (?P<pointer>%{NAME}|inttoptr \([^()]*\))"
ALIGN = r", align (?P<align>\d+)"
LOAD = re.compile(rf"^  %\S+ = load (?:atomic |volatile )*(?P<type>.+?), {POINTER}(?: [a-z_]+)?{ALIGN}")
STORE = re.compile(rf"^  store (?:atomic |volatile )*(?P<value>.+), {POINTER}(?: [a-z_]+)?{ALIGN}")
ATOMIC = re.compile(
    rf"^  %\S+ = (?:atomicrmw (?:volatile )?\w+|cmpxchg (?:weak |volatile )*) ?{POINTER}, (?P<value>.+?)"
    rf"(?: syncscope\(.*?\))? (?:monotonic|acquire|release|acq_rel|seq_cst).*?{ALIGN}"
)
DIVISION = re.compile(
    rf"^  %(?P<name>{NAME}) = (?P<what>[su](?:div|rem)) (?:exact )?(?P<type>i(?P<bits>\d+)) "
    r"(?P<value>\S+), (?P<by>[^\s,]+)"
)
COPY = re.compile(r"call void @llvm\.mem(?P<what>cpy|move|set)\.\S+?\((?P<args>.*)\)")
COPY_POINTER = re.compile(rf"ptr(?P<space> addrspace\(\d+\))? (?:align (?P<align>\d+) )?(?P<pointer>%{NAME})")


class NotExecutable(Exception):
    """Device code needs something of a GPU that the CPU harness does not have; the message names it."""


@dataclass(frozen=True)
class HostCode:
    """LLVM IR for the host.

    Parameters
    ----------
    text
        One module.
    slots
        Size in bytes of each slot symbol that the code declares.
    statics
        Names of the arrays that the code holds itself, in the order of ``@device.statics``; and whether each may be
        written.
    """

    text: str
    slots: dict[str, int]
    statics: tuple[tuple[str, bool], ...]


def translate(texts: Sequence[str], entry: str) -> HostCode:
    """Translate the modules of a code library.

    Parameters
    ----------
    texts
        LLVM IR as numba-cuda hands it to NVVM, one text a module.
    entry
        Name of the kernel.

    Raises
    ------
    NotExecutable
        For PTX that nothing stands in for, and for external memory that is no slot (dynamic shared memory).
    """
    linked = link(texts)
    parameters = [str(argument.type) for argument in linked.get_function(entry).arguments]
    return Rewriting(entry).run(str(linked), parameters)


def link(texts: Sequence[str]) -> llvm.ModuleRef:
    """All modules of a library and the device functions that they call, in one."""
    context = llvm.create_context()
    head = f'target datalayout = "{nvvm.NVVM().data_layout}"\n'
    modules = [prepared(text) for text in dict.fromkeys(texts)]  # a library that two others link comes twice
    first, *others = (llvm.parse_assembly(head + text, context) for text in [*modules, device_functions()])
    for other in others:  # the device functions last: only those that are called by then are taken
        first.link_in(other)
    return first


def prepared(text: str) -> str:
    """One module without the triple, with the names of :mod:`cpu_runtime` for intrinsics and PTX."""
    text = nvvm.llvm_replace(text) + "\n"
    for pattern in (DATA_LAYOUT, DEBUG_CALL, DEBUG_UNITS, DEBUG_NOTE):
        text = pattern.sub("", text)
    text = text.replace("llvm.nvvm.", "device.nvvm.")
    declared: dict[str, str] = {}

    def call(found: re.Match[str]) -> str:
        name = function_name(found["text"])
        if name is None:
            raise NotExecutable(f"the kernel has a line of PTX for which the CPU harness has nothing: {found['text']}")
        types = ", ".join(argument.split()[0] for argument in found["args"].split(",") if argument)
        declared[name] = f'declare {found["type"]} @"{name}"({types})'
        return f'call {found["type"]} @"{name}"({found["args"]})'

    return ASSEMBLY.sub(call, text) + "\n" + "\n".join(declared.values()) + "\n"


class Rewriting:
    """The lines of the linked module, made to run on the host."""

    def __init__(self, entry: str) -> None:
        self.entry = entry
        self.slots: dict[str, int] = {}
        self.statics: list[tuple[str, bool, str]] = []
        self._on_stack: set[str] = set()
        self._checks = 0

    def run(self, text: str, parameters: Sequence[str]) -> HostCode:
        lines = [line for original in text.splitlines() for line in self.line(original)]
        made = [*lines, HARNESS, self.statics_table(), launcher(self.entry, parameters)]
        return HostCode("\n".join(made), self.slots, tuple((name, writable) for name, writable, _ in self.statics))

    def line(self, line: str) -> Iterator[str]:
        """What one line becomes."""
        if line.startswith("target "):
            return
        if line.startswith("@"):
            yield from self.symbol(line)
        elif line.startswith("define "):
            self._on_stack = set()
            yield self.definition(line)
        else:
            yield from self.checks(line)
            division = DIVISION.match(line)
            yield from self.divided(division) if division else (line,)

    def divided(self, found: re.Match[str]) -> Iterator[str]:
        """A division that gives something whatever the divisor is: an x86 processor would end the process."""
        self._checks += 1
        this, kind, by, value = f"%divisor.{self._checks}", found["type"], found["by"], found["value"]
        lowest = -(1 << (int(found["bits"]) - 1)) if found["what"].startswith("s") else 0
        yield f"  {this}.zero = icmp eq {kind} {by}, 0"
        yield f"  {this}.minus = icmp eq {kind} {by}, -1"
        yield f"  {this}.lowest = icmp eq {kind} {value}, {lowest}"
        yield f"  {this}.over = and i1 {this}.minus, {this}.lowest"
        yield f"  {this}.wrong = or i1 {this}.zero, {this}.over"
        yield f"  {this} = select i1 {this}.wrong, {kind} 1, {kind} {by}"
        yield f"  %{found['name']} = {found['what']} {kind} {value}, {this}"

    def definition(self, line: str) -> str:
        line = line.replace("define ptx_kernel ", "define ", 1)
        found = DEFINITION.match(line)
        if found and found["name"].strip('"') == self.entry:  # so that its frame is below the launcher's
            line = line.removesuffix("{") + "noinline {"
        return line

    def symbol(self, line: str) -> Iterator[str]:
        found = GLOBAL.match(line)
        if found is None or found["name"] == "llvm.used":
            return
        name = found["name"].strip('"')
        if "external" in found["words"]:
            slot = SLOT.fullmatch(found["rest"]) if found["number"] == "4" else None
            if slot is None:
                raise NotExecutable(f"the kernel uses external memory that is no slot: {line}")
            self.slots[name] = 8 * int(slot["words"] or 1)
            kind = found["rest"].partition(",")[0]
            self.add_static(found, writable=False)
            yield f"@{found['name']} = addrspace(4) global {kind} zeroinitializer, align {slot['align'] or 8}"
            return
        if not name.startswith(("device.", "_ZN08NumbaEnv")):
            self.add_static(found, writable=found["kind"] == "global" and found["number"] != "4")
        yield line

    def add_static(self, found: re.Match[str], writable: bool) -> None:
        """Let the kernel touch a symbol of its own."""
        pointer = f"@{found['name']}"
        if found["space"]:
            pointer = f"addrspacecast (ptr {found['space']}{pointer} to ptr)"
        row = f"ptr {pointer}, i64 {size_of(leading_type(found['rest']))}"
        self.statics.append((found["name"].strip('"'), writable, row))

    def statics_table(self) -> str:
        """Address and size of each array that the code holds itself."""
        rows = ", ".join(f"{{ ptr, i64 }} {{ {row} }}" for _, _, row in self.statics)
        count = len(self.statics)
        return f"@device.statics = global [{count} x {{ ptr, i64 }}] " + (f"[{rows}]" if count else "zeroinitializer")

    def checks(self, line: str) -> Iterator[str]:
        """The calls that check the addresses of one instruction."""
        if found := ALLOCA.match(line) or FIXED_ELEMENT.match(line):
            if "base" not in found.groupdict() or found["base"] in self._on_stack:
                self._on_stack.add(found["name"])
        elif found := LOAD.match(line):
            yield from self.check(found, size_of(found["type"]), READ)
        elif found := STORE.match(line) or ATOMIC.match(line):
            yield from self.check(found, size_of(leading_type(found["value"])), WRITE)
        elif found := COPY.search(line):
            args = split_top(found["args"])
            size = args[2].split()[1]
            for kind, argument in ((WRITE, args[0]), (READ, args[1])):
                pointer = COPY_POINTER.match(argument)
                if pointer and not (kind == READ and found["what"] == "set"):
                    yield from self.check(pointer, size, kind)

    def check(self, found: re.Match[str], size: str, kind: int) -> Iterator[str]:
        pointer = found["pointer"]
        if pointer.startswith("%") and pointer[1:] in self._on_stack:
            return
        self._checks += 1
        address = f"%device.address.{self._checks}"
        if pointer.startswith("%"):
            yield f"  {address} = ptrtoint ptr{found['space'] or ''} {pointer} to i64"
        else:
            address = pointer.removeprefix("inttoptr (i64 ").partition(" ")[0]
        yield f"  call void @device.check(i64 {address}, i64 {size}, i64 {found['align'] or 1}, i64 {kind})"


def size_of(kind: str) -> str:
    """The size of an LLVM type as a constant expression."""
    return f"ptrtoint (ptr getelementptr ({kind}, ptr null, i32 1) to i64)"


def leading_type(text: str) -> str:
    """The type at the start of ``type value``."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "{[<(") - (character in "}])>")
        if depth == 0 and character in " ,":
            return text[:position]
    return text


def split_top(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "{[<(") - (character in "}])>")
        if character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    return [*parts, text[start:].strip()]
