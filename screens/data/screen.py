"""The Data screen: datasets │ a gallery of examples │ one example with every answer to it. Twin: `vlmconsole data`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from vlmconsole.desks.data import DataDesk, DatasetEntry, ExamplesView
from vlmconsole.desks.sheet import queue_sheet, sheet_of_view
from vlmconsole.errors import LabError
from vlmconsole.evaluation.example_query import STATES, QueryError
from vlmconsole.evaluation.notes import add_example_note
from vlmconsole.reports.examples import save_examples
from vlmconsole.screens.background import in_background
from vlmconsole.screens.data.example import ExamplePane
from vlmconsole.screens.data.gallery import Gallery
from vlmconsole.screens.data.rows import EMPTY, IMPORT, DatasetRows, about
from vlmconsole.screens.looking import LookingScreen
from vlmconsole.screens.paned import Pane
from vlmconsole.screens.widgets.dialogs import Ask, Choose
from vlmconsole.screens.widgets.field import Field
from vlmconsole.screens.widgets.filtered_table import FilteredTable
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.counts import many
from vlmconsole.text.plain import inert, one_line

if TYPE_CHECKING:
    from textual.timer import Timer
    from textual.widgets import Input

    from vlmconsole.vision.images import Picture

FORMS = (("csv", "CSV", "one row per example, a column per model"), ("html", "HTML", "one page with thumbnails"))
_OF_AN_EXAMPLE = frozenset({"ask", "note", "tag", "mark", "sheet"})
_OF_A_DATASET = frozenset({"states", "verify", "folder", "export"})
LISTED, GALLERY, EXAMPLE = range(3)  # the panes
ALL = "all"
REST = 0.1  # seconds that the cursor rests on an example before it is drawn large


class DataScreen(LookingScreen[DataDesk]):
    """See keys.py for its keys."""

    ENTRY = "data"
    PANES = (Pane("Datasets", "datasets"), Pane("Examples", "examples"), Pane("Example", "example"))
    CSS_PATH = "data.tcss"
    table: FilteredTable[DatasetRows]

    def __init__(self) -> None:
        super().__init__()
        self.rows = DatasetRows(id="dataset-rows")
        self.table = FilteredTable(self.rows, "name, scorer or format", EMPTY, id="datasets")
        self.head = Said(id="examples-head")
        self.field = Field(placeholder="words, is:wrong, tag:…, split:…, run:…", compact=True, id="examples-filter")
        self.gallery = Gallery(self._thumbnail, id="gallery")
        self.example = ExamplePane(lambda: self.console.drawing, self._pictures, id="example")
        self.shown: ExamplesView | None = None
        self._listing: list[DatasetEntry] = []
        self._desk_of_thumbnails: DataDesk | None = None
        self._due: Timer | None = None  # when the chosen example is drawn large

    def compose_panes(self) -> Iterable[Widget]:
        with Horizontal(classes="panes"):
            yield self.table
            with Vertical(id="examples"):
                yield from (self.head, self.field, self.gallery)
            yield self.example

    # -- looking -------------------------------------------------------------------------------------------

    def open_desk(self) -> DataDesk:
        desk = DataDesk(self.console.lab.places)
        self._desk_of_thumbnails = desk
        return desk

    def close_desk(self, desk: DataDesk) -> None:
        desk.close()

    def _thumbnail(self, view: ExamplesView, index: int) -> bytes | None:
        """Called in a thread; the desk is there, since it made the view."""
        return self._desk_of_thumbnails.thumbnail(view.opened, index) if self._desk_of_thumbnails else None

    def _pictures(self, view: ExamplesView, index: int) -> list[Picture]:
        """An example's images; called in a thread. Raises LabError."""
        from vlmconsole.vision.images import open_picture

        example = view.opened.example(index)
        names = [f"{example.id}-{number}" if number > 1 else example.id for number in range(1, len(example.images) + 1)]
        return [open_picture(image, name=name) for image, name in zip(example.images, names, strict=True)]

    async def look_once(self) -> None:
        chosen, words, asked = self.rows.chosen, self.table.field.value.lower().split(), self.field.value
        listing, entry, view, fault = await self.in_thread(
            lambda desk: _read(desk, words, chosen.name if chosen is not None else None, asked)
        )
        self._listing = listing
        self._show_list()
        now = self.rows.chosen
        if now is not None and entry is not None and now.name != entry.name:
            self._blank()
            self.look()  # the cursor went on meanwhile
            return
        if view is not None and (self.shown is None or self.shown.opened is not view.opened):
            # Its examples are tens of thousands of objects that stay: no collection has to walk over them.
            gc.freeze()
        self._show_view(entry, view, fault)

    def show_fault(self, error: LabError | OSError) -> None:
        hint = error.hint if isinstance(error, LabError) else str(self.console.lab.places.datasets)
        message = error.message if isinstance(error, LabError) else str(error.strerror)
        self.table.show_fault("Cannot read the datasets", message, hint)

    def _show_list(self) -> None:
        words = self.table.field.value.lower().split()
        matches = [entry for entry in self._listing if _fits(entry, words)]
        self.rows.show(matches)
        head = Content.assemble(
            (f" {many(len(self._listing), 'dataset')}", "$muted"),
            (f"  {many(len(matches), 'match', 'matches')}" if words else "", "$accent"),
        )
        self.table.show_head(head, empty=not self._listing)
        self.set_class(not self._listing, "-empty")

    def _show_view(self, entry: DatasetEntry | None, view: ExamplesView | None, fault: str) -> None:
        had = self.shown
        if view is not None or not fault or entry is None:
            self.shown = view
        self.head.say(self._head(entry, fault))
        self.gallery.show(self.shown, drawing=self.console.drawing)
        if self.shown is not had:
            self._show_example()
        self.refresh_bindings()

    def _head(self, entry: DatasetEntry | None, fault: str) -> Content:
        if entry is None:
            return Content("")
        view = self.shown if self.shown is not None and self.shown.opened.entry.name == entry.name else None
        text = about(entry, view.opened.scorers if view is not None else ())
        if fault:
            return Content.assemble(text, ("\n✗ ", "$error"), (inert(fault), "$error"))
        if view is None or not view.query_text:
            return text
        count = f"\n{len(view.shown):,} of {len(view.opened.examples):,}  "
        return Content.assemble(text, (count, "$accent"), (one_line(view.query_text, 80), "$muted"))

    def _blank(self) -> None:
        """Until the chosen dataset is read: no other one's examples."""
        self.gallery.mark(frozenset())
        self.shown = None
        self.head.say(Content("reading …").stylize("$muted"))
        self.gallery.show(None)
        self._show_example()

    def _show_example(self) -> None:
        self.example.show(self.shown, self.gallery.chosen if self.shown is not None else None)

    # -- parts and moving about ----------------------------------------------------------------------------

    def on_item_list_chosen(self, event: ItemList.Chosen) -> None:
        event.stop()
        if self.shown is not None and self.rows.chosen is not None:
            if self.shown.opened.entry.name == self.rows.chosen.name:
                return
            self._blank()
        self.look()

    def on_item_list_opened(self, event: ItemList.Opened) -> None:
        event.stop()
        self.go_to_pane(GALLERY)

    def on_gallery_chosen(self, event: Gallery.Chosen) -> None:
        event.stop()
        if self._due is None:  # the tile is painted first; of those that a held key runs through none is drawn large
            self._due = self.set_timer(REST, self._show_rested)
        else:
            self._due.reset()

    def _show_rested(self) -> None:
        self._due = None
        self._show_example()

    def on_gallery_opened(self, event: Gallery.Opened) -> None:
        event.stop()
        self.go_to_pane(EXAMPLE)

    def on_filtered_table_filtered(self, event: FilteredTable.Filtered) -> None:
        event.stop()
        self._show_list()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.look()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.gallery.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return what has no object is off, and gone from the footer."""
        if action in _OF_AN_EXAMPLE and (self.shown is None or self.gallery.chosen is None):
            return False
        if action in _OF_A_DATASET and self.rows.chosen is None:
            return False
        if action == "copy_import" and self._listing:
            return False
        return super().check_action(action, parameters)

    def target(self, index: int) -> Widget | None:
        return (self.rows, self.gallery, self.example.text)[index]

    def action_move(self, by: int) -> None:
        if self.focused is self.gallery:
            self.gallery.choose(self._beside(by))
        elif self.focused is self.example.text:
            self.example.text.scroll_relative(y=by, animate=False)
        else:
            super().action_move(by)

    def _beside(self, rows: int) -> int:
        """The tile some rows further; at an edge the cursor remains in its column."""
        columns, count = self.gallery.grid.columns, self.gallery.grid.count
        target = self.gallery.cursor + rows * columns
        if 0 <= target < count:
            return target
        if target < 0:
            return self.gallery.cursor % columns
        return count - 1

    def action_turn(self, by: int) -> None:
        """h l, and , . from everywhere: the example before or after."""
        self.gallery.choose(self.gallery.cursor + by)

    def action_page(self, by: int) -> None:
        if self.focused is self.gallery:
            self.gallery.choose(self._beside(by * self.gallery.rows_in_sight()))
        else:
            super().action_page(by)

    def action_edge(self, by: int) -> None:
        if self.focused is self.gallery:
            self.gallery.choose(by * 1_000_000_000)
        else:
            super().action_edge(by)

    def action_filter(self) -> None:
        """/: narrow the datasets, or the examples."""
        if self.pane == LISTED:
            super().action_filter()
            return
        self.go_to_pane(GALLERY)
        self.add_class("-filtering")
        self.field.focus()

    def action_leave(self) -> None:
        """Esc: out of the filter; then it goes, then the large pane; back to the datasets."""
        if self.focused is self.field and self.field.value:
            self.gallery.focus()
        elif self.has_class("-filtering") and self.pane != LISTED:
            self.field.value = ""
            self.remove_class("-filtering")
            self.gallery.focus()
        elif self.pane == EXAMPLE and not self.has_class("-large"):
            self.go_to_pane(GALLERY)
        else:
            super().action_leave()

    # -- marking -------------------------------------------------------------------------------------------

    def action_mark(self) -> None:
        """Space: mark the example, or no longer, and go on."""
        if self.shown is None or self.gallery.chosen is None:
            return
        name = self.shown.opened.examples[self.gallery.chosen].id
        self.gallery.mark(self.gallery.marked ^ {name})
        self.action_turn(1)

    def action_unmark(self) -> None:
        """u: nothing is marked any more."""
        self.gallery.mark(frozenset())

    def _meant(self, view: ExamplesView) -> tuple[int, ...]:
        """The marked examples, else those that are shown."""
        marked = self.gallery.marked
        every = range(len(view.opened.examples))
        return tuple(place for place in every if view.opened.examples[place].id in marked) if marked else view.shown

    # -- doing ---------------------------------------------------------------------------------------------

    def action_ask(self) -> None:
        """Enter: from the datasets to the examples; there, put the example into the message box of Chat."""
        if self.pane == LISTED and self.focused is self.rows:
            self.go_to_pane(GALLERY)
        elif self.shown is not None and self.gallery.chosen is not None:
            in_background(self, partial(self._ask, self.shown, self.gallery.chosen), "ask", exclusive=True)

    async def _ask(self, view: ExamplesView, index: int) -> None:
        try:
            messages = await asyncio.to_thread(lambda: view.opened.example(index).messages())
        except (LabError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        *before, last = messages
        if before or last.places:
            self.console.ask_in_chat(messages, view.opened.examples[index].id)
        else:
            self.console.write_in_chat(last.text, last.pictures)

    def action_sheet(self) -> None:
        """a: one question over what is marked or shown; its answers are a dataset and a run of their own."""
        in_background(self, self._sheet, "sheet", exclusive=True)

    async def _sheet(self) -> None:
        view = self.shown
        if view is None or not (places := self._meant(view)):
            return
        link = self.console.link
        who = link.profile.name if link is not None else self.console.lab.settings.server
        hint = f"answered by {one_line(who, 40)} · Enter asks · Esc cancel"
        question = await self.app.push_screen_wait(Ask(f"Ask of {many(len(places), 'image')}", hint=hint))
        if not question:
            return
        lab = self.console.lab

        def begin() -> tuple[str, int]:
            sheet = sheet_of_view(lab.places, view, places, question)
            store, number, _ = queue_sheet(lab.places, sheet, usual_server=lab.settings.server, server=who)
            store.close()
            return sheet.folder.name, number

        try:
            name, number = await asyncio.to_thread(begin)
        except (LabError, OSError) as error:
            text = error.full_message if isinstance(error, LabError) else str(error)
            self.notify(text, severity="error", markup=False, timeout=10)
            return
        self.notify(f"job {number} asks {many(len(places), 'image')} · answers appear here", markup=False)
        self.field.value = ""
        self.rows.choose_key(name)
        self.look()

    def action_states(self) -> None:
        """f: choose among what the answers and notes tell of the examples."""
        in_background(self, self._states, "states", exclusive=True)

    async def _states(self) -> None:
        view = self.shown
        if view is None:
            return
        counts = await asyncio.to_thread(view.state_counts)
        options = [(ALL, "all", f"{len(view.opened.examples):,}")]
        options += [
            (f"is:{state}", state, f"{counts[f'is:{state}']:,}  {note}")
            for state, note in STATES.items()
            if f"is:{state}" in counts
        ]
        options += [(key, key, f"{number:,}") for key, number in sorted(counts.items()) if key.startswith("tag:")]
        chosen = await self.app.push_screen_wait(Choose("Show examples", options, self.field.value.strip() or ALL))
        if chosen is None:
            return
        words = [word for word in self.field.value.split() if not word.startswith(("is:", "tag:"))]
        self.field.value = " ".join([*words, *([chosen] if chosen != ALL else [])])
        self.set_class(bool(self.field.value), "-filtering")
        self.go_to_pane(GALLERY)

    def action_note(self) -> None:
        """n: write a note on the example."""
        in_background(self, partial(self._note, "note"), "note", exclusive=True)

    def action_tag(self) -> None:
        """t: tag the example."""
        in_background(self, partial(self._note, ""), "note", exclusive=True)

    async def _note(self, tag: str) -> None:
        view, index = self.shown, self.gallery.chosen
        if view is None or index is None:
            return
        example = view.opened.examples[index]
        what = "Note on" if tag else "Tag"
        hint = "" if tag else "for example: blurred · Enter save · Esc cancel"
        text = await self.app.push_screen_wait(Ask(f"{what} {one_line(example.id, 60)}", hint=hint))
        if not text:
            return
        home, name = self.console.lab.places.home, view.opened.entry.name
        try:
            await asyncio.to_thread(add_example_note, home, name, example.id, tag or text, text if tag else "")
        except (LabError, OSError) as error:
            self.notify(str(error), severity="error", markup=False)
            return
        self.look()

    def action_export(self) -> None:
        """e: what is shown (or marked), as CSV or HTML."""
        in_background(self, self._export, "export", exclusive=True)

    async def _export(self) -> None:
        view = self.shown
        if view is None:
            return
        chosen = self._meant(view)
        many_of = many(len(chosen), "example")
        form = await self.app.push_screen_wait(Choose(f"Save {many_of} as", FORMS))
        if form is None:
            return
        self.notify(f"writing {many_of} …", markup=False, timeout=3)
        places, name = self.console.lab.places, view.opened.entry.name

        def save() -> Path:
            desk = self._desk_of_thumbnails
            assert desk is not None
            return save_examples(name, view.exported(chosen, desk), form, places, chosen_by=view.query_text)

        try:
            path = await asyncio.to_thread(save)
        except LabError as error:
            self.notify(error.full_message, severity="error", markup=False, timeout=10)
            return
        self.announce_saved(path)

    def action_verify(self) -> None:
        """v: hash the dataset's files now."""
        in_background(self, self._verify, "verify", exclusive=True)

    async def _verify(self) -> None:
        entry = self.rows.chosen
        if entry is None:
            return
        checked = await self.in_thread(lambda desk: desk.verify(entry))
        severe = checked.state != "intact"
        message = f"{checked.name}: {checked.state}" + (f"\n{checked.why}" if checked.why else "")
        self.notify(message, severity="error" if severe else "information", markup=False, timeout=8)
        self.look()

    def action_folder(self) -> None:
        """o: the dataset's folder."""
        if self.rows.chosen is not None:
            self.open_folder(self.rows.chosen.path)

    def action_copy_import(self) -> None:
        """y: the line that imports a dataset, to the clipboard."""
        self.app.copy_to_clipboard(IMPORT)
        self.notify(f"copied: {IMPORT}", markup=False)


def _fits(entry: DatasetEntry, words: list[str]) -> bool:
    text = f"{entry.name} {entry.title} {entry.scorer} {entry.form} {entry.state}".lower()
    return all(word in text for word in words)


def _read(
    desk: DataDesk, words: list[str], chosen: str | None, asked: str
) -> tuple[list[DatasetEntry], DatasetEntry | None, ExamplesView | None, str]:
    """One look, in the desk's thread: the list, the chosen dataset, its view, and why there is none."""
    listing = desk.listing()
    matches = [entry for entry in listing if _fits(entry, words)]
    entry = next((entry for entry in matches if entry.name == chosen), matches[0] if matches else None)
    if entry is None or entry.fault:
        return listing, entry, None, ""
    try:
        return listing, entry, desk.view(entry, asked), ""
    except QueryError as error:  # while it is typed; what was shown remains
        return listing, entry, None, error.full_message
    except LabError as error:
        return listing, entry, None, error.message
