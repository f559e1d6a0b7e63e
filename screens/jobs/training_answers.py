"""Answers given while a model trains, with their pictures: which were right, what they earned, what turned."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.containers import ItemGrid, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from vlmconsole.errors import LabError
from vlmconsole.gates.figures import short_answer
from vlmconsole.runs.live_view import RolloutProgress
from vlmconsole.screens.background import in_background
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.numbers import decimal, signed
from vlmconsole.text.plain import inert, one_line

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

MOST = 24  # pictures drawn at once
SMALL, LARGE = (14, 7), (26, 13)  # cells of a picture beside the queue, and over the whole screen
LISTED = 4  # different answers named under a picture
Piece = Content | str | tuple[str, str]


@dataclass(frozen=True)
class Shown:
    """One picture of one step with all answers to it."""

    picture: str
    answers: tuple[RolloutProgress, ...]

    @property
    def turned(self) -> int:
        """+1 when it was wrong before and is right now, -1 the other way round, 0 otherwise."""
        trail = self.answers[0].trail
        return 0 if not trail or trail[-1] == self.right else 1 if self.right else -1

    @property
    def right(self) -> bool:
        """Whether every answer to it is right."""
        return all(answer.right for answer in self.answers)

    @property
    def pointless(self) -> bool:
        """Whether all rewards of the group are the same, so that nothing is learnt from it."""
        return len(self.answers) > 1 and len({answer.reward for answer in self.answers}) == 1


def steps_of(rollouts: Sequence[RolloutProgress]) -> list[float]:
    """Return the steps that answers were kept of, oldest first."""
    return list(dict.fromkeys(rollout.step for rollout in rollouts))


def shown_at(rollouts: Sequence[RolloutProgress], step: float) -> list[Shown]:
    """Return the step's pictures in the order in which they were answered."""
    of_step = [rollout for rollout in rollouts if rollout.step == step]
    return [
        Shown(group[0].picture, group)
        for _, some in groupby(of_step, lambda rollout: rollout.uid)
        if (group := tuple(some))
    ]


@dataclass(frozen=True)
class RunPicture:
    """A picture's file inside a run, read only when it is drawn. Its size is known without reading all of it."""

    path: Path
    size: tuple[int, int]
    sha256: str = field(default="")

    def load(self) -> Picture:
        """Raises PictureError when it is gone or no picture."""
        from vlmconsole.vision.images import open_picture

        return open_picture(self.path)


def find_picture(path: Path) -> RunPicture:
    """Raises OSError when there is no such picture (PIL's errors for a broken one are of that kind)."""
    from PIL import Image

    with Image.open(path) as image:
        return RunPicture(path, image.size, str(path))


class Tile(Vertical):
    """One picture and, below it, its truth and the answers to it."""

    class Clicked(Message):
        def __init__(self, tile: Tile) -> None:
            super().__init__()
            self.tile = tile

    def __init__(self) -> None:
        super().__init__(classes="tile")
        self.frame = Vertical(classes="tile-picture")
        self.text = Said(classes="tile-text")
        self._drawn: tuple[object, ...] = ()
        self._wanted: tuple[Shown, Path, tuple[int, int], Drawing] | None = None

    def compose(self) -> ComposeResult:
        yield from (self.frame, self.text)

    def on_mount(self) -> None:
        if self._wanted is not None:
            self.show(*self._wanted)

    def show(self, shown: Shown, folder: Path, cells: tuple[int, int], drawing: Drawing) -> None:
        self._wanted = (shown, folder, cells, drawing)
        if not self.is_mounted:
            return
        self.text.say(tile_text(shown))
        self.styles.width = cells[0] + 1
        drawn = (folder / shown.picture, cells, drawing)
        if drawn != self._drawn:
            self._drawn = drawn
            self.frame.styles.height = cells[1] if drawing != "off" and shown.picture else 0
            in_background(self, partial(self._draw, folder / shown.picture, cells, drawing), "tile", exclusive=True)

    async def _draw(self, path: Path, cells: tuple[int, int], drawing: Drawing) -> None:
        view: Widget | None = None
        if drawing != "off" and path.suffix:
            try:
                view = picture_view(await asyncio.to_thread(find_picture, path), *cells, drawing)
            except (OSError, ValueError, LabError):
                view = Said()
                view.say(Content(f"{one_line(path.name, 30)} is unreadable").stylize("$warning"))
        await self.frame.remove_children()
        if view is not None:
            await self.frame.mount(view)

    def on_click(self, event: events.Click) -> None:
        self.post_message(self.Clicked(self))


def tile_text(shown: Shown) -> Content:
    """Truth; then each different answer with mark, reward, advantage and how often it came; then what was before."""
    first = shown.answers[0]
    lines: list[Content] = [Content.assemble(("truth ", "$muted"), _short(first.truth))]
    counted = Counter((sampled.answer, sampled.right, sampled.reward, sampled.advantage) for sampled in shown.answers)
    for (answer, right, reward, advantage), times in list(counted.items())[:LISTED]:
        pieces: list[Piece] = [mark(right), " ", _short(answer)]
        if reward != float(right):  # else the mark says it
            pieces.append((f" {decimal(reward).removeprefix('0')}", "$muted"))
        if advantage is not None:
            pieces.append((f" {signed(advantage, 1)}", "$muted"))
        pieces.append((f" ×{times}" if times > 1 else "", "$muted"))
        lines.append(Content.assemble(*pieces))
    if len(counted) > LISTED:
        lines.append(Content(f"{len(counted) - LISTED} more").stylize("$faint"))
    if first.trail:
        lines.append(Content.assemble(("was ", "$faint"), *(mark(right) for right in first.trail[-6:])))
    return Content("\n").join(lines)


def mark(right: bool) -> Content:
    return Content("✓").stylize("$accent") if right else Content("✗").stylize("$error")


def _short(text: str) -> str:
    """An answer in at most a few cells; the sheet has it whole."""
    short = inert(short_answer(text))
    return (short if len(short) <= 6 else short[:5] + "…") or "nothing"


def headline(shown: Sequence[Shown], steps: Sequence[float], step: float) -> Content:
    """Return one line: step, how many are right, what turned, how many groups taught nothing."""
    answers = [answer for group in shown for answer in group.answers]
    first = answers[0]
    right = sum(answer.right for answer in answers)
    at = f"epoch {first.epoch:g}" if first.epoch is not None else f"step {step:g}"
    pieces: list[Piece] = [("Answers", "bold"), f"  {at} · {right}/{len(answers)} right"]
    for turn, label in ((1, "now right"), (-1, "now wrong")):
        number = sum(group.turned == turn for group in shown)
        pieces.append((f" · {number} {label}" if number else "", "$accent" if turn > 0 else "$error"))
    groups = [group for group in shown if len(group.answers) > 1]
    idle = sum(group.pointless for group in groups)
    pieces.append((f" · {idle}/{len(groups)} no advantage" if idle else "", "$warning"))
    pieces.append((f" ·\u00a0{one_line(first.label, 60)}" if first.label else "", "$muted"))
    at_hand = steps.index(step)
    for key, number, where in ((",", at_hand, "before"), (".", len(steps) - 1 - at_hand, "later")):
        if number:
            # Written as the footer writes keys; no line ends between a dot and what it parts.
            pieces += [(" ·\u00a0", "$muted"), (key, "bold $accent"), (f"\u00a0{number}\u00a0{where}", "$muted")]
    return Content.assemble(*pieces)


class Answers(Vertical):
    """The newest step's pictures, following the run unless an earlier step was chosen."""

    class Opened(Message):
        def __init__(self, shown: Shown) -> None:
            super().__init__()
            self.shown = shown

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.head = Said(id="answers-head")
        self.grid = ItemGrid(min_column_width=SMALL[0] + 1, stretch_height=False, id="answers-grid")
        self.scroll = Scroll(id="answers-scroll")
        self.tiles: list[Tile] = []
        self.shown: list[Shown] = []
        self.cursor = 0
        self._rollouts: tuple[RolloutProgress, ...] = ()
        self._folder = Path()
        self._step: float | None = None  # an earlier step that was chosen

    def compose(self) -> ComposeResult:
        yield self.head
        with self.scroll:
            yield self.grid

    def on_mount(self) -> None:
        self.show((), Path(), "off")

    def show(
        self, rollouts: tuple[RolloutProgress, ...], folder: Path, drawing: Drawing, *, large: bool = False
    ) -> None:
        """Put a run's answers there. `large`: over the whole screen."""
        if folder != self._folder:
            self._step, self.cursor = None, 0
        self._rollouts, self._folder = rollouts, folder
        self.set_class(bool(rollouts), "-there")
        if not rollouts:
            self.shown = []
            return
        steps = steps_of(rollouts)
        step = self._step if self._step in steps else steps[-1]
        self.shown = shown_at(rollouts, step)[:MOST]
        self.head.say(headline(self.shown, steps, step))
        self._furnish()
        cells = LARGE if large else SMALL
        self.grid.min_column_width = cells[0] + 1
        for tile, shown in zip(self.tiles, self.shown, strict=True):
            tile.show(shown, folder, cells, drawing)
        self._stand(self.cursor)

    def _furnish(self) -> None:
        """As many tiles as there are pictures; those that there are stay, with what they have drawn."""
        new = [Tile() for _ in range(len(self.shown) - len(self.tiles))]
        if new:
            self.tiles += new
            self.grid.mount(*new)
        for tile in self.tiles[len(self.shown) :]:
            tile.remove()
        del self.tiles[len(self.shown) :]

    def _stand(self, index: int) -> None:
        self.cursor = max(0, min(len(self.tiles) - 1, index))
        for number, tile in enumerate(self.tiles):
            tile.set_class(number == self.cursor, "-chosen")

    @property
    def chosen(self) -> Shown | None:
        return self.shown[self.cursor] if self.cursor < len(self.shown) else None

    def choose(self, index: int) -> None:
        """Stand on a picture, and bring it into sight."""
        self._stand(index)
        if self.tiles:
            self.scroll.scroll_to_widget(self.tiles[self.cursor], animate=False)

    def turn(self, by: int) -> None:
        """An earlier or a later step; at the last one it follows the run."""
        steps = steps_of(self._rollouts)
        if steps:
            at = steps.index(self._step) if self._step in steps else len(steps) - 1
            at = max(0, min(len(steps) - 1, at + by))
            self._step = None if at == len(steps) - 1 else steps[at]

    def on_tile_clicked(self, event: Tile.Clicked) -> None:
        event.stop()
        self.scroll.focus()
        index = self.tiles.index(event.tile)
        if index == self.cursor and (shown := self.chosen) is not None:
            self.post_message(self.Opened(shown))
        self.choose(index)


class Scroll(VerticalScroll, inherit_bindings=False):
    """What of the pictures is in sight; it has the focus of its pane."""
