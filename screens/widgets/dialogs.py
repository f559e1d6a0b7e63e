"""Small windows over a screen: a question, a line of text, a long text to read. Esc always leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from vlmconsole.screens.console import console_of
from vlmconsole.screens.keys import TYPED, Key, keys_of, shown_keys
from vlmconsole.screens.prose.prose import Prose
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.field import Field

CANCEL = Binding("escape", "cancel", "back", key_display="Esc")
SAVE = Binding("ctrl+s", "save", "save", key_display="Ctrl+S", show=False, priority=True)
OTHER_KEYS = "Change keys under [keys] in config.toml; `vlmconsole keys` lists the names."


class Confirm(ModalScreen[bool]):
    """Yes or no, where no is what every careless key gives."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("y", "yes", "yes"),
        Binding("n,q,enter", "cancel", "no", show=False),
    ]

    def __init__(self, question: str, consequence: str = "") -> None:
        super().__init__(classes="dialog")
        self._question, self._consequence = question, consequence

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Content(self._question).stylize("bold"))
            if self._consequence:
                yield Static(Content(self._consequence).stylize("$muted"))
            yield Static(
                Content.assemble(("\ny", "$accent"), (" yes   ", "$muted"), ("n", "$accent"), (" no", "$muted"))
            )

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_cancel(self) -> None:
        self.dismiss(False)


class Ask(ModalScreen[str | None]):
    """One line of text; None when left with Esc."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL, SAVE]

    def __init__(self, title: str, value: str = "", hint: str = "") -> None:
        super().__init__(classes="dialog")
        self._title, self._value, self._hint = title, value, hint

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Content(self._title).stylize("bold"))
            yield Field(self._value, compact=True)
            yield Static(Content(self._hint or "Enter save · Esc cancel").stylize("$muted"))

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        self.dismiss(self.query_one(Input).value.strip())

    def action_cancel(self) -> None:
        self.dismiss(None)


class Form(ModalScreen[dict[str, str] | None]):
    """Edit a few named lines; `fields` are (key, label, value, hint). Ctrl+S saves, as Enter does on the last line.

    `check` names what is wrong by the field's key: it is shown beside the field, and nothing typed is lost.
    """

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL, SAVE]

    def __init__(
        self,
        title: str,
        fields: Sequence[tuple[str, str, str, str]],
        check: Callable[[dict[str, str]], Mapping[str, str]] = lambda _: {},
    ) -> None:
        super().__init__(classes="dialog")
        self._title, self._fields, self._check = title, fields, check

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Content(self._title).stylize("bold"))
            for key, label, value, hint in self._fields:
                with Horizontal(classes="field"):
                    yield Static(Content(label).stylize("$muted"), classes="label")
                    yield Field(value, placeholder=hint, compact=True, name=key)
                yield Static(name=key, classes="fault")
            yield Static(Content("Ctrl+S save · Tab next · Esc cancel").stylize("$muted"))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        fields = list(self.query(Input))
        if event.input is not fields[-1]:
            fields[fields.index(event.input) + 1].focus()
            return
        self.action_save()

    def action_save(self) -> None:
        fields = list(self.query(Input))
        values = {field.name or "": field.value for field in fields}
        faults = self._check(values)
        self._show(faults)
        if not faults:
            self.dismiss(values)
            return
        next(field for field in fields if field.name in faults).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """What is being mended is no longer wrong; whether it is right is said when all is to be kept."""
        self._show({fault.name or "": "" for fault in self.query(".fault") if fault.name == event.input.name})

    def _show(self, faults: Mapping[str, str]) -> None:
        for line in self.query(".fault").results(Static):
            if (fault := faults.get(line.name or "")) is not None:
                line.update(Content(f"✗ {fault}").stylize("$error") if fault else "")
                line.display = bool(fault)

    def action_cancel(self) -> None:
        self.dismiss(None)


class Choose(ModalScreen[str | None]):
    """One of several; `options` are (id, label, note). None when left with Esc. The cursor begins at `current`."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL]

    def __init__(self, title: str, options: Sequence[tuple[str, str, str]], current: str = "") -> None:
        super().__init__(classes="dialog")
        self._title, self._options, self._current = title, options, current

    def on_mount(self) -> None:
        keys = [key for key, *_ in self._options]
        if self._current in keys:
            self.query_one(OptionList).highlighted = keys.index(self._current)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Content(self._title).stylize("bold"))
            yield OptionList(
                *(
                    Option(Content.assemble(label, ("  " + note, "$muted")), id=key)
                    for key, label, note in self._options
                ),
                compact=True,
                markup=False,
            )
            yield Static(Content("Enter select · Esc cancel").stylize("$muted"))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_cancel(self) -> None:
        self.dismiss(None)


class Reader(ModalScreen[None]):
    """A long text over the whole screen: raw requests, usage, logs. Shown as it is, never as markup."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [
        CANCEL,
        Binding("q,enter", "cancel", "back", show=False),
        Binding("j", "scroll(1)", "down", show=False),
        Binding("k", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, title: str, parts: Sequence[tuple[str, str]]) -> None:
        super().__init__(classes="reader")
        self._title, self._parts = title, parts

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(Content.assemble((self._title, "bold"), ("   Esc back", "$faint")), classes="title")
            with VerticalScroll():
                for heading, text in self._parts:
                    yield Static(Content(heading).stylize("$accent"), classes="heading")
                    yield Prose(text, markdown=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_cancel(self) -> None:
        self.dismiss(None)


class KeyHelp(ModalScreen[None]):
    """All keys, from the table that dispatches them."""

    CSS_PATH = DIALOGS
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL, Binding("q,question_mark,enter", "cancel", "back", show=False)]

    TITLES = (("composer", "In the message box"), ("anywhere", "Anywhere"), ("reading", "Outside the message box"))

    def __init__(self, screen: str, tabs: Sequence[tuple[str, str]]) -> None:
        super().__init__(classes="reader")
        self._screen, self._tabs = screen, tabs

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet"):
            yield Static(Content.assemble(("Keys", "bold"), ("   Esc back", "$faint")), classes="title")
            with VerticalScroll():
                yield Static(self._text())

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def _text(self) -> Content:
        lines: list[Content] = []
        remapped = console_of(self).remapped

        def line(key: Key) -> Content:
            return _key(shown_keys(key, remapped), key.help, style="$accent" if key.id in remapped else "bold")

        keys = keys_of(self._screen)
        used = {key.place for key in keys}
        for place, title in self.TITLES:
            if place not in used:
                continue
            if place == "reading" and "composer" not in used:
                title = "While not typing"
            lines += [Content(""), Content(title).stylize("$accent")]
            if place == "anywhere":
                lines += [_key(f"F{number} or {number}", f"{name} screen") for number, name in self._tabs]
            lines += [line(key) for key in keys if key.place == place]
            if place == "composer":
                lines += [Content(""), Content("Commands").stylize("$accent")]
                lines += [_key(f"{word} {more}".strip(), meaning, 22) for word, more, meaning in TYPED]
        lines += [Content(""), Content(OTHER_KEYS).stylize("$faint")]
        return Content("\n").join(lines[1:])

    def action_cancel(self) -> None:
        self.dismiss(None)


def _key(shown: str, meaning: str, width: int = 10, style: str = "bold") -> Content:
    return Content.assemble((f"  {shown:<{width}}", style), (meaning, "$muted"))
