"""Threads and processes that edit memory at random, against each way of noticing; millions of edits, none missed.

``CUDA_CAPTURES_EDITS`` says how many edits each case makes, and so does ``--edits`` of the script::

    python tests/test_watch_adversarial.py --edits 2000000 --way pages

A *device* is a ``bytearray`` that is changed by nothing but what a watch says is to be sent.  Edits go on while
memory is polled and sent, and now and then all stop; then one more poll must make every device equal to its host.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import multiprocessing
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import xxhash

from cuda_captures.watch import Watch, watch
from edits import EDITS, LIBC, Bytes, address_of, advise, anonymous, compiled_edits, mapped_anew, thrown_away

EDITS_EACH = int(os.environ.get("CUDA_CAPTURES_EDITS", "20000"))
THREADS = 4
POLLERS = 2
PROCESSES = 2
ROUND = 100  # edits of one thread between two stops, at most
BURST = 4_000  # of one thread of compiled code, likewise
SHARED = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS


Meddle = Callable[["Device", int, int], None]


@dataclass
class Device:
    """A copy on a device: of some of the host's bytes, kept up by a watch alone."""

    host: Bytes
    watch: Watch
    memory: bytearray

    def update(self, chance: random.Random, meddle: Meddle) -> int:
        """Send what is to be sent.  Now and then an upload fails half-way."""
        total = 0
        for start, stop in self.watch.poll():
            meddle(self, start, stop)
            fails = chance.random() < 0.02
            if fails:
                stop = chance.randint(start, stop)
            for at in range(start, stop, 300_000):
                end = min(at + 300_000, stop)
                staged = self.host[at:end].copy()
                self.memory[at:end] = staged.data
                meddle(self, at, end)
                self.watch.sent(at, staged)
            total += stop - start
            if fails:
                break
        return total

    def write(self, chance: random.Random, meddle: Meddle) -> None:
        """A kernel writes, and what it wrote is copied back."""
        size = chance.choice((1, 100, 5000, 60_000))
        start = chance.randrange(len(self.host))
        stop = min(start + size, len(self.host))
        written = np.frombuffer(chance.randbytes(stop - start), np.uint8)
        self.memory[start:stop] = written.data
        if chance.random() < 0.5:
            self.watch.receiving(start, stop - start)
        np.copyto(self.host[start:stop], written)
        meddle(self, start, stop)
        self.watch.received(start, written)

    def missed(self) -> int:
        """How many pieces of memory differ; they are made equal."""
        if xxhash.xxh3_128_digest(self.memory) == xxhash.xxh3_128_digest(self.host.data):
            return 0
        differs = np.frombuffer(self.memory, np.uint8) != self.host
        self.memory[:] = self.host.data
        return int(np.count_nonzero(differs[1:] & ~differs[:-1])) + bool(differs[0])


@dataclass
class Outcome:
    """What a case came to."""

    case: str
    edits: int = 0
    by_processes: int = 0
    polls: int = 0
    stops: int = 0
    sent: int = 0
    missed: int = 0
    seconds: float = 0.0
    ways: set[str] = field(default_factory=set)

    HEAD = f"{'case':24}{'edits':>12}{'of processes':>14}{'polls':>9}{'stops':>7}{'MB sent':>9}{'s':>7}{'missed':>8}"

    def __str__(self) -> str:
        return (
            f"{self.case:24}{self.edits:12,}{self.by_processes:14,}{self.polls:9,}{self.stops:7,}"
            f"{self.sent / 1e6:9,.0f}{self.seconds:7.1f}{self.missed:8,}"
        )


def private(nbytes: int, huge: bool) -> Bytes:
    host = anonymous(nbytes, align=2 << 20)
    advise(host, mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    host[: nbytes // 2] = 1  # the other half has no pages yet
    return host


def heap(_: int = 0) -> Bytes:
    """Of the allocator, with neighbours on the same pages."""
    return np.full(180_001, 7, np.uint8)


HOSTS: dict[str, list[Callable[[], Bytes]]] = {
    "pages": [lambda: private(1 << 20, False), heap, heap, lambda: private(4 << 20, True)],
    "bytes": [lambda: np.zeros(100, np.uint8), heap, lambda: private(64 << 10, False)],
    "digest": [heap, lambda: private(3 << 20, False)],
    "shared bytes": [lambda: anonymous(50_000, SHARED)],
    "shared digest": [lambda: anonymous(1 << 20, SHARED)],
}
CASES = tuple(HOSTS)


def devices_of(host: Bytes, way: str) -> list[Device]:
    """Several copies of one memory: of all of it, and of parts that overlap and share pages."""
    size = len(host)
    some = min(size // 4, 20_000)
    parts = [
        (0, size),
        (0, size),
        (size // 3 + 5, size - 3),
        (size // 2 - some, size // 2),
        (size // 2, size // 2 + some),
    ]
    found = []
    for start, stop in parts:
        piece = host[start:stop]
        address = address_of(piece)
        found.append(Device(piece, watch(address, address + len(piece), piece, way=way), bytearray(len(piece))))
    return found


def fight(case: str, edits: int, seed: int = 0) -> Outcome:
    """Run a case until so many edits were made."""
    way = case.split()[-1]
    outcome = Outcome(case)
    chance = random.Random(seed)
    hosts = [make() for make in HOSTS[case]]
    devices = [device for host in hosts for device in devices_of(host, way)]
    pollers = [_Poller(devices[number::POLLERS], random.Random(seed + number)) for number in range(POLLERS)]
    writers = _Writers(hosts, rough=way == "pages", seed=seed)
    others = _Processes(hosts, shared=case.startswith("shared"), seed=seed)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(2e-5)
    begin = time.perf_counter()
    try:
        while outcome.edits < edits:
            writers.start()
            others.start()
            with ThreadPoolExecutor(POLLERS) as pool:
                busy = lambda: writers.busy or others.busy  # noqa: E731
                for poll in [pool.submit(poller.run, busy) for poller in pollers]:
                    poll.result()
            if chance.random() < 0.02:
                _fork_and_write(hosts)
            others.meanwhile()
            by_processes = others.stop()
            outcome.by_processes += by_processes
            outcome.edits += writers.stop() + by_processes
            outcome.stops += 1
            for poller in pollers:
                poller.finish()
            outcome.missed += sum(device.missed() for device in devices)
    finally:
        sys.setswitchinterval(interval)
        outcome.seconds = time.perf_counter() - begin
        outcome.ways = {device.watch.way for device in devices}
        outcome.edits += sum(poller.edits for poller in pollers)
        outcome.polls = sum(poller.polls for poller in pollers)
        outcome.sent = sum(poller.sent for poller in pollers)
        writers.close()
        others.close()
        for device in devices:
            device.watch.close()
    return outcome


class _Poller:
    """Keeps some devices up to date, and meddles with its own work at the worst moments."""

    def __init__(self, devices: list[Device], chance: random.Random) -> None:
        self._devices, self._chance = devices, chance
        self.edits = self.polls = self.sent = 0

    def run(self, busy: Callable[[], bool]) -> None:
        """Poll, send and write for as long as others edit, and once at least."""
        while True:
            device = self._chance.choice(self._devices)
            self._update(device, self._meddle)
            if self._chance.random() < 0.3:
                device.write(self._chance, self._meddle)
            if not busy():
                return

    def finish(self) -> None:
        """Send what is left, when nobody edits any more."""
        for device in self._chance.sample(self._devices, len(self._devices)):
            self._update(device, _leave_alone)
            while device.watch.poll():  # an upload that failed half-way is tried again
                self._update(device, _leave_alone)

    def _update(self, device: Device, meddle: Meddle) -> None:
        self.sent += device.update(self._chance, meddle)
        self.polls += 1

    def _meddle(self, device: Device, start: int, stop: int) -> None:
        """Edit what is being sent or was just received, and let another device find the edit first."""
        chance = self._chance
        if chance.random() < 0.3 and start < stop:
            at = chance.choice((start, stop - 1, chance.randrange(start, stop)))
            device.host[at] ^= chance.randrange(1, 256)
            self.edits += 1
            if chance.random() < 0.2:
                device.host[at] = device.memory[at]  # and take it back
        if chance.random() < 0.5:
            other = chance.choice(self._devices)
            if other is not device:
                self._update(other, _leave_alone)


def _leave_alone(device: Device, start: int, stop: int) -> None:
    pass


class _Writers:
    """Threads that edit between two stops."""

    def __init__(self, hosts: list[Bytes], rough: bool, seed: int) -> None:
        self._hosts, self._rough = hosts, rough
        self._compiled = compiled_edits()
        if self._compiled is not None:
            self._compiled(np.zeros(10, np.uint8), 1, 1)
        self._gate = threading.Barrier(THREADS + 1)
        self._done = [0] * THREADS
        self._running = 0
        self._over = False
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(n, seed), daemon=True) for n in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, seed: int) -> None:
        chance = random.Random(seed * 100 + number)
        while True:
            self._gate.wait()
            if self._over:
                return
            try:
                self._done[number] += self._round(number, chance)
            except BaseException as failure:
                self._failure = failure
            with self._lock:
                self._running -= 1

    def _round(self, number: int, chance: random.Random) -> int:
        if number == 0 and self._compiled is not None:
            count = chance.choice((3, BURST))
            self._compiled(chance.choice(self._hosts), count, chance.getrandbits(60))
            return count
        done = 0
        for _ in range(chance.choice((0, 1, 3, ROUND))):
            host = chance.choice(self._hosts)
            done += chance.choice(EDITS)(host, chance)
            if self._rough and host.base is not None and chance.random() < 0.002:
                done += chance.choice((thrown_away, mapped_anew))(host, chance)
        return done

    @property
    def busy(self) -> bool:
        return self._running > 0

    def start(self) -> None:
        self._running = THREADS
        self._gate.wait()

    def stop(self) -> int:
        if self._failure is not None:
            raise self._failure
        done, self._done = sum(self._done), [0] * THREADS
        return done

    def close(self) -> None:
        self._over = True
        self._gate.wait()
        for thread in self._threads:
            thread.join()


class _Processes:
    """Other processes that edit: shared memory at any time, ours through the system while nobody polls.

    The system pins the pages of such a write and then copies past the page tables; a poll in between would miss
    it.  That is a documented limit, so these writes are kept apart from polls.
    """

    def __init__(self, hosts: list[Bytes], shared: bool, seed: int) -> None:
        self._hosts, self._shared = hosts, shared
        fork = multiprocessing.get_context("fork")
        self._pipes: list[Any] = []
        self._children = []
        for number in range(PROCESSES):
            ours, theirs = fork.Pipe()
            child = fork.Process(target=self._serve, args=(theirs, seed * 1000 + number), daemon=True)
            child.start()
            theirs.close()
            self._pipes.append(ours)
            self._children.append(child)

    def _serve(self, pipe: Any, seed: int) -> None:
        chance = random.Random(seed)
        parent = os.getppid()
        while pipe.recv():
            if self._shared:
                pipe.send(sum(chance.choice(EDITS)(self._hosts[0], chance) for _ in range(ROUND)))
            else:
                pipe.send(sum(self._poke(parent, chance) for _ in range(20)))

    def _poke(self, parent: int, chance: random.Random) -> int:
        host = chance.choice(self._hosts)
        data = bytearray(chance.randbytes(chance.randint(1, 5000))[: len(host)])
        start = chance.randint(0, len(host) - len(data))
        local = (ctypes.c_size_t * 2)(ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data))
        remote = (ctypes.c_size_t * 2)(address_of(host) + start, len(data))
        zero, one = ctypes.c_ulong(0), ctypes.c_ulong(1)
        written = LIBC.process_vm_writev(parent, ctypes.byref(local), one, ctypes.byref(remote), one, zero)
        return int(written == len(data))

    @property
    def busy(self) -> bool:
        return self._shared and not all(pipe.poll() for pipe in self._pipes)

    def start(self) -> None:
        if self._shared:
            self._go()

    def meanwhile(self) -> None:
        if not self._shared:
            self._go()

    def _go(self) -> None:
        for pipe in self._pipes:
            pipe.send(True)

    def stop(self) -> int:
        return sum(pipe.recv() for pipe in self._pipes)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.send(False)
        for child in self._children:
            child.join()


def _fork_and_write(hosts: list[Bytes]) -> None:
    """A child with the same memory, which edits it for itself alone, where it is private."""
    child = os.fork()
    if not child:
        for host in hosts:
            host[:1] = host[:1]
        os._exit(0)
    os.waitpid(child, 0)


@pytest.mark.parametrize("case", CASES)
def test_no_edit_is_missed(case: str) -> None:
    if case == "pages":
        probe = heap()
        try:
            watch(address_of(probe), address_of(probe) + len(probe), probe, way="pages").close()
        except ValueError as reason:
            pytest.skip(str(reason))
    outcome = fight(case, EDITS_EACH)
    print(f"\n{Outcome.HEAD}\n{outcome}")
    assert outcome.missed == 0
    assert outcome.edits >= EDITS_EACH
    assert outcome.ways == {case.split()[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Edit memory at random and count the edits that a watch missed.")
    parser.add_argument("--edits", type=int, default=2_000_000)
    parser.add_argument("--way", choices=("pages", "bytes", "digest", "all"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(Outcome.HEAD, flush=True)
    missed = 0
    for case in CASES:
        if options.way in ("all", case.split()[-1]):
            outcome = fight(case, options.edits, options.seed)
            print(outcome, *sorted(outcome.ways), flush=True)
            missed += outcome.missed
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
