"""A log read by offset: the end of it, a page before, a page around a match; never the whole, however long it is.

A page is immutable, so that one thread can read while another draws. Lines are kept as bytes and made showable one by
one (`shown`): of a page of thousands only a screenful is ever drawn.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from vlmconsole.text.plain import inert
from vlmconsole.text.sizes import size

PAGE = 256 * 1024  # bytes read at once
LONGEST = 2000  # characters shown of one line
KEPT = 20_000  # lines of one page; older ones are read again when they are wanted
SCAN = 4 * 1024 * 1024  # bytes of one step of a search
FOUND = 5_000  # newest matches that a search keeps


@dataclass(frozen=True)
class LogPage:
    """Consecutive lines of a log: bytes `start` to `end` of `size`. `offsets` say where each line begins.

    `rest` is the line that has no end yet (a progress bar lives there), from `end` on; it is the last of `lines`.
    """

    path: Path
    start: int = 0
    end: int = 0
    size: int = 0
    raws: tuple[bytes, ...] = ()
    offsets: tuple[int, ...] = ()
    rest: bytes = b""

    @property
    def lines(self) -> tuple[bytes, ...]:
        return (*self.raws, self.rest) if self.rest.strip(b"\r") else self.raws

    @property
    def at_end(self) -> bool:
        """Whether the page reaches what was the file's end when it was read."""
        return self.end + len(self.rest) >= self.size


def shown(raw: bytes) -> str:
    """Return a line as it can be put on a screen: the last state of a `\\r` progress bar, no escapes, bytes that are
    not UTF-8 as `\\xe9`, tabs as spaces, cut after LONGEST characters."""
    last = raw.rstrip(b"\r").rpartition(b"\r")[2][: 4 * LONGEST]
    text = inert(last.decode("utf-8", "backslashreplace")).replace("\n", " ").expandtabs(4)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def keep_end(log: Path, kept: Path, size: int, most: int) -> int:
    """Add the last `most` of the first `size` bytes of a log to `kept`, below a line that says how much is left
    out; returns how many bytes that is. Raises OSError.
    """
    dropped, left = max(0, size - most), min(size, most)
    with log.open("rb") as source, kept.open("ab") as target:
        if dropped:
            target.write(left_out(dropped))
            source.seek(dropped)
        while left and (block := source.read(min(left, 1 << 20))):
            target.write(block)
            left -= len(block)
    return dropped


def left_out(dropped: int) -> bytes:
    """Return the line of a log that stands for so many bytes before it."""
    return f"[{size(dropped)} of this log before this line are not kept]\n".encode()


def newest(log: Path) -> Path:
    """`log`, or where it was moved to when it had grown large and nothing has come since."""
    moved = log.with_name("log.1.txt")
    return moved if _size(log) == 0 and _size(moved) else log


def tail(path: Path) -> LogPage:
    """Return the last page of the log; an empty one when there is no log."""
    size = _size(path)
    return _read(path, max(0, size - PAGE), size, size)


def grown(page: LogPage) -> LogPage:
    """Return the same page with what was appended since. The same object when nothing was.

    A file that became shorter was rotated: its new end is shown. One that grew by more than a page at once is shown
    from its end, too: nobody can read what flew by.
    """
    size = _size(page.path)
    if size == page.size:
        return page
    if size < page.size:
        return tail(page.path)
    if not page.at_end:
        return replace(page, size=size)  # someone reads further up: only the size is news
    if size - page.end > PAGE:
        return tail(page.path)
    new = _read(page.path, page.end, size, size)
    return _joined(page, new, size, keep_new=True)


def older(page: LogPage) -> LogPage:
    """With the page before it in front; the same object at the beginning of the file."""
    if page.start == 0:
        return page
    return _joined(_read(page.path, max(0, page.start - PAGE), page.start, page.size), page, page.size, keep_new=False)


def newer(page: LogPage) -> LogPage:
    """With the page after it behind; the same object at the end of the file."""
    if page.at_end:
        return page
    end = min(page.size, page.end + PAGE)
    return _joined(page, _read(page.path, page.end, end, page.size), page.size, keep_new=True)


def around(path: Path, offset: int) -> LogPage:
    """Return a page that holds the line beginning at `offset`, some way from its ends."""
    size = _size(path)
    return _read(path, max(0, offset - PAGE // 2), min(size, offset + PAGE // 2), size)


def search(path: Path, words: str, stop: Callable[[], bool] = lambda: False) -> list[tuple[int, bytes]]:
    """(offset, line) of the newest FOUND lines that hold `words`, oldest first; capitals do not matter (ASCII)."""
    needle = words.encode("utf-8", "surrogateescape").lower()
    matches: deque[tuple[int, bytes]] = deque(maxlen=FOUND)
    if not needle:
        return []
    for begin, block in _blocks(path):
        if stop():
            break
        low = block.lower()
        at = low.find(needle)
        while at >= 0:
            first = block.rfind(b"\n", 0, at) + 1
            last = block.find(b"\n", at)
            last = len(block) if last < 0 else last
            matches.append((begin + first, block[first:last]))
            at = low.find(needle, last)
    return list(matches)


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, whole lines) through the file; a line longer than SCAN comes in parts."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        begin, rest = 0, b""
        while data := file.read(SCAN):
            data = rest + data
            cut = data.rfind(b"\n") + 1 or len(data)
            yield begin, data[:cut]
            begin, rest = begin + cut, data[cut:]
        if rest:
            yield begin, rest


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int, end: int, size: int) -> LogPage:
    """The lines that begin within [start, end); one that began before is left out, unless it is all there is."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, start - 1))
            data = file.read(end - max(0, start - 1))
    except OSError:
        return LogPage(path)
    if start:
        cut = data.find(b"\n") + 1
        if 0 < cut < len(data):
            data, start = data[cut:], start - 1 + cut
        else:
            data = data[1:]
    *whole, rest = data.split(b"\n")
    if end < size and not whole:  # the middle of a line longer than a page
        return LogPage(path, start, start + len(rest), size, (rest,), (start,))
    offsets, at = [], start
    for line in whole:
        offsets.append(at)
        at += len(line) + 1
    if end < size:
        rest = b""  # its other half is on the next page
    return _clipped(LogPage(path, start, at, size, tuple(whole), tuple(offsets), rest), keep_new=True)


def _joined(first: LogPage, second: LogPage, size: int, *, keep_new: bool) -> LogPage:
    both = LogPage(
        first.path,
        first.start,
        second.end,
        size,
        (*first.raws, *second.raws),
        (*first.offsets, *second.offsets),
        second.rest,
    )
    return _clipped(both, keep_new=keep_new)


def _clipped(page: LogPage, *, keep_new: bool) -> LogPage:
    extra = len(page.raws) - KEPT
    if extra <= 0:
        return page
    if keep_new:
        raws, offsets = page.raws[extra:], page.offsets[extra:]
        return replace(page, start=offsets[0], raws=raws, offsets=offsets)
    raws, offsets = page.raws[:KEPT], page.offsets[:KEPT]
    return replace(page, end=offsets[-1] + len(raws[-1]) + 1, raws=raws, offsets=offsets, rest=b"")
