"""How devices are written for people, everywhere alike; presets and JSON keep the exact names."""

from collections import Counter
from collections.abc import Iterable

# No devices, but locked like them among the lab homes of a machine (see `locks`).
TIMED = "timed"
SERVER = "server-"
# All slots of the CPU in a sentence.
WHOLE_CPU = "the whole CPU"


def device_words(names: Iterable[str], none: str = "none") -> str:
    """`cpu`, `cpu×2`, `cpu×all`, `gpu1`, `port 30000`: of what a job asks for (`cpu:2`) or holds
    (`cpu.0`, `cpu.1`).

    A slot of the CPU has no name: which of them a job was given says nothing. The place of a server (`server.demo`)
    is no device. `none` stands for no device at all.
    """
    counts: Counter[str] = Counter()
    for name in names:
        kind, _, rest = name.partition(":" if ":" in name else ".")
        if kind == "server":
            continue
        if kind == "cpu" and name != kind:
            # "cpu.1" is one slot, "cpu:2" are two; of "cpu:all" how many is not known before it has them.
            counts["cpu×all" if rest == "all" else "cpu"] += int(rest) if ":" in name and rest.isdigit() else 1
        elif kind == "gpu" and rest.isdigit() and ":" in name:
            counts["gpu"] += int(rest)
        else:
            counts[f"port {rest}" if kind == "port" else name] += 1
    words = [name if count == 1 or name == "cpu×all" else f"{name}×{count}" for name, count in counts.items()]
    return " ".join(words) or none
