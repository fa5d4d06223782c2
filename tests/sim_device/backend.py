"""Registers the device with torch, in place of what a plugin's C++ would provide."""

from __future__ import annotations

import ctypes
import itertools
import types
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.sim_device import autocast, memory, order, state, streams, tensor
from tests.sim_device.state import NAME, NUM_DEVICES, Settings, settings, stats, thread

_kept: list[Any] = []  # registrations end with their objects
_original_to = torch.Tensor.to
_original_backward = torch.autograd.graph._engine_run_backward


def autoload() -> None:
    """The entry point that torch calls when it is imported."""
    install()


def reset(**changes: object) -> None:
    """For a test: forget what is queued, clear the counters, set the settings."""
    for stream in itertools.chain(*streams.all_streams):
        stream.forget()
        order.host_waited(stream.clock)
    thread.hazard = None
    stats.clear()
    for name, value in {**vars(Settings()), **changes}.items():
        setattr(settings, name, value)
    thread.streams.clear()
    state.set_device(0)
    memory.peak[:] = memory.used


def install() -> Any:
    """Give torch the device, once per process; it cannot be undone."""
    if _kept:
        return getattr(torch, NAME)
    module = _device_module()
    _setup_privateuseone_for_python_backend(NAME, backend_module=module, device_guard=_Guard())
    _kept.extend(torch.library.Library(namespace, "IMPL") for namespace in ("_", "aten"))
    _kept[0].fallback(
        lambda function, *args, **kwargs: tensor.run_operator(function, args, kwargs), "PrivateUse1"
    )
    _kept[1].impl(
        "_copy_from",
        lambda source, target, non_blocking=False: tensor.copy(target, source, non_blocking),
        "PrivateUse1",
    )
    _kept.extend(autocast.register())
    for name, function in _accelerator_functions().items():
        setattr(torch._C, f"_accelerator_{name}", function)
    changes: Any = torch
    changes.Stream, changes.Event = streams.Stream, streams.Event
    changes.autograd._engine_run_backward = _backward
    changes.Tensor.to = _to
    changes.Tensor.pin_memory, changes.Tensor.is_pinned = memory.pin_memory, memory.is_pinned
    # module.to("sim") keeps the Parameter objects, as on a GPU
    torch.__future__.set_swap_module_params_on_conversion(True)
    return module


def _device_module() -> Any:
    """`torch.sim`."""
    return types.SimpleNamespace(
        is_available=lambda: NUM_DEVICES > 0,
        is_initialized=lambda: True,
        device_count=lambda: NUM_DEVICES,
        get_device_properties=lambda index: types.SimpleNamespace(name="simulated"),
        _is_in_bad_fork=lambda: False,
        get_amp_supported_dtype=lambda: [torch.bfloat16] if settings.bf16 else [],
        current_device=state.device_index,
        set_device=state.set_device,
        synchronize=streams.synchronize,
        Stream=streams.Stream,
        Event=streams.Event,
        current_stream=streams.current_stream,
        set_stream=streams.set_stream,
        stream=lambda stream: stream,
        manual_seed_all=lambda seed: None,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda new, device=None: torch.set_rng_state(new),
        reset=reset,
        stats=stats,
        settings=settings,
    )


def _accelerator_functions() -> dict[str, Any]:
    """What `torch.accelerator` calls: C++ knows one Python device, one stream and no memory."""
    used, peak = memory.used, memory.peak
    return {
        "getDeviceIndex": state.device_index,
        "setDeviceIndex": state.set_device,
        "exchangeDevice": state.set_device,
        "maybeExchangeDevice": state.set_device,
        "getStream": streams.current_stream,
        "setStream": streams.set_stream,
        "synchronizeDevice": streams.synchronize,
        "emptyCache": lambda: None,
        "isAllocatorInitialized": lambda: True,
        "resetPeakStats": lambda index: peak.__setitem__(index, used[index]),
        "getDeviceStats": lambda index: {
            "allocated_bytes": {"all": {"current": used[index], "peak": peak[index]}}
        },
        "getMemoryInfo": memory.memory_info,
    }


def _full(device: Any) -> Any:
    """`sim` means the current device, which C++ does not know."""
    if isinstance(device, (str, torch.device)) and torch.device(device).type == NAME:
        return torch.device(NAME, state.device_index(device))
    return device


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    full = {name: _full(value) for name, value in kwargs.items()}
    return _original_to(self, *map(_full, args), **full)


class _Guard(torch._C._acc.DeviceGuard):
    """What C++ asks; also while an error of a backward pass unwinds, when raising would abort."""

    def type_(self) -> Any:
        """The device's type; drops an error that is on its way, which `_backward` raises again."""
        try:  # noqa: SIM105 (nothing else may be called while an error is set)
            ctypes.pythonapi.PyErr_Occurred()
        except BaseException:
            pass
        return torch._C._autograd.DeviceType.PrivateUse1


def _backward(*args: Any, **kwargs: Any) -> Any:
    """Backward in the calling thread: the engine has threads for one device of a kind only."""
    outer, thread.in_backward, thread.error = thread.in_backward, True, None
    try:
        with torch.autograd.set_multithreading_enabled(False):
            return _original_backward(*args, **kwargs)
    except SystemError as error:
        raise thread.error or error from None
    finally:
        thread.in_backward, thread.error = outer, None
