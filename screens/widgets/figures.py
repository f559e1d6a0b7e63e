"""Figures as people read them: sizes, spans, curves of a line's height. Never more digits than can be meant."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

BARS = "▁▂▃▄▅▆▇"  # not the full block: curves on neighbouring lines must not grow together


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells of a terminal: 写 takes two, é with a combining accent one."""
    missing = width - cell_len(text)
    if missing < 0:
        return set_cell_size(text, max(0, width - 1)) + "…"[:width]
    return " " * missing + text if right else text + " " * missing


def whole_words(text: str, width: int) -> str:
    """`text` in at most `width` cells, cut between two words where it is too long."""
    if cell_len(text) <= width:
        return text
    cut = set_cell_size(text, max(0, width - 1)).rstrip()
    words = cut.rpartition(" ")[0] if " " in cut and not text[len(cut) :].startswith(" ") else cut
    return f"{words.rstrip(' ,;:·(')}…"[:width]


def figure(value: float) -> str:
    """Four significant digits: 0.04812, 12.3, 1042, 1.2e-05."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def size(count: float) -> str:
    """Bytes: 812 B, 4.0 KiB, 1.2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def bar(share: float, width: int) -> tuple[str, str]:
    """(done, still to do) of a progress bar, which differ in weight as well as in colour; full only when it is."""
    done = min(width, int(share * width + 1e-9))
    return "━" * done, "─" * (width - done)


def sparkline(values: Sequence[float], width: int) -> str:
    """The curve in at most `width` characters, each the mean of its part; one character a value where they fit."""
    if not values or width < 1:
        return ""
    parts = min(width, len(values))
    means = []
    for part in range(parts):
        some = values[part * len(values) // parts : (part + 1) * len(values) // parts]
        means.append(sum(some) / len(some))
    low, high = min(means), max(means)
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return BARS[0] * parts
    return "".join(BARS[min(6, int((mean - low) / (high - low) * 7))] for mean in means)
