"""The sheets around a job: choosing a preset, the plan before it is queued, one curve large."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.desks.forms import PresetEntry, as_text
from vlmconsole.devices.labels import device_words
from vlmconsole.queue.adding import Planned
from vlmconsole.runs.live_view import Curve, RunState
from vlmconsole.screens.jobs.detail import all_curves
from vlmconsole.screens.jobs.form import takes
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.screens.widgets.field import Field
from vlmconsole.text.numbers import figure
from vlmconsole.text.plain import inert, one_line


class PresetList(ModalScreen[str | None]):
    """Type to narrow, arrows to move, Enter to choose; what the chosen one is stands beside the list."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("down", "cursor(1)", "next", show=False, priority=True),
        Binding("up", "cursor(-1)", "previous", show=False, priority=True),
    ]

    def __init__(self, entries: Sequence[PresetEntry], wrong: str = "") -> None:
        super().__init__(classes="reader")
        self._entries, self._wrong = list(entries), wrong

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet presets"):
            yield Static(Content.assemble(("New job", "bold"), ("   from a preset", "$muted")), classes="title")
            yield Field(placeholder="type to filter", compact=True)
            with Horizontal(id="choice"):
                yield OptionList(compact=True, markup=False)
                yield Static(id="preview")
            if self._wrong:
                yield Static(Content(f"✗ {inert(self._wrong)}").stylize("$error"))
            yield Static(Content("Enter select · ↑ ↓ move · Esc cancel").stylize("$faint"))

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        self.query_one(OptionList).can_focus = False
        self._fill("")

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._fill(event.value)

    def _fill(self, words: str) -> None:
        listing = self.query_one(OptionList)
        listing.clear_options()
        group, first = None, None
        for index, entry in self._matching(words.lower().split()):
            if entry.group != group:
                group = entry.group
                listing.add_option(Option(Content(one_line(group, 60)).stylize("$faint"), disabled=True))
            first = listing.option_count if first is None else first
            listing.add_option(Option(Content("  " + one_line(entry.name, 60)), id=str(index)))
        listing.highlighted = first
        if first is None:
            self.query_one("#preview", Static).update(Content("no matching preset").stylize("$muted"))

    def _matching(self, words: Sequence[str]) -> list[tuple[int, PresetEntry]]:
        """The entries that hold every word; names that begin with the first one first, then names that hold them."""
        ranked = []
        for index, entry in enumerate(self._entries):
            name = entry.name.lower()
            text = f"{name} {entry.title} {entry.kind} {entry.group}".lower()
            if all(word in text for word in words):
                rank = 0 if not words or name.startswith(words[0]) else 1 if all(word in name for word in words) else 2
                ranked.append((rank, index, entry))
        return [(index, entry) for _, index, entry in sorted(ranked, key=lambda match: match[:2])]

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        if event.option.id is None:
            return
        entry = self._entries[int(event.option.id)]
        text = Content.assemble(
            (one_line(entry.title, 200), "bold"),
            (f"\n\n{inert(entry.notes)}" if entry.notes else "", ""),
            (f"\n\nkind {one_line(entry.kind, 60)} · {one_line(entry.source, 200)}", "$muted"),
            ("\n\nFrom a shell:\n", "$faint"),
            (f"vlmconsole jobs add {one_line(entry.name, 80)}", "$muted"),
        )
        self.query_one("#preview", Static).update(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        listing = self.query_one(OptionList)
        if listing.highlighted is not None:
            self._take(listing.get_option_at_index(listing.highlighted))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self._take(event.option)

    def _take(self, option: Option) -> None:
        if option.id is not None:
            self.dismiss(self._entries[int(option.id)].name)

    def action_cursor(self, by: int) -> None:
        listing = self.query_one(OptionList)
        (listing.action_cursor_down if by > 0 else listing.action_cursor_up)()

    def action_cancel(self) -> None:
        self.dismiss(None)


class PlanSheet(ModalScreen[bool]):
    """What would be queued: every setting, the devices, what it takes, and the command that does the same."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("enter", "queue", "queue", key_display="Enter"),
        Binding("q", "cancel", "back", show=False),
    ]

    def __init__(self, planned: Sequence[Planned], twin: str, place: str) -> None:
        super().__init__(classes="reader")
        self._planned, self._twin, self._place = planned, twin, place

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            name = one_line(self._planned[0].job.preset, 60)
            yield Static(Content.assemble((f"Plan: {name}", "bold"), (f"   {self._place}", "$muted")))
            yield Static(takes(self._planned), classes="takes")
            with VerticalScroll():
                yield Static(Content("\n").join(self._lines()))
            yield Static(Content(inert(self._twin)).stylize("$muted"), classes="twin")
            yield Static(Content.assemble(("Enter", "$accent"), (" queue · ", "$muted"), ("Esc", "$accent"),
                                          (" cancel", "$muted")))  # fmt: skip

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _lines(self) -> list[Content]:
        lines: list[Content] = []
        for step in self._planned:
            job = step.job
            if job.kind == "flow":
                continue
            if lines:
                lines.append(Content(""))
            title = f"{job.step}: {job.title}" if job.step else job.title
            lines.append(Content(one_line(title, 200)).stylize("$accent"))
            longest = max((len(key) for key in job.spec), default=0)
            for key, value in job.spec.items():
                lines.append(
                    Content.assemble(
                        (f"  {one_line(key, 40):<{min(longest, 40)}}  ", "$muted"),
                        "none" if value is None else one_line(as_text(value) or "empty"),
                    )
                )
            lines += [Content(f"  from the data: {one_line(line, 200)}").stylize("$muted") for line in step.proposed]
            facts = [f"device {device_words(job.devices)}"]
            facts += [f"uses server {job.server}"] if job.server else []
            facts += [f"serves {job.serves}"] if job.serves else []
            facts += [f"environment {job.options['environment']}"] if job.options.get("environment") else []
            facts += [f"after {name} ({mode})" for name, mode in step.after_steps]
            lines.append(Content(one_line("  " + " · ".join(facts), 300)).stylize("$muted"))
        return lines

    def action_queue(self) -> None:
        self.dismiss(True)

    def action_cancel(self) -> None:
        self.dismiss(False)


class CurveSheet(ModalScreen[None]):
    """One curve over the whole screen, growing while one looks; Tab and the brackets go to the others."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("q,enter,p", "cancel", "back", show=False),
        Binding("tab,right_square_bracket,j", "other(1)", "next", show=False, priority=True),
        Binding("shift+tab,left_square_bracket,k", "other(-1)", "previous", show=False, priority=True),
    ]

    def __init__(self, state: RunState, at: int, look: Callable[[], Awaitable[RunState]]) -> None:
        super().__init__(classes="reader")
        self._told, self._at, self._look = state, at, look
        self._drawn: tuple[Curve, str] | None = None  # and the theme that it has its colour of

    def compose(self) -> ComposeResult:
        from textual_plot import PlotWidget

        plot = PlotWidget(allow_pan_and_zoom=False)
        plot.can_focus = False  # else the footer offers its keys, which do nothing
        with Vertical(classes="sheet curve"):
            yield Static(id="curve-title")
            yield plot
            yield Static(id="curve-place")

    def on_mount(self) -> None:
        self.call_after_refresh(self._draw)
        self.set_interval(1.0, self._again)

    async def _again(self) -> None:
        self._told = await self._look()
        self._draw()

    def action_other(self, by: int) -> None:
        self._at += by
        self._draw()

    def _draw(self) -> None:
        from textual_plot import HiResMode, PlotWidget

        curves = all_curves(self._told)
        if not curves:
            return
        self._at %= len(curves)
        curve = curves[self._at]
        if (curve, self.app.theme) == self._drawn:
            return
        self._drawn = (curve, self.app.theme)
        values = [value for _, value in curve.points]
        unit = f" {one_line(curve.unit, 12)}" if curve.unit else ""
        thinned = f" (1 in {curve.thinned} shown)" if curve.thinned > 1 else ""
        facts = (
            f"   last {figure(curve.last)}{unit} · min {figure(min(values))} · max {figure(max(values))}"
            f" · {len(values)} points{thinned}"
        )
        title = Content.assemble((one_line(curve.name, 60), "bold"), (facts, "$muted"))
        self.query_one("#curve-title", Static).update(title)
        place = f"curve {self._at + 1} of {len(curves)} · Tab next · Esc back"
        self.query_one("#curve-place", Static).update(Content(place).stylize("$faint"))
        plot = self.query_one(PlotWidget)
        plot.clear()
        colour = self.app.theme_variables.get("accent", "green")
        plot.plot([x for x, _ in curve.points], values, line_style=colour, hires_mode=HiResMode.BRAILLE)
        plot.set_xlabel("step" if curve.steps else "seconds")

    def action_cancel(self) -> None:
        self.dismiss(None)
