"""The large plot of the gauges: one unit at a time, the same figure from both sides, and the marks that explain it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual_plot import HiResMode, PlotWidget
from textual_plot.axis_formatter import AxisFormatter

from vlmconsole.gauges.curves import SINGLE, GaugeCurve
from vlmconsole.gauges.figures import Mark
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.numbers import decimal
from vlmconsole.text.plain import one_line
from vlmconsole.text.times import about, clock
from vlmconsole.text.units import in_unit

MARKS = 8  # newest marks drawn: more lines than these would hide the curves
FEW = 40  # requests in the whole stretch: each is a stem of its own, as between them there was nothing
#: How each curve is drawn, by (sign in the head, colour): the first as a line or stems, the others as their own points.
STROKES = (("⠒⠒", "accent"), ("∘∘", "warning"), ("××", "muted"), ("++", "foreground"))


@dataclass(frozen=True)
class Plot:
    """What is drawn. Times are wall seconds; `seconds` is how far back it looks from `now`."""

    curves: tuple[GaugeCurve, ...]
    marks: tuple[Mark, ...]
    now: float
    seconds: float
    log: bool = False


class Clock(AxisFormatter):  # type: ignore[misc]
    """Ticks at round times of day, few enough to be read."""

    STEPS = (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600)

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 8) -> list[float]:
        step = next((step for step in self.STEPS if (max_ - min_) / step <= max_ticks), self.STEPS[-1])
        shift = time.localtime(max_).tm_gmtoff
        first = math.ceil((min_ + shift) / step) * step - shift
        last = (
            max_ - (max_ - min_) / 20
        )  # a label is as wide as a twentieth to either side: it would be cut at the edge
        return [first + step * tick for tick in range(int((last - first) // step) + 1)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        fine = len(ticks) > 1 and ticks[1] - ticks[0] < 60
        return [time.strftime("%H:%M:%S" if fine else "%H:%M", time.localtime(tick)) for tick in ticks]


class Scale(AxisFormatter):  # type: ignore[misc]
    """Round values of the unit; with `log` the axis holds decimal logarithms, labelled as the values they stand for."""

    def __init__(self, unit: str, log: bool = False) -> None:
        self._unit, self._log = unit, log

    def get_ticks(self, min_: float, max_: float, max_ticks: int = 5) -> list[float]:
        if self._log:
            whole = [float(power) for power in range(math.floor(min_), math.ceil(max_) + 1)]
            if len(whole) <= 3:
                whole = sorted({*whole, *(power + math.log10(part) for power in whole for part in (2, 5))})
            return whole
        # Sizes are spoken of in binary steps; everything else in decimal ones.
        base = 1024.0**3 if self._unit == "bytes" else 1.0
        rough = (max_ - min_) / base / 5
        power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
        step = base * next(part * power for part in (1, 2, 5, 10) if part * power >= rough * 0.999)
        first = math.ceil(min_ / step - 1e-9)
        return [first * step + step * tick for tick in range(int(max_ / step + 1e-9) - first + 1)]

    def get_labels_for_ticks(self, ticks: Sequence[float]) -> list[str]:
        values = [10.0**tick if self._log else tick for tick in ticks]
        if self._unit in ("s", "bytes", "share"):
            return [in_unit(value, self._unit) for value in values]
        return [f"{decimal(value)} {self._unit}".rstrip() for value in values]


class GaugePlot(Vertical):
    """`show` as often as one likes: it is drawn when the data moved."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: Plot | None = None
        self._head = Said(id="plot-head")

    def compose(self) -> ComposeResult:
        yield self._head
        plot = PlotWidget(allow_pan_and_zoom=False)
        plot.can_focus = False
        plot.set_reactive(PlotWidget.margin_top, 0)
        plot.set_reactive(PlotWidget.margin_bottom, 1)
        plot.set_reactive(PlotWidget.margin_left, 11)
        plot.set_x_formatter(Clock())
        yield plot

    def show(self, plot: Plot, state: str = "") -> None:
        """`state` says what else is to be known (paused, replay)."""
        self._head.say(self._title(plot, state))
        if plot == self._shown:
            return
        self._shown = plot
        canvas = self.query_one(PlotWidget)
        canvas.clear()
        low, high = _limits(plot)
        unit = plot.curves[0].unit if plot.curves else ""
        canvas.set_y_formatter(Scale(unit, plot.log))
        canvas.set_xlimits(plot.now - plot.seconds, plot.now)
        canvas.set_ylimits(low, high)
        colours = self.app.theme_variables
        # The line first: points over it stay to be seen, a line over points would hide them.
        for number, curve in enumerate(plot.curves[: len(STROKES)]):
            sign, name = STROKES[number]
            colour = colours.get(name, "green")
            stems = number == 0 and curve.key in SINGLE and len(curve.values) <= FEW
            for piece in curve.pieces:
                xs = [x for x, _ in piece]
                ys = [math.log10(max(y, 1e-9)) if plot.log else y for _, y in piece]
                if stems:
                    for x, y in zip(xs, ys, strict=True):
                        canvas.plot([x, x], [low, y], line_style=colour, hires_mode=HiResMode.BRAILLE)
                elif number == 0 and len(xs) > 1:
                    canvas.plot(xs, ys, line_style=colour, hires_mode=HiResMode.BRAILLE)
                else:
                    canvas.scatter(xs, ys, marker=sign[0] if number else "•", marker_style=colour)
        for mark in plot.marks[-MARKS:]:
            if plot.now - plot.seconds <= mark.at <= plot.now:
                canvas.add_v_line(mark.at, line_style=colours.get("faint", "grey"))

    def _title(self, plot: Plot, state: str) -> Content:
        pieces: list[Content | str | tuple[str, str]] = []
        for curve, (stroke, colour) in zip(plot.curves, STROKES, strict=False):
            source = curve.key.partition(".")[0]
            named = source == "own" or curve.title.startswith(source)
            name = curve.title if named else f"{source} {curve.title}"
            pieces += [(stroke, f"${colour}"), (f" {one_line(name, 40)}", "bold"), "   "]
        if not plot.curves:
            pieces += [("no curve selected", "$muted"), "   "]
        minutes = ", minute means" if any(curve.minutes for curve in plot.curves) else ""
        pieces.append((f"last {about(plot.seconds)}{minutes}{', log axis' if plot.log else ''}", "$muted"))
        if plot.curves and not any(curve.pieces for curve in plot.curves):
            pieces.append(("   no data in this range", "$warning"))
        if state:
            pieces.append((f"   {state}", "$warning"))
        recent = [mark for mark in plot.marks if plot.now - plot.seconds <= mark.at <= plot.now][-3:]
        for mark in recent:
            at = clock(mark.at)
            pieces.append((f"   │ {at} {one_line(mark.text, 40)}", "$faint"))
        return Content.assemble(*pieces)


def _limits(plot: Plot) -> tuple[float, float]:
    """Of the value axis: from zero, so that a small wobble looks small; on a log axis the powers around the data."""
    values = [value for curve in plot.curves for value in curve.values]
    if plot.log:
        positive = [math.log10(value) for value in values if value > 0] or [0.0]
        floor, ceiling = math.floor(min(positive) - 0.05), math.ceil(max(positive) + 0.05)
        return float(floor), float(max(ceiling, floor + 1))
    high = max(values, default=0.0)
    if plot.curves and plot.curves[0].unit == "share":
        return 0.0, 1.0
    return min(0.0, *values) if values else 0.0, high * 1.1 if high > 0 else 1.0
