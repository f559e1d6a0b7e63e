"""What the large plot draws: a stretch of a board's series, in pieces where nothing came, thin enough to draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vlmconsole.gauges.board import Board
from vlmconsole.gauges.figures import title_of

MOST = 600  # points of one curve: more would not be seen
GAP = 5.0  # seconds without a reading after which the line is broken, where a curve is read every second
SINGLE = frozenset({"own.ttft", "own.tpot"})  # one point a request, and nothing in between
SINGLE_GAP = 10.0  # seconds between two requests past which a line from one to the other would say what nobody saw

Point = tuple[float, float]


@dataclass(frozen=True)
class GaugeCurve:
    """One figure over a stretch of time: pieces of (wall seconds, value), each drawn as one line.

    `minutes`: true where the points are means of a minute each, since the stretch is longer than what is kept fine.
    """

    key: str
    title: str
    unit: str
    pieces: tuple[tuple[Point, ...], ...]
    minutes: bool = False

    @property
    def values(self) -> list[float]:
        return [value for piece in self.pieces for _, value in piece]


def curve(board: Board, key: str, since: float) -> GaugeCurve:
    """Return the curve of `key` from wall-clock `since` on; without pieces where nothing is known."""
    title, unit = title_of(key)
    with board.reading():
        series = board.series(key)
        if series is None:
            return GaugeCurve(key, title, unit, ())
        points = series.points(since)
        # Of a stretch that began before the oldest fine point, the part before it is known by minutes only.
        bands = series.bands(since) if not points or (points[0][0] - since > 90 and series.full) else []
    first = points[0][0] if points else float("inf")
    early = [(band.at + 30.0, band.mean) for band in bands if band.at + 60.0 <= first]
    fine = _pieces(points, SINGLE_GAP if key in SINGLE else GAP)
    pieces = (*_pieces(early, 150.0), *(thin(piece) for piece in fine))
    return GaugeCurve(key, title, unit, pieces, minutes=bool(early))


def thin(points: Sequence[Point], most: int = MOST) -> tuple[Point, ...]:
    """At most about `most` points that keep every peak: the lowest and the highest of each part, in their order."""
    if len(points) <= most:
        return tuple(points)
    kept: list[Point] = [points[0]]
    parts = most // 2 - 1
    for part in range(parts):
        some = points[part * len(points) // parts : (part + 1) * len(points) // parts]
        low, high = min(some, key=_value), max(some, key=_value)
        kept += sorted({low, high})
    return tuple(dict.fromkeys([*kept, points[-1]]))


def _value(point: Point) -> float:
    return point[1]


def _pieces(points: Sequence[Point], gap: float) -> list[tuple[Point, ...]]:
    """The points, parted wherever more than `gap` seconds lie between two."""
    pieces: list[list[Point]] = []
    for point in points:
        if not pieces or point[0] - pieces[-1][-1][0] > gap:
            pieces.append([])
        pieces[-1].append(point)
    return [tuple(piece) for piece in pieces]
