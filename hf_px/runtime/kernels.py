"""Compile the kernels of kernel_text.py for this machine, with llvmlite; they run without the GIL."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from ..core.errors import HfPxError
from .kernel_text import RUNNER, Kernel, gather_text, kernel_text

INSTALL = "pip install 'hf-px[fast]', or pip install llvmlite"
_SIGNATURE = ctypes.CFUNCTYPE(None, *([ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p] + [ctypes.c_int64] * 2),
                              ctypes.c_void_p)  # fmt: skip


class RuntimeUnavailableError(HfPxError, ImportError):
    """llvmlite is not installed."""


_lock = threading.Lock()
_engines: list[Any] = []  # compiled code lives as long as its engine


@functools.cache
def _target() -> Any:
    try:
        from llvmlite import binding
    except ImportError as error:
        raise RuntimeUnavailableError(f"the sparse runtime needs llvmlite: {INSTALL}") from error
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3
    )


def processor() -> str:
    """The processor that code is compiled for."""
    _target()
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()}, llvm {'.'.join(map(str, binding.llvm_version_info))}"


def _compile(text: str, name: str) -> int:
    """Address of the function `name` in a module of LLVM's text."""
    with _lock:
        machine = _target()
        from llvmlite import binding

        module = binding.parse_assembly(text)
        module.verify()
        builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
        builder.getModulePassManager().run(module, builder)
        engine = binding.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _engines.append(engine)
        return engine.get_function_address(name)


@functools.cache
def address(kernel: Kernel) -> int:
    return _compile(kernel_text(kernel), kernel.name)


@functools.cache
def runner() -> Any:
    """run(steps, count, arena, thread, threads, counter): the steps in order, all threads in step with each other.

    The call releases the GIL. `counter` is the address of an int64 that is 0 when the first thread starts.
    """
    return _SIGNATURE(_compile(RUNNER, "run"))


@functools.cache
def gather_address() -> int:
    """Address of the kernel that copies strided pixels into planes, for convolutions with a stride."""
    return _compile(gather_text(), "gather")
