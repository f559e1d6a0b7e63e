"""What this machine is, in one line: the hardware of a server on the loopback, and of the client."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from vlmconsole.gauges import nvidia
from vlmconsole.gauges.host import usable_cores


@cache
def hardware() -> str:
    """``AMD EPYC 7B13, 2 cores``, with the cards where there are any. Says nothing of load or clock."""
    reading = nvidia.read()
    products = [card.product or card.name for card in reading.cards]
    cards = [f"{products.count(name)} × {name}" for name in dict.fromkeys(products)]
    return ", ".join([*cards, _processor(), f"{usable_cores()} cores"])


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    name = found[1] if found else platform.processor() or platform.machine()
    return " ".join(re.sub(r"\((R|TM)\)|CPU|@.*$", " ", name).split())
