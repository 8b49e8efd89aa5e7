"""numba-cuda's code library, with the slots, constants and effects of what is compiled into it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Hashable
from typing import Any

from cuda.core import Kernel, ObjectCode
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.cudadrv import devices, driver

from cuda_captures.code import Use
from cuda_captures.machine_code import MachineCode
from cuda_captures.session import Captured, current, refuse_constants_over_limit
from cuda_captures.slots import Slot, definitions
from cuda_captures.writes import Effects, keys_of

KERNEL_OF = getattr(Kernel, "from_handle", None)  # a kernel of somebody else's library

INVARIANT = re.compile(r", !invariant\.load ![0-9]+")


class ModuleCode(MachineCode):
    """Machine code that answers as cuda.core's object does, which upstream's modules ask for kernels by name."""

    def get_kernel(self, name: str) -> Any:
        """A kernel of it, whatever its name: upstream's runtime for objects on the device has some in each module."""
        assert KERNEL_OF is not None
        return KERNEL_OF(self.kernel(name))


class Function:
    """What a launch needs of upstream's loaded function, which also asks the driver for every attribute."""

    __slots__ = ("kernel", "module", "name")

    def __init__(self, module: Any, kernel: Any, name: str) -> None:
        self.module = module
        self.kernel = kernel
        self.name = name

    def set_shared_memory_carveout(self, carveout: int) -> None:
        """Prefer a share of shared memory, as upstream's function does."""
        driver.Function(self.module, self.kernel, self.name).set_shared_memory_carveout(carveout)


class Loaded:
    """Stands where a kernel has its code library, and gives the one function that is loaded.

    Holds the module, which upstream's functions refer to weakly; it is unloaded when this goes.
    """

    def __init__(self, module: Any, cufunc: Any) -> None:
        self.module = module
        self.cufunc = cufunc

    def get_cufunc(self) -> Any:
        """What a launch asks for."""
        return self.cufunc

    def upstream_function(self) -> Any:
        """The function with its attributes."""
        if isinstance(self.cufunc, Function):
            return driver.Function(self.module, self.cufunc.kernel, self.cufunc.name)
        return self.cufunc


class CaptureLibrary(CUDACodeLibrary):  # type: ignore[misc]
    """A code library whose captured arrays are slots, defined when it is linked.

    Belongs to the thread that compiles until it is finalised; then it is only read.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.uses: dict[str, Use] = {}
        self.constants: dict[Hashable, Captured] = {}
        self.written: set[Hashable] = set()
        self.effects: Effects | None = None
        session = current()
        self._images: dict[int, bytes] = {}  # machine code, by device
        self.instances: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # the last, by device
        self.cc = session.cc if session is not None else None

    def record(self, captured: Captured) -> None:
        """Note that the code of this library uses a captured array."""
        if captured.slot is None:
            self.constants[captured.place.key] = captured
        else:
            self.uses[captured.slot.symbol] = Use(captured.slot, captured.place, captured.signature)

    def record_effects(self, effects: Effects) -> None:
        """Note what the function of this library does to arrays."""
        self.effects = effects
        self.written |= keys_of(effects.written)

    def add_linking_library(self, library: Any) -> None:
        super().add_linking_library(library)
        if isinstance(library, CaptureLibrary):
            self.uses.update(library.uses)
            self.constants.update(library.constants)
            self.written |= library.written

    def finalize(self) -> None:
        refuse_constants_over_limit(self.constants.values())
        super().finalize()

    @property
    def writes_host_array(self) -> bool:
        """Whether the code writes the copy of a NumPy array, which another name may be bound to as well."""
        return any(
            use.signature.memory == "host" and use.place.key in self.written
            for use in self.uses.values()
            if use.place is not None
        )

    @property
    def llvm_strs(self) -> list[str]:
        if self._llvm_strs is None:
            texts = [str(module) for module in self.modules]
            if self.writes_host_array:  # no load is invariant then: two names may be bound to one array
                texts = [INVARIANT.sub("", text) for text in texts]
            self._llvm_strs: list[str] | None = texts
        return self._llvm_strs

    def _ensure_cc(self, cc: Any) -> Any:
        if cc is None and self.cc is not None:
            return (*self.cc, "a" if self.cc >= (9, 0) else "")
        return super()._ensure_cc(cc)

    def _link_all(self, linker: Any, cc: Any, ignore_nonlto: bool = False) -> None:
        super()._link_all(linker, cc, ignore_nonlto)
        if self.uses and not ignore_nonlto:
            linker.add_ptx(definitions(use.slot for use in self.uses.values()).encode(), "capture_slots")

    def get_cufunc(self) -> Any:
        # Asked for attributes such as registers per thread: any instance has them, whatever its slots hold.
        loaded = self.instances.get(devices.get_context().device.id)
        return loaded.upstream_function() if loaded is not None else super().get_cufunc()

    @property
    def is_loaded(self) -> bool:
        """Whether its machine code was good for some device already."""
        return bool(self._images)

    def load_instance(self, context: Any) -> Loaded:
        """Load the machine code once more into the current context, with slots of its own.

        Not through the context's own table of modules, which has one entry per cubin object and keeps it for good:
        this module is unloaded when it is let go of.  Code with callbacks is loaded as upstream does, which hands them
        its object, and stays; so is all code where cuda.core is of a version before 0.6, which can launch nothing else.
        """
        image = self._images.get(context.device.id)
        if image is None:
            image = self._images[context.device.id] = bytes(self.get_cubin().code)
        code: Any
        if KERNEL_OF is None or self._setup_functions or self._teardown_functions:
            code = ObjectCode.from_cubin(image)
        else:
            code = ModuleCode(image)
        kernel = code.get_kernel(self._entry_name)
        callbacks = self._setup_functions or None, self._teardown_functions or None
        module = driver.CudaPythonModule(weakref.proxy(context), code, None, *callbacks)
        cufunc = Function(module, kernel, self._entry_name)
        loaded = self.instances[context.device.id] = Loaded(module, cufunc)
        return loaded

    def discard_modules(self) -> None:
        """Drop the modules' objects, whose text has been made; they refer to what was compiled into them."""
        self._module = None
        self._linking_libraries: set[Any] = set()

    def _reduce_states(self) -> dict[str, Any]:
        return {**super()._reduce_states(), "slots": tuple(use.slot for use in self.uses.values())}

    @classmethod
    def _rebuild(cls, slots: tuple[Slot, ...] = (), **states: Any) -> CaptureLibrary:
        library: CaptureLibrary = super()._rebuild(**states)
        library.uses = {slot.symbol: Use(slot, None, None) for slot in slots}  # type: ignore[arg-type]
        return library
