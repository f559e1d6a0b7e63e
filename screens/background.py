"""Work that goes on beside the screen."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from textual.dom import DOMNode


def in_background(
    node: DOMNode,
    work: Callable[[], Coroutine[Any, Any, None]],
    group: str,
    *,
    exclusive: bool = False,
    may_fail: bool = False,
) -> None:
    """Start `work`, which belongs to `node` and ends with it.

    `exclusive`: what runs in `group` is given up first. `may_fail`: its failure does not end the console. The function
    is handed over rather than its coroutine, as one that is given up before it began would never be awaited.
    """
    node.run_worker(cast("Any", work), group=group, exclusive=exclusive, exit_on_error=not may_fail)
