"""NVIDIA cards by NVML: memory, load, and which processes sit on them. Every part of it may be missing or forbidden."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from vlmconsole.text.sizes import size

T = TypeVar("T")


@dataclass(frozen=True)
class GpuCard:
    """One device that work can be put on: a whole card (`gpu0`) or a MIG slice of one (`gpu0.mig1`).

    Memory in bytes. None means that NVML would not say (permissions, an old card), never zero.
    `processes` are (pid, bytes) of compute work; `lost` says why the card can no longer be asked.
    """

    name: str
    uuid: str = ""
    product: str = ""
    memory_total: int | None = None
    memory_used: int | None = None
    utilization_percent: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    processes: tuple[tuple[int, int | None], ...] = ()
    lost: str = ""


@dataclass(frozen=True)
class CardsReading:
    """All cards, in NVML's order; `why` says why there are none."""

    cards: tuple[GpuCard, ...] = ()
    why: str = ""


class Nvml:
    """One NVML session, opened when first asked and again after the driver went away."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = False

    def read(self) -> CardsReading:
        """Ask every card. Never raises: what cannot be read is None, a card that fails is `lost`."""
        try:
            import pynvml
        except ImportError:
            return CardsReading(why="the package nvidia-ml-py is not installed")
        with self._lock:
            try:
                if not self._open:
                    pynvml.nvmlInit()
                    self._open = True
                count = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError as error:
                self._open = False
                return CardsReading(why=_say(error))
            cards: list[GpuCard] = []
            for index in range(count):
                cards += self._read_card(pynvml, index)
            return CardsReading(tuple(cards), "" if cards else "NVML reports no GPU")

    def _read_card(self, nvml: Any, index: int) -> list[GpuCard]:
        name = f"gpu{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            whole = self._read_device(nvml, name, handle)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_UNINITIALIZED:
                self._open = False
            return [GpuCard(name, lost=_say(error))]
        mode = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
        if mode != nvml.NVML_DEVICE_MIG_ENABLE:
            return [whole]
        slices: list[GpuCard] = []
        for number in range(_ask(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            part = _ask(nvml, lambda number=number: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))  # type: ignore[misc]
            if part is not None:
                slices.append(self._read_device(nvml, f"{name}.mig{number}", part))
        # In MIG mode nothing runs on the card as a whole: only its slices are devices.
        return slices

    @staticmethod
    def _read_device(nvml: Any, name: str, handle: Any) -> GpuCard:
        memory = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if memory is not None and not memory.total:
            memory = None  # a call that succeeds with zeros (a driver in trouble, some containers) told nothing
        rates = _ask(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        processes = _ask(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or []
        return GpuCard(
            name=name,
            uuid=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetUUID(handle))),
            product=_text(_ask(nvml, lambda: nvml.nvmlDeviceGetName(handle))),
            memory_total=memory.total if memory else None,
            memory_used=memory.used if memory else None,
            utilization_percent=rates.gpu if rates else None,
            temperature_c=_ask(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            power_w=power / 1000 if power is not None else None,
            processes=tuple((process.pid, process.usedGpuMemory) for process in processes),
        )


_session = Nvml()


def read() -> CardsReading:
    """Return all cards of this machine, through one shared NVML session."""
    return _session.read()


def summary() -> str:
    """Return one line for people: what cards there are, or why none is seen."""
    reading = read()
    if not reading.cards:
        return f"none found: {reading.why}"
    parts = []
    for card in reading.cards:
        memory = f", {size(card.memory_total)}" if card.memory_total else ""
        parts.append(f"{card.name} {card.product}{memory}" if not card.lost else f"{card.name} lost: {card.lost}")
    return "; ".join(parts)


def _ask(nvml: Any, question: Callable[[], T]) -> T | None:
    """The answer, or None where this card or this user may not ask. A lost card or driver goes up."""
    try:
        return question()
    except nvml.NVMLError as error:
        gone = (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value in gone:
            raise
        return None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _say(error: Exception) -> str:
    return str(error)
