"""What an explanation shares with the rest of the process: global random states, and the flags that a model may set."""

from __future__ import annotations

import ctypes
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any

import numpy as np
import torch

Flag = tuple[Callable[[], Any], Callable[[Any], Any]]  # how it is read, and how it is set
Flags = list[tuple[Flag, Any]]  # and what they were


def _attribute(holder: Any, name: str) -> Flag:
    return partial(getattr, holder, name), partial(setattr, holder, name)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


_FLAGS: tuple[Flag, ...] = (  # of the whole process
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_deterministic, lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1])),
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch.is_anomaly_enabled, lambda on: torch.set_anomaly_enabled(on, torch.is_anomaly_check_nan_enabled())),
    *(_attribute(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
    *(_attribute(torch.backends.cuda.matmul, name) for name in ("allow_tf32",)),
)


def _default_device() -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


_OWN_FLAGS: tuple[Flag, ...] = (  # of one thread
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (_default_device, torch.set_default_device),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    (np.geterr, lambda kinds: np.seterr(**kinds)),
)


def _autocast(device: str) -> tuple[Flag, ...]:
    return (
        (partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)),
        (partial(torch.get_autocast_dtype, device), partial(torch.set_autocast_dtype, device)),
    )


@cache
def _own_flags() -> tuple[Flag, ...]:
    return (*_OWN_FLAGS, *(flag for device in devices() for flag in _autocast(device)))


@cache
def devices() -> tuple[str, ...]:
    """The CPU, and the accelerator if there is one."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


def _read(flags: tuple[Flag, ...]) -> Flags:
    try:
        return [(flag, flag[0]()) for flag in flags]
    except RuntimeError:  # torch refuses to name a precision that was set in two ways
        values = []
        for flag in flags:
            with suppress(RuntimeError):
                values.append((flag, flag[0]()))
        return values


def _put_back(values: Flags) -> None:
    for (read, write), value in values:
        if read() != value:
            write(value)


class _NumpyState:
    """NumPy's global random state, of which building the full one takes longer than a small explanation.

    The memory of the generator (624 words and a position) tells whether anything was drawn. Only where a second normal
    number waits from the last pair, which can be drawn without a trace there, the full state is read each time.
    """

    _BYTES = 625 * 4

    _memory: bytes = b""
    _full: Any = None
    _generator: Any = None
    _address: int | None = None

    def save(self) -> None:
        memory = self._read()
        if not memory or self._full is None or memory != self._memory or self._full["has_gauss"]:
            self._memory, self._full = memory, np.random.get_state(legacy=False)

    def restore(self) -> None:
        if not self._memory or self._full["has_gauss"] or self._read() != self._memory:
            np.random.set_state(self._full)

    def _read(self) -> bytes:
        """The memory of the global generator; nothing if it is one of another kind."""
        generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
        if generator is not self._generator:
            usual = isinstance(generator, np.random.MT19937)
            self._generator, self._address = generator, generator.ctypes.state_address if usual else None
        return b"" if self._address is None else ctypes.string_at(self._address, self._BYTES)


class _Process:
    """Random states, flags and the stance to compiled code: the first in saves, the last out restores."""

    holders = 0
    drew = False  # whether a model was seen to draw from torch's generators
    random: tuple[Any, ...] = ()
    flags: Flags = []  # noqa: RUF012
    stance: Any = None
    numpy = _NumpyState()

    def enter(self) -> None:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self.random = random.getstate(), torch.get_rng_state(), cuda
        self.numpy.save()
        self.flags = _read(_FLAGS)
        self.drew = False
        if "torch._dynamo" in sys.modules:  # a compiled part would trace through the engine
            self.stance = torch.compiler.set_stance("force_eager")
            self.stance.__enter__()

    def leave(self) -> None:
        self.restore()
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None

    def restore(self) -> None:
        python, state, cuda = self.random
        random.setstate(python)
        self.numpy.restore()
        if self.drew or threading.active_count() == 1:  # else what another thread drew would be drawn again
            torch.set_rng_state(state)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
        _put_back(self.flags)


lock = threading.RLock()
_process = _Process()


def draws() -> None:
    """A model draws from torch's generators, in whatever thread."""
    _process.drew = True


def rewind(flags: Flags) -> None:
    """This thread's flags as they were, and random states too, unless other threads are at work."""
    _put_back(flags)
    with lock:
        if _process.holders == 1:
            _process.restore()


def own_flags() -> Flags:
    """The flags of this thread, as they are."""
    return _read(_own_flags())


@contextmanager
def kept() -> Iterator[None]:
    """Random states and flags are as they were afterwards."""
    before = own_flags()
    with lock:
        if _process.holders == 0:
            _process.enter()
        _process.holders += 1
    try:
        yield
    finally:
        with lock:
            _process.holders -= 1
            if _process.holders == 0:
                _process.leave()
        _put_back(before)
