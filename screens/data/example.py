"""One example in full: its images, what is asked, the truth, every model's answer beside it, and the notes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from vlmconsole.data.browse import image_count
from vlmconsole.data.example import Example
from vlmconsole.desks.data import ExamplesView
from vlmconsole.evaluation.example_query import Answered
from vlmconsole.evaluation.notes import ReadingNote
from vlmconsole.evaluation.predictions import Prediction, PredictionSource
from vlmconsole.screens.data.tiles import mark_of
from vlmconsole.screens.pictures.frame import PictureFrame
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.lines import LineView
from vlmconsole.text.fitting import fitted, wrapped
from vlmconsole.text.numbers import decimal
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.times import minute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vlmconsole.vision.images import Picture

COLUMN = 34  # cells of an answer's column from which on answers are set beside each other
LONGEST = 4000  # characters of a text that are shown
Piece = Content | str | tuple[str, str]


class ExampleText(LineView):
    """A text in lines of the view's width: another text moves nothing else on the screen."""

    lines: tuple[Content, ...] = ()

    def say(self, text: Content) -> None:
        """Show a text, its lines no wider than the view."""
        width = max(8, (self.scrollable_content_region.width or self.size.width) - 1)
        self.lines = tuple(line for part in text.split(allow_blank=True) for line in part.wrap(width) or [Content("")])
        self.sized(len(self.lines))
        self.refresh()

    def line(self, y: int, width: int) -> Content:
        return self.lines[y]


class ExamplePane(Vertical):
    """The chosen example. `load` gives its images; called in a thread."""

    def __init__(
        self, drawing: Callable[[], Drawing], load: Callable[[ExamplesView, int], Sequence[Picture]], *, id: str
    ) -> None:
        super().__init__(id=id)
        self._load = load
        self._shown: tuple[ExamplesView, int] | None = None
        self._width = 0
        self.frame = PictureFrame(drawing, id="example-images")
        self.text = ExampleText(id="example-text")

    def compose(self) -> ComposeResult:
        yield from (self.frame, self.text)

    def show(self, view: ExamplesView | None, index: int | None) -> None:
        """Show an example of a view; None: none."""
        if view is None or index is None:
            self._shown = None
            self.frame.clear()
            self.text.say(Content(""))
            return
        example = view.opened.examples[index]
        another = self._shown is None or self._shown[0].opened is not view.opened or self._shown[1] != index
        self._shown = (view, index)
        self.frame.display = image_count(example) > 0
        if image_count(example):
            self.frame.show((view.opened.key(index),), lambda: self._load(view, index))
        if another:
            self.text.scroll_to(0, 0, animate=False, force=True)
        self._say()

    def on_resize(self) -> None:
        self._say()

    def _say(self) -> None:
        if self._shown is not None:
            view, index = self._shown
            width = max(20, (self.text.size.width or self.size.width) - 2)
            self.text.say(example_text(view, index, width))


def example_text(view: ExamplesView, index: int, width: int) -> Content:
    """Return everything of an example but its images, for `width` cells."""
    example = view.opened.examples[index]
    lines = [_head(example), *_turns(example)]
    if example.truth is not None or example.scorer:
        lines.append(Content.assemble(("truth   ", "$muted"), (_truth(example), "bold")))
    if example.options:
        lines.append(Content.assemble(("options ", "$muted"), one_line(json.dumps(dict(example.options)), 400)))
    if example.metadata:
        lines.append(Content(one_line(json.dumps(dict(example.metadata), ensure_ascii=False), 400)).stylize("$muted"))
    lines.append(Content(""))
    lines += _answers(view.answered(index), width) or [Content("No answers yet.").stylize("$faint")]
    predictions = view.predictions
    if predictions.older or predictions.earlier:
        lines.append(Content(left_out(predictions.older, predictions.earlier)).stylize("$faint"))
    lines += _notes(view.notes_on(index))
    return Content("\n").join(lines)


def left_out(older: int, earlier: int) -> str:
    """Return what is not among the answers, and why."""
    parts = [f"{older} older not read"] if older else []
    parts += [f"{earlier} of an earlier generation"] if earlier else []
    return f"also: {', '.join(parts)}"


def _head(example: Example) -> Content:
    more = [example.split, example.group if example.group != example.split else "", example.scorer or "no scorer"]
    return Content.assemble(
        (one_line(example.id, 120), "bold"), ("  " + " · ".join(one_line(part, 40) for part in more if part), "$muted")
    )


def _turns(example: Example) -> list[Content]:
    """The turns but the answer that is taught, where the truth says as much."""
    turns = list(example.turns)
    if turns and turns[-1].role == "assistant" and turns[-1].text == example.truth:
        turns.pop()
    if [turn.role for turn in turns] == ["user"]:
        return [Content(_text(example.question))]
    return [
        Content.assemble((f"{turn.role}: ", "$muted"), _text(turn.text.replace("<image>", "▣ ").strip()))
        for turn in turns
    ]


def _text(text: str) -> str:
    text = inert(text)
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _truth(example: Example) -> str:
    if example.truth is None:
        return "none"
    return _text(example.truth if isinstance(example.truth, str) else json.dumps(example.truth, ensure_ascii=False))


def _answers(answered: Answered, width: int) -> list[Content]:
    """Each answer with mark, score and who gave it: beside each other where there is room for columns."""
    pairs = {source.run for source, _ in answered if source.side != "before"}  # runs of which a side is told
    columns = min(len(answered), width // COLUMN)
    if columns < 2:
        return [line for source, prediction in answered for line in _answer(source, prediction, width, pairs)]
    wide = width // columns
    lines: list[Content] = []
    for first in range(0, len(answered), columns):
        blocks = [
            _answer(source, prediction, wide - 2, pairs) for source, prediction in answered[first : first + columns]
        ]
        for row in range(max(map(len, blocks))):
            cells = [block[row] if row < len(block) else Content("") for block in blocks]
            lines.append(Content.assemble(*(cell.pad_right(max(0, wide - cell.cell_length)) for cell in cells)))
    return lines


def _answer(source: PredictionSource, prediction: Prediction, width: int, pairs: Collection[str]) -> list[Content]:
    mark, style = painted(mark_of(prediction.right, prediction.valid, prediction.failed))
    score = f" {decimal(prediction.score)}" if prediction.score is not None and prediction.score not in (0, 1) else ""
    note = " invalid" if not prediction.valid and not prediction.failed else ""
    who = short_name(source.model) or source.preset
    side = f"{source.side} " if source.run in pairs else ""
    room = max(4, width - 2 - len(score) - len(note) - len(side))
    head = Content.assemble(
        (mark, style), (score, style), (note, "$warning"), f" {side}",
        (fitted(one_line(who, 200), room).rstrip(), "$muted"),
    )  # fmt: skip
    text = "no answer" if prediction.answer is None else prediction.answer or "(empty)"
    body = wrapped(_text(text), max(4, width - 2))
    lines = [head, *(Content(f"  {line}") for line in body)]
    if prediction.reason and (prediction.failed or not prediction.valid):
        lines += [
            Content(f"  {line}").stylize("$warning") for line in wrapped(one_line(prediction.reason, 300), width - 2)
        ]
    about = f"{source.preset} {source.run[-4:]}"
    if prediction.seconds is not None:
        about += f" · {prediction.seconds:.2f} s"
    return [*lines, Content(f"  {fitted(about, max(4, width - 2)).rstrip()}").stylize("$faint")]


def short_name(model: str) -> str:
    """Return a model's or an adapter's name without what every one of its kind begins with: folders, a run's day and
    hour.
    """
    parts = [part for part in model.split("/") if part not in ("", "adapter")]
    name = "/".join(parts[-2:])
    head = name.split("-")
    if len(head) > 3 and len(head[0]) == 8 and len(head[1]) == 6 and (head[0] + head[1]).isdigit():
        return "-".join(head[2:])
    return name


def _notes(notes: Sequence[ReadingNote]) -> list[Content]:
    if not notes:
        return []
    lines = [Content(""), Content("Notes").stylize("bold")]
    for note in notes:
        where = "" if note.side == "example" else f" on {note.side}"
        tag = "" if note.tag == "note" else f"{one_line(note.tag, 40)} "
        lines.append(Content.assemble((f"{minute(note.t)}{where}  ", "$muted"), (tag, "$accent"), _text(note.text)))
    return lines
