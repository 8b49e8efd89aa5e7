"""The part of an executed module that no kernel brings: running every thread, and checking every address.

LLVM IR in text.  A bad address leaves the launch by ``longjmp``, so that no later instruction of the kernel runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from cpu_arguments import CELL
from cpu_runtime import SREGS, WARP_SIZE

READ, WRITE = 0, 1  # kinds of access, as a fault records them
UNRESTRICTED = -1  # as the number of regions: any address may be touched

# `device.fault` is: whether there is one, kind of access, address, size, alignment asked for, whether misaligned.
# glibc's jmp_buf is 200 bytes on x86-64 and 312 on AArch64.
HARNESS = f"""
@device.fault = global [6 x i64] zeroinitializer, align 8
@device.regions = global ptr null, align 8
@device.regions.count = global i64 0, align 8
@device.stack = internal global i64 0, align 8
@device.return = internal global [64 x i64] zeroinitializer, align 16
declare i32 @_setjmp(ptr) returns_twice
declare void @longjmp(ptr, i32) noreturn
declare ptr @llvm.frameaddress.p0(i32)

define internal void @device.check(i64 %address, i64 %size, i64 %align, i64 %kind) noinline {{
entry:
  %mask = sub i64 %align, 1
  %low = and i64 %address, %mask
  %misaligned = icmp ne i64 %low, 0
  %stop = add i64 %address, %size
  %count = load i64, ptr @device.regions.count
  %any = icmp eq i64 %count, {UNRESTRICTED}
  %empty = icmp eq i64 %size, 0
  %anywhere = or i1 %any, %empty
  br i1 %misaligned, label %fault, label %aligned
aligned:
  br i1 %anywhere, label %fine, label %stack
stack:
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %bottom = ptrtoint ptr %frame to i64
  %top = load i64, ptr @device.stack
  %above = icmp uge i64 %address, %bottom
  %below = icmp ule i64 %stop, %top
  %mine = and i1 %above, %below
  br i1 %mine, label %fine, label %next
next:
  %index = phi i64 [ 0, %stack ], [ %following, %region ]
  %following = add i64 %index, 1
  %more = icmp slt i64 %index, %count
  br i1 %more, label %region, label %fault
region:
  %regions = load ptr, ptr @device.regions
  %row = getelementptr [3 x i64], ptr %regions, i64 %index
  %start = load i64, ptr %row
  %stop.p = getelementptr i64, ptr %row, i64 1
  %end = load i64, ptr %stop.p
  %writable.p = getelementptr i64, ptr %row, i64 2
  %writable = load i64, ptr %writable.p
  %after = icmp uge i64 %address, %start
  %before = icmp ule i64 %stop, %end
  %allowed = icmp ule i64 %kind, %writable
  %inside = and i1 %after, %before
  %good = and i1 %inside, %allowed
  br i1 %good, label %fine, label %next
fine:
  ret void
fault:
  %bad = zext i1 %misaligned to i64
  store i64 1, ptr @device.fault
  store i64 %kind, ptr getelementptr ([6 x i64], ptr @device.fault, i32 0, i32 1)
  store i64 %address, ptr getelementptr ([6 x i64], ptr @device.fault, i32 0, i32 2)
  store i64 %size, ptr getelementptr ([6 x i64], ptr @device.fault, i32 0, i32 3)
  store i64 %align, ptr getelementptr ([6 x i64], ptr @device.fault, i32 0, i32 4)
  store i64 %bad, ptr getelementptr ([6 x i64], ptr @device.fault, i32 0, i32 5)
  call void @longjmp(ptr @device.return, i32 1)
  unreachable
}}
"""


def launcher(entry: str, parameters: Sequence[str]) -> str:
    """``device.launch(cells, grid x y z, block x y z)``: every thread of every block, in order of x, y, z.

    A fault in a thread ends the launch, as it does on a GPU.
    """
    loads = []
    for index, kind in enumerate(parameters):
        loads.append(f"  %cell.{index} = getelementptr i8, ptr %cells, i64 {CELL * index}")
        loads.append(f"  %argument.{index} = load {kind}, ptr %cell.{index}, align 1")
    arguments = ", ".join(f"{kind} %argument.{index}" for index, kind in enumerate(parameters))
    values = {
        "tid": ("%t.x", "%t.y", "%t.z"),
        "ctaid": ("%b.x", "%b.y", "%b.z"),
        "ntid": ("%bx", "%by", "%bz"),
        "nctaid": ("%gx", "%gy", "%gz"),
    }
    stores = []
    for index, name in enumerate(SREGS):
        register, _, axis = name.partition(".")
        value = values[register]["xyz".index(axis)] if axis else "%lane"
        stores.append(
            f"  store i32 {value}, ptr getelementptr ([{len(SREGS)} x i32], ptr @device.sregs, i32 0, i32 {index})"
        )
    return "\n".join(
        [
            "define void @device.launch(ptr %cells, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz) {",
            "entry:",
            *loads,
            "  %frame = call ptr @llvm.frameaddress.p0(i32 0)",
            "  %top = ptrtoint ptr %frame to i64",
            "  store i64 %top, ptr @device.stack",
            "  %bxy = mul i32 %bx, %by",
            "  %threads = mul i32 %bxy, %bz",
            "  %gxy = mul i32 %gx, %gy",
            "  %blocks = mul i32 %gxy, %gz",
            "  %jumped = call i32 @_setjmp(ptr @device.return) returns_twice",
            "  %faulted = icmp ne i32 %jumped, 0",
            "  br i1 %faulted, label %done, label %block",
            "block:",
            "  %b = phi i32 [ 0, %entry ], [ %b.next, %block.end ]",
            "  %b.more = icmp ult i32 %b, %blocks",
            "  br i1 %b.more, label %block.start, label %done",
            "block.start:",
            *place("b", "%b", "%gx", "%gy"),
            "  br label %thread",
            "thread:",
            "  %t = phi i32 [ 0, %block.start ], [ %t.next, %thread.start ]",
            "  %t.more = icmp ult i32 %t, %threads",
            "  br i1 %t.more, label %thread.start, label %block.end",
            "thread.start:",
            *place("t", "%t", "%bx", "%by"),
            f"  %lane = urem i32 %t, {WARP_SIZE}",
            *stores,
            f'  call void @"{entry}"({arguments})',
            "  %t.next = add i32 %t, 1",
            "  br label %thread",
            "block.end:",
            "  %b.next = add i32 %b, 1",
            "  br label %block",
            "done:",
            "  ret void",
            "}",
        ]
    )


def place(prefix: str, linear: str, x: str, y: str) -> list[str]:
    """A linear index taken apart into ``%prefix.x``, ``.y`` and ``.z``."""
    return [
        f"  %{prefix}.x = urem i32 {linear}, {x}",
        f"  %{prefix}.yz = udiv i32 {linear}, {x}",
        f"  %{prefix}.y = urem i32 %{prefix}.yz, {y}",
        f"  %{prefix}.z = udiv i32 %{prefix}.yz, {y}",
    ]
