"""A preset's settings as a form: made from the kind of job, checked while one types, with what the job would take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

from vlmconsole.desks import forms
from vlmconsole.desks.forms import FormField, FormGroup
from vlmconsole.devices.labels import device_words
from vlmconsole.errors import LabError
from vlmconsole.queue.adding import Planned
from vlmconsole.runs.places import Places
from vlmconsole.screens.background import in_background
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.screens.widgets.field import Field
from vlmconsole.text.counts import many
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.sizes import size
from vlmconsole.text.times import about

PRIORITY = FormField("priority", "priority", "whole number", "", "Higher runs first; blank: the preset's (0)")
AFTER = FormField("after", "after", "text", "", "Jobs to wait for: 17 (must succeed) or 17:any (any end)")
QUEUE = FormGroup("Queue", (PRIORITY, AFTER))


class Switch(Static, can_focus=True):
    """One of a few values, changed with the arrows or Space; what it may be stands beside it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "previous", show=False),
        Binding("right,space", "turn(1)", "next", show=False),
    ]

    class Changed(Message):
        pass

    class Refused(Message):
        """A key of text that none of the values begins with."""

        def __init__(self, character: str, choices: Sequence[str]) -> None:
            super().__init__()
            self.character, self.choices = character, choices

    def __init__(self, choices: Sequence[str], value: str, *, name: str) -> None:
        super().__init__(name=name, classes="switch")
        self.choices = list(dict.fromkeys([*choices, *([value] if value else [])])) or [""]
        self.value = value or self.choices[0]

    def on_mount(self) -> None:
        self._draw()

    def on_focus(self) -> None:
        self._draw()

    def on_blur(self) -> None:
        self._draw()

    def on_click(self) -> None:
        self.action_turn(1)

    def on_key(self, event: events.Key) -> None:
        """A letter chooses the next value that begins with it; any other key of text is refused aloud, never lost."""
        if event.character is None or not event.is_printable or event.key == "space":
            return
        event.stop()
        start = self.choices.index(self.value) + 1
        ahead = [*self.choices[start:], *self.choices[:start]]
        match = next((value for value in ahead if value.lower().startswith(event.character.lower())), None)
        if match is None:
            self.post_message(self.Refused(event.character, self.choices))
        else:
            self._choose(match)

    def action_turn(self, by: int) -> None:
        self._choose(self.choices[(self.choices.index(self.value) + by) % len(self.choices)])

    def _choose(self, value: str) -> None:
        self.value = value
        self._draw()
        self.post_message(self.Changed())

    def _draw(self) -> None:
        arrows = "$accent" if self.has_focus else "$faint"
        self.update(Content.assemble(("‹ ", arrows), one_line(self.value, 60), (" ›", arrows)))


class FormLine(Vertical):
    """Label, value, what it may be; below it what is wrong with it, when something is."""

    def __init__(self, field: FormField, value: str) -> None:
        super().__init__(classes="form-line")
        self.field, self._begun = field, value

    def compose(self) -> ComposeResult:
        field = self.field
        with Horizontal(classes="form-value"):
            yield Static(Content(one_line(field.label, 40)).stylize("$muted"), classes="label")
            if field.kind == "choice":
                yield Switch(field.choices, self._begun, name=field.key)
            elif field.kind == "yes or no":
                yield Switch(("true", "false"), self._begun, name=field.key)
            else:
                blank = "from the data" if field.proposed else "required" if field.required else "none"
                hint = "preset value" if field.value else blank
                yield Field(self._begun, placeholder=hint, compact=True, name=field.key)
            limits = "" if field.kind == "choice" else field.allowed
            label = " · ".join(filter(None, (one_line(field.help, 200), " ".join(filter(None, (field.unit, limits))))))
            yield Static(Content(label).stylize("$faint"), classes="limits")
        yield Static(classes="wrong")

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self.wrong("")

    @property
    def value(self) -> str:
        """What is typed or chosen; until the line is composed, what it begins with."""
        for choice in self.query(Switch):
            return choice.value
        for typed in self.query(Input):
            return typed.value
        return self._begun

    def wrong(self, why: str) -> None:
        part = self.query_one(".wrong", Static)
        part.display = bool(why)
        part.update(Content.assemble(("✗ ", "$error"), inert(why)))


class FormFields(VerticalScroll, inherit_bindings=False, can_focus=False):
    """The lines of a form. Scrolls with the focus: arrows and pages are the form's, which moves through the fields.

    Whatever changes their layout (the plan's lines below them, what is wrong with a field), the focused one stays seen.
    """

    def on_resize(self) -> None:
        self.keep_in_sight()

    def watch_virtual_size(self) -> None:
        self.keep_in_sight()

    def keep_in_sight(self) -> None:
        """Scroll the field that takes the keys into the view, once everything has its place."""
        self.call_after_refresh(self._reveal)

    def _reveal(self) -> None:
        if self.is_attached and (field := self.screen.focused) is not None and field in self.query("*"):
            field.scroll_visible(animate=False)


class JobForm(ModalScreen[tuple[list[str], str, str] | None]):
    """Gives (changes as `--set` takes them, after, priority) when all is well and Enter was pressed; None for Esc."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("down,ctrl+n", "app.focus_next", "next", show=False),
        Binding("up", "app.focus_previous", "previous", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("enter", "plan", "review", key_display="Enter", priority=True),
        Binding("ctrl+s", "plan", "review", show=False, priority=True),
    ]

    def __init__(
        self,
        preset: str,
        title: str,
        groups: Sequence[FormGroup],
        places: Places,
        values: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(classes="reader")
        self.kept = dict(values or {})  # as they were when the form was left
        self._preset, self._title, self._places = preset, title, places
        self._groups = [*groups, QUEUE]
        self._wrong: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet job-form"):
            name = one_line(self._preset, 60)
            yield Static(Content.assemble((f"New: {name}", "bold"), (f"   {one_line(self._title, 120)}", "$muted")))
            with FormFields():
                for group in self._groups:
                    if group.title:
                        yield Static(Content(one_line(group.title, 120)).stylize("$accent"), classes="heading")
                    for field in group.fields:
                        yield FormLine(field, self.kept.get(field.key, field.value))
            yield Static(id="form-help")
            yield Static(id="form-plan")
            keys = "Enter review · Tab ↑ ↓ next · ← → choose · Esc back"
            yield Static(Content(keys).stylize("$faint"))

    def on_mount(self) -> None:
        first = next(iter(self.query("FormLine Input, FormLine Switch")), None)
        if isinstance(first, Widget):
            first.focus()
        self._check()

    # -- reading and checking --------------------------------------------------------------------------------

    def values(self) -> dict[str, str]:
        return {line.field.key: line.value for line in self.query(FormLine)}

    def changes(self) -> list[str]:
        return forms.sets(self._groups[:-1], self.values())

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._keep_in_sight()
        self._check()

    def on_switch_changed(self, event: Switch.Changed) -> None:
        event.stop()
        self._keep_in_sight()
        self._check()

    def on_switch_refused(self, event: Switch.Refused) -> None:
        event.stop()
        self._keep_in_sight()
        self.app.bell()
        values = ", ".join(one_line(value, 40) for value in event.choices)
        text = f"No value starts with {one_line(event.character, 4)}: choose from {values}"
        self.query_one("#form-help", Static).update(Content(f"{text}\n← → choose").stylize("$warning"))

    def _keep_in_sight(self) -> None:
        """Whatever takes the keys is seen, also after the wheel moved the view."""
        self.query_one(FormFields).keep_in_sight()

    def action_page(self, by: int) -> None:
        """Move the focus by as many fields as the view holds."""
        fields = [line.query("Input, Switch").first(Widget) for line in self.query(FormLine)]
        if self.focused not in fields:
            return
        rows = max(1, self.query_one(FormFields).size.height - 1)
        index = fields.index(self.focused) + by * rows
        fields[max(0, min(index, len(fields) - 1))].focus()

    def _check(self) -> None:
        in_background(self, self._judge, "judge", exclusive=True)

    async def _judge(self) -> None:
        await asyncio.sleep(0.1)  # typing goes on: the last state is the one that counts
        changes = self.changes()
        values = self.values()
        alone = not values["after"].strip()  # else a job before it may make what it needs
        wrong, summary = await asyncio.to_thread(_judged, self._preset, changes, self._places, alone)
        wrong |= _queue_problems(values)
        self._wrong = wrong
        known = set()
        for line in self.query(FormLine):
            known.add(line.field.key)
            line.wrong(wrong.get(line.field.key, ""))
        other = next((why for key, why in wrong.items() if key not in known), "")
        text = Content.assemble(("✗ ", "$error"), inert(other)) if other else summary
        if wrong and not other:
            text = Content(f"Fix {many(len(wrong), 'field')} to continue").stylize("$error")
        self.query_one("#form-plan", Static).update(text)

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        """The help of the field one stands on."""
        line = next((part for part in event.widget.ancestors if isinstance(part, FormLine)), None)
        if line is None:
            return
        field = line.field
        blank = "blank: follows from the data" if field.proposed else "no value in the preset"
        default = f"preset: {one_line(field.value, 60)}" if field.value else blank
        rest = " · ".join(filter(None, (field.kind, field.allowed, default)))
        self.query_one("#form-help", Static).update(
            Content.assemble((one_line(field.help or field.label, 400), ""), ("\n" + rest, "$muted"))
        )

    async def action_plan(self) -> None:
        await self._judge()
        if self._wrong:
            key = next(iter(self._wrong))
            line = next((line for line in self.query(FormLine) if line.field.key == key), None)
            if line is not None:
                line.query("Input, Switch").first().focus()
            self.app.bell()
            return
        values = self.kept = self.values()
        self.dismiss((self.changes(), values["after"].strip(), values["priority"].strip()))

    def action_cancel(self) -> None:
        self.dismiss(None)


def _judged(preset: str, changes: list[str], places: Places, alone: bool) -> tuple[dict[str, str], Content]:
    """What is wrong, and in one line what the job would take. Runs in a thread."""
    try:
        wrong = forms.problems(preset, changes, places)
        return (wrong, Content("")) if wrong else ({}, takes(forms.planned(preset, changes, places, alone)))
    except LabError as error:
        return {"": error.full_message}, Content("")


def takes(planned: Sequence[Planned]) -> Content:
    """Time, memory, disk and devices of what is planned, added up where it is several jobs."""
    jobs = [step for step in planned if step.job.kind != "flow"]
    guesses = [step.estimate for step in jobs if step.estimate is not None]
    facts = []
    seconds = [guess.seconds for guess in guesses if guess.seconds is not None]
    if seconds:
        rest = "" if len(seconds) == len(jobs) else f" for {len(seconds)} of {len(jobs)} steps"
        facts.append(f"about {about(sum(seconds))}{rest}")
    memory = [guess.memory_bytes for guess in guesses if guess.memory_bytes is not None]
    facts += [f"{size(max(memory))} memory"] if memory else []
    disk = [guess.disk_bytes for guess in guesses if guess.disk_bytes is not None]
    facts += [f"{size(sum(disk))} disk"] if disk else []
    known = " · ".join(facts) or "no estimate available"
    held = dict.fromkeys(device_words(step.job.devices, "no device") for step in jobs)
    notes = "; ".join(dict.fromkeys(guess.note for guess in guesses if guess.note))
    warnings = dict.fromkeys(step.warning for step in jobs if step.warning)
    return Content.assemble(
        (known, "bold" if facts else "$muted"),
        (f" · on {one_line(', '.join(held), 60)}", "$muted"),
        (f" · {one_line(notes, 320)}" if notes else "", "$faint"),
        *((f"\n⚠ {one_line(text, 200)}", "$warning") for text in warnings),
    )


def _queue_problems(values: dict[str, str]) -> dict[str, str]:
    wrong = {}
    priority = values["priority"].strip()
    if priority and not priority.removeprefix("-").isdigit():
        wrong["priority"] = f"priority: “{one_line(priority, 40)}” is not a whole number"
    for part in values["after"].replace(",", " ").split():
        number, _, mode = part.partition(":")
        if not number.isdigit() or mode not in ("", "ok", "any"):
            wrong["after"] = f"after: “{one_line(part, 40)}” is neither a job number nor NUMBER:any"
    return wrong
