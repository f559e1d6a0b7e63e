"""Sparklines and progress bars."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vlmconsole.text.bars import STEPS, progress_bar, sparkline

POINTS = st.lists(st.one_of(st.none(), st.floats(min_value=-1e9, max_value=1e9)), max_size=200)


@given(POINTS, st.one_of(st.none(), st.integers(-1, 60)))
def test_a_sparkline_keeps_to_its_width(points: list[float | None], width: int | None) -> None:
    line = sparkline(points, width)
    room = len(points) if width is None else max(0, min(width, len(points)))
    assert len(line) in (0, room)
    assert set(line) <= {*STEPS, " "}
    assert bool(line.strip()) == (room > 0 and any(point is not None for point in points))


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=2, max_size=60))
def test_a_higher_point_is_never_drawn_lower(points: list[float]) -> None:
    drawn = [STEPS.index(bar) for bar in sparkline(points)]
    by_value = [height for _, height in sorted(zip(points, drawn, strict=True))]
    assert by_value == sorted(by_value)


def test_ends_of_the_scale() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6]) == STEPS
    assert sparkline([3, 3, 3]) == STEPS[0] * 3
    assert sparkline([1.0, 1.0], low=0, high=1) == STEPS[-1] * 2  # a share that stays at 100 % is full
    assert sparkline([0, 2], low=0, high=4) == STEPS[0] + STEPS[3]
    assert sparkline([1, None, 2]) == f"{STEPS[0]} {STEPS[-1]}"
    assert sparkline(list(range(100)), 5) == sparkline([9.5, 29.5, 49.5, 69.5, 89.5])


@given(st.floats(min_value=0, max_value=1), st.integers(1, 60))
def test_a_bar_is_full_only_when_all_is_done(share: float, width: int) -> None:
    done, left = progress_bar(share, width)
    assert len(done + left) == width
    assert (not left) == (share > 1 - 1e-9 / width * 2 or len(done) == width)
    assert left or share * width >= width - 1e-8
