"""CUDA C++ compiled by NVRTC, which needs no GPU."""

from __future__ import annotations

from typing import Any

from cuda.bindings import nvrtc


def compiled(source: str, arch: str = "sm_90") -> tuple[str, bytes]:
    """PTX and cubin of CUDA C++, with the options that CuPy's ``RawKernel`` compiles with where none are given.

    Raises
    ------
    RuntimeError
        With the compiler's log.
    """
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode())
    ptx = bytearray(checked(nvrtc.nvrtcGetPTXSize(program)))
    checked(nvrtc.nvrtcGetPTX(program, ptx))
    cubin = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
    checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    nvrtc.nvrtcDestroyProgram(program)
    return ptx.decode().rstrip("\0"), bytes(cubin)


def checked(result: Any) -> Any:
    """What a call of NVRTC gives, if it succeeded."""
    status, *values = result
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(str(status))
    return values[0] if values else None
