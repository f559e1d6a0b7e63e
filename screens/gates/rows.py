"""Lines of the Gates screen: runs and plans, a plan's conditions with margins and intervals, deciding pictures."""

from __future__ import annotations

import time
from collections.abc import Sequence

from textual.content import Content

from vlmconsole.desks.gates import GateEntry
from vlmconsole.gates.figures import figures, short_answer
from vlmconsole.gates.plan import Gate
from vlmconsole.gates.power import GatePower
from vlmconsole.gates.samples import Case
from vlmconsole.gates.verdict import Judged
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.fitting import fitted
from vlmconsole.text.numbers import percent
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import LATE_PASS, QUIET, WORKING, sign_of

OUTCOME_SIGNS = {"lost": ("▼", "$error"), "wrong": ("✗", "$error"), "won": ("▲", "$accent"), "right": ("✓", "$muted")}


class EntryRows(ItemList[GateEntry]):
    """Judged runs and frozen plans."""

    def key(self, item: GateEntry) -> tuple[str, str]:
        return (item.kind, item.name)

    def line(self, y: int, width: int) -> Content:
        entry = self.items[y]
        plan = entry.kind == "plan"
        active = entry.state in ("queued", "starting", "running")
        mark, style = ("§", "$muted") if plan else painted(WORKING if active else sign_of(entry.verdict, QUIET))
        when, name, tail = plan_label(entry) if plan else run_label(entry.name)
        tail = f"late {tail}" if entry.verdict == LATE_PASS else tail
        room = width - 4
        pieces: list[Content | str | tuple[str, str]] = [" ", (mark, style), " "]
        if room >= ROOMY:
            pieces.append((f"{when:<12} ", "$muted"))
            room = min(ROOMY - 18, room - 13)
        wide = max(4, room - len(tail) - 1)
        body = Content(one_line(name, 120)).truncate(wide, ellipsis=True, pad=True)
        pieces += [body.stylize("$muted") if plan else body, (f" {tail}", "$muted")]
        if width - 4 >= ROOMY:
            word = "frozen plan" if plan else f"{entry.verdict or entry.state}  {one_line(entry.plan, 60)}"
            pieces.append((f"  {word}", "$muted"))
        return Content.assemble(*pieces)


ROOMY = 50  # cells of a line from which on its day and hour, verdict and plan are shown


def run_label(name: str) -> tuple[str, str, str]:
    """Return a run's name as (`11-29 14:00`, `repair-1-tiny`, `a1b2`): when it was made, its preset, what tells it
    apart.
    """
    parts = name.split("-")
    if len(parts) >= 4 and len(parts[0]) == 8 and len(parts[1]) == 6 and (parts[0] + parts[1]).isdigit():
        day, hour = parts[0], parts[1]
        return f"{day[4:6]}-{day[6:]} {hour[:2]}:{hour[2:4]}", "-".join(parts[2:-1]), one_line(parts[-1], 4)
    return "", name, ""


def plan_label(entry: GateEntry) -> tuple[str, str, str]:
    """Return a frozen plan as (when, name, beginning of its hash), which its file's name ends with."""
    when = time.strftime("%m-%d %H:%M", time.localtime(entry.t)) if entry.t else "never frozen"
    return when, entry.plan, one_line(entry.name.removesuffix(".json").rpartition("-")[2][:4], 4)


class GateRows(ItemList[Judged | Gate]):
    """Conditions: judged ones with figures, a mere plan's with its limits."""

    span = 0.05  # half width of every interval bar, as a difference of scores

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.powers: dict[str, GatePower] = {}  # of a mere plan's gates, by name

    def key(self, item: Judged | Gate) -> str:
        return gate_of(item).name

    def show(self, items: Sequence[Judged | Gate], *, first: bool = False) -> None:
        ends = [abs(end) for item in items if isinstance(item, Judged) and item.interval for end in item.interval]
        before, self.span = self.span, max([0.02, *ends])
        super().show(items, first=first)
        if self.span != before:
            self.refresh()

    def header(self, width: int) -> Content:
        wide = width >= WIDE
        text = f"   {'group':<9} {'measure':<14} {'limit':>9}"
        if self.powers:
            return Content(f"{text}  {'with 80 % chance':<16}  base"[:width]).stylize("$faint")
        text += f" {'before':>7} {'after':>7} {'margin':>8}" if wide else f" {'measured':>9} {'margin':>8}"
        bar = _bar_width(width)
        text += f"  {'gain, 95 %':<{bar}}" if wide and bar else ""
        return Content((text + "  verdict")[:width]).stylize("$faint")

    def line(self, y: int, width: int) -> Content:
        item = self.items[y]
        gate = gate_of(item)
        measure = gate.definition.short or gate.definition.title
        judged = item if isinstance(item, Judged) else None
        mark, style = painted(sign_of(judged.verdict) if judged else QUIET)
        pieces: list[Content | str | tuple[str, str]] = [
            " ", (mark, style), " ", f"{fitted(one_line(gate.group), 9)} ", (f"{measure:<14} ", "$muted"),
            f"{gate.limit_text.replace(' points', ' pts'):>9}",
        ]  # fmt: skip
        if judged is None:
            return Content.assemble(*pieces, *self._power(gate))
        if judged.measured is None:
            return Content.assemble(*pieces, ("  cannot judge  ", "$warning"), (one_line(judged.why, 200), "$muted"))
        texts = figures(judged)
        margin = (f" {texts['margin']:>8}", style if judged.verdict != "PASS" else "")
        if width < WIDE:
            pieces += [f" {texts['measured']:>9}", margin]
        else:
            pieces += [f" {texts['before']:>7} {texts['after']:>7}", margin]
            bar = _bar_width(width)
            if bar:
                shown = texts["interval"] and judged.interval
                pieces += [
                    "  ",
                    (
                        interval_bar(judged.interval, self.span, bar) if shown and judged.interval else " " * bar,
                        "$muted",
                    ),
                ]
        word = "pass" if judged.verdict == "PASS" else judged.verdict
        remark = "one image" if any("one image" in remark for remark in judged.remarks) else ""
        return Content.assemble(*pieces, "  ", (word, style), ("  " + remark if remark else "", "$warning"))

    def _power(self, gate: Gate) -> list[Content | str | tuple[str, str]]:
        """What a gate that has judged nothing yet can see, and from where it starts."""
        power = self.powers.get(gate.name)
        if power is None:
            return []
        tone = "$warning" if power.state in ("vacuous", "unreachable", "not judged") else ""
        base = percent(power.base) if power.source else f"{percent(power.base, 0)} assumed"
        return [(f"  {power.short:<16}", tone), (f"  {base}", "$muted")]


WIDE = 80  # cells from which on before and after are shown


def _bar_width(width: int) -> int:
    """Cells left for the interval's bar."""
    left = width - 84
    return 0 if left < 8 else min(24, left)


def gate_of(item: Judged | Gate) -> Gate:
    return item.gate if isinstance(item, Judged) else item


def interval_bar(interval: tuple[float, float], span: float, width: int) -> str:
    """`├──○──┤` on a line from −span to +span; ┊ marks no difference where the interval leaves it free."""
    low, high = (max(-span, min(span, end)) for end in interval)

    def place(value: float) -> int:
        return round((value + span) / (2 * span) * (width - 1))

    cells = [" "] * width
    cells[place(0.0)] = "┊"
    first, last = place(low), place(high)
    for at in range(first, last + 1):
        cells[at] = "─"
    cells[first], cells[last] = "├", "┤"
    cells[place((low + high) / 2)] = "○"
    return "".join(cells)


class CaseRows(ItemList[Case]):
    """Pictures of one group: what the truth is, and both answers."""

    def key(self, item: Case) -> str:
        return item.after.id

    def line(self, y: int, width: int) -> Content:
        case = self.items[y]
        sign, style = OUTCOME_SIGNS[case.outcome]
        truth, before, after = (
            short_answer(text) for text in (case.after.truth, case.before.answer, case.after.answer)
        )
        room = case_room(width)
        cells = [Content(text).truncate(room, ellipsis=True, pad=True) for text in (truth, before, after)]
        return Content.assemble(
            " ", (sign, style), f" {case.outcome:<6} ", cells[0].stylize("bold"), " ", cells[1].stylize("$muted"), " ",
            cells[2].stylize("" if case.after.all_correct else "$error"),
        )  # fmt: skip


def case_room(width: int) -> int:
    """Cells of each of a case's three answers."""
    return max(5, (width - 12) // 3)


def case_header(width: int) -> Content:
    """Return what stands in the columns of `CaseRows`."""
    room = case_room(width)
    return Content(f"{'':10}{'truth':<{room}} {'before':<{room}} after").stylize("$faint")
