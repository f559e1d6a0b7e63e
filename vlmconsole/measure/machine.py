"""What this machine is, its cards among it: the hardware of a server on the loopback, and of the client."""

from __future__ import annotations

from functools import cache

from vlmconsole.gauges import nvidia
from vlmconsole.system.machine import machine_line


@cache
def hardware() -> str:
    """`AMD EPYC 7B13, 2 cores`, with the cards where there are any. Says nothing of load or clock."""
    reading = nvidia.read()
    products = [card.product or card.name for card in reading.cards]
    return machine_line([f"{products.count(name)} × {name}" for name in dict.fromkeys(products)])
