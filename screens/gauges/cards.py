"""The tiles of the gauges: what our clients saw above what the server says, so that a gap between them is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from vlmconsole.gauges.board import GaugeTile, Snapshot
from vlmconsole.gauges.figures import LABELS
from vlmconsole.gauges.words import course
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import age
from vlmconsole.text.units import of_total, spread

HEIGHT = 5  # lines of one card
NARROWEST = 19  # cells of one card, its gap included
WAITING = "reading this machine and the server …"
MOST = 8  # cards in a row at most

#: The same figure from both sides, one under the other. Waiting requests stand beside those that run.
OWN = ("own.ttft", "own.tpot", "own.throughput", "own.in_flight")
SERVER = ("server.ttft", "server.tpot", "server.throughput", "server.running")
TWINS = dict(zip((*OWN, *SERVER), (*SERVER, *OWN), strict=True))
OWN_SIDE = frozenset({*OWN, "own.lag"})
REST = ("own.lag", "server.queue_time", "host.cpu", "server.hit_rate", "server.kv", "server.kv_cached")
WITH = {"server.running": "server.queued"}  # figures without a card of their own: shown behind another's


@dataclass(frozen=True)
class Card:
    """One tile as it is drawn; `second` is the figure behind the stroke (queued, behind running)."""

    tile: GaugeTile
    second: GaugeTile | None = None

    def lines(self, width: int) -> tuple[Content, ...]:
        """HEIGHT lines of `width` cells at most."""
        tile = self.tile
        before = "" if tile.state in ("ok", "none") else f"{sign_of(tile.state).mark} "
        title = tile.title if self.second is None else f"{tile.title} / {self.second.title}"
        head = Content(one_line(title, width)).stylize("$muted")
        # Our clients' figures may be of another server or run than the one before: they carry its name.
        origin = tile.subject if tile.key in OWN_SIDE and tile.subject else LABELS.get(tile.source, tile.source)
        old = age(tile.age_s)
        source = " · ".join(filter(None, (one_line(origin, max(12, width - len(old) - 3)), old)))
        foot = Content(source).stylize("$faint")
        if tile.value is None:
            why = Content(one_line(tile.why or "no data yet", 200)).wrap(width)
            if len(why) > 2:
                why[1] = Content(f"{why[1].plain.rstrip(' ;,')[: width - 1]}…")
            style = "$error" if tile.state == "missing" else "$muted"
            said_why = [line.stylize("$muted") for line in why[:2]] + [Content("")] * (2 - len(why))
            return head, Content(f"{before}–").stylize(style), *said_why, foot
        value, shares = spread(tile.value, tile.p50, tile.p95, tile.unit, width)
        if tile.total is not None:
            value = of_total(tile.value, tile.total, tile.unit)
        if self.second is not None:
            value += f" / {of_total(self.second.value, None, '')}"
        curve = course(tile.points[-(width - 1) :], tile.unit)
        style = "bold" if tile.state == "ok" else "$warning" if tile.state == "stale" else "$error"
        return (
            head,
            Content(one_line(f"{before}{value}", width)).stylize(style),
            Content(one_line(shares, width)).stylize("$muted"),
            Content(curve).stylize("$accent"),
            foot,
        )


def arranged(tiles: Mapping[str, GaugeTile], silent: Sequence[str], columns: int) -> list[list[Card]]:
    """Rows of cards, `columns` wide; without the figures of `silent` sources, which never answered at all."""
    left = {
        key: Card(tile, tiles.get(WITH[key]) if key in WITH else None)
        for key, tile in tiles.items()
        if tile.source not in silent and key not in WITH.values()
    }
    heads = [[left.pop(key) for key in row if key in left] for row in (OWN, SERVER)]
    machine = sorted((key for key in left if key not in REST), key=lambda key: not key.startswith("gpu"))
    rest = [left[key] for key in (*(key for key in REST if key in left), *machine)]
    rows: list[list[Card]] = []
    for head in heads:
        if head:
            room = max(0, columns - len(head))
            # The first two of the rest go to our side, so that the server's own stand in the server's row.
            rows.append([*head[:columns], *rest[:room]])
            rest = [*head[columns:], *rest[room:]]
    rows += [rest[at : at + columns] for at in range(0, len(rest), columns)]
    return rows


class GaugeCards(ScrollView, can_focus=True, inherit_bindings=False):
    """All tiles; only those that say something else are drawn again. Posts `Chosen` when the cursor moves."""

    ALLOW_SELECT = False

    class Chosen(Message):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Opened(Message):
        """A card was clicked that was chosen already."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.key = OWN[0]
        self.pinned: frozenset[str] = frozenset()
        self._rows: list[list[Card]] = []
        self._drawn: dict[tuple[int, int], tuple[Content, ...]] = {}
        self._shape: tuple[int, ...] = ()
        self._snapshot: Snapshot | None = None

    # -- what there is -------------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        return max(1, min(MOST, (self.size.width + 1) // NARROWEST))

    @property
    def pitch(self) -> int:
        """Cells from one card to the next."""
        return max(1, (self.size.width + 1) // self.columns)

    @property
    def step(self) -> int:
        """Lines from one row to the next: an empty one between them where there is room for it."""
        return HEIGHT + (1 if len(self._rows) * (HEIGHT + 1) - 1 <= self.size.height else 0)

    @property
    def chosen(self) -> Card | None:
        return next((card for row in self._rows for card in row if card.tile.key == self.key), None)

    @property
    def rows(self) -> int:
        return len(self._rows)

    def show(self, snapshot: Snapshot) -> None:
        """Draw what has changed since the last time."""
        self._snapshot = snapshot
        if not self.size.width:
            return
        silent = [name for name, source in snapshot.sources.items() if source.state != "ok" and source.age_s is None]
        self._rows = arranged(snapshot.tiles, silent, self.columns)
        shape = (self.columns, self.pitch, self.step, *(len(row) for row in self._rows))
        drawn = {(y, x): card.lines(self.pitch - 3) for y, row in enumerate(self._rows) for x, card in enumerate(row)}
        before, self._drawn = self._drawn, drawn
        if shape != self._shape:
            self._shape = shape
            self.virtual_size = Size(0, len(self._rows) * self.step)
            self.refresh(layout=self.styles.height is not None and self.styles.height.is_auto)
            return
        for (y, x), lines in drawn.items():
            if lines != before.get((y, x)):
                self._refresh_card(y, x)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Room for all rows with a line between them."""
        return max(1, len(self._rows) * (HEIGHT + 1) - 1)

    def on_resize(self) -> None:
        if self._snapshot is not None:
            self.show(self._snapshot)

    def _refresh_card(self, y: int, x: int) -> None:
        top = y * self.step - self.scroll_offset.y
        self.refresh(Region(x * self.pitch, top, self.pitch, HEIGHT))

    # -- the cursor ----------------------------------------------------------------------------------------

    def move(self, across: int, down: int) -> None:
        """The cursor goes to the neighbouring card, and stays within the rows."""
        place = self._place(self.key) or (0, 0)
        if not self._rows:
            return
        y = max(0, min(len(self._rows) - 1, place[0] + down))
        row = self._rows[y]
        self._choose(row[max(0, min(len(row) - 1, place[1] + across))].tile.key)

    def next(self, by: int) -> None:
        """The cursor goes round all cards, row by row."""
        keys = [card.tile.key for row in self._rows for card in row]
        if keys:
            self._choose(keys[(keys.index(self.key) + by) % len(keys) if self.key in keys else 0])

    def pin(self, keys: frozenset[str]) -> None:
        """Mark the cards whose curves the plot keeps."""
        if keys != self.pinned:
            self.pinned = keys
            self.refresh()

    def _choose(self, key: str) -> None:
        if key == self.key and self.chosen is not None:
            return
        self.key = key
        place = self._place(key)
        if place is not None:
            self.scroll_to_region(Region(0, place[0] * self.step, 1, HEIGHT), animate=False, force=True)
        self.refresh()
        self.post_message(self.Chosen(key))

    def _place(self, key: str) -> tuple[int, int] | None:
        for y, row in enumerate(self._rows):
            for x, card in enumerate(row):
                if card.tile.key == key:
                    return y, x
        return None

    def on_click(self, event: events.Click) -> None:
        y, x = (event.y + self.scroll_offset.y) // self.step, event.x // self.pitch
        if y < len(self._rows) and x < len(self._rows[y]):
            key = self._rows[y][x].tile.key
            if key == self.key:
                self.post_message(self.Opened())
            self._choose(key)

    # -- drawing -------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if not self._rows and not y:  # a loaded machine takes seconds to be asked: an empty screen looks broken
            waiting = Visual.to_strips(self, Content(WAITING).stylize("$muted"), width, 1, self.visual_style)
            return waiting[0].adjust_cell_length(width, self.rich_style)
        row, line = divmod(y + self.scroll_offset.y, self.step)
        if row >= len(self._rows) or line >= HEIGHT:
            return Strip.blank(width, self.rich_style)
        pieces: list[Content | str] = []
        for x, card in enumerate(self._rows[row]):
            here = card.tile.key == self.key
            ground = "$panel" if here and self.has_focus else "$surface"
            edge = "▌" if here else "•" if card.tile.key in self.pinned and not line else " "
            text = self._drawn[row, x][line].truncate(self.pitch - 3, pad=True)
            body = Content.assemble((edge, "$accent"), text, " ").stylize_before(f"on {ground}")
            pieces += [body, " "]
        strips = Visual.to_strips(self, Content.assemble(*pieces), width, 1, self.visual_style)
        strip = strips[0] if strips else Strip.blank(width, self.rich_style)
        return strip.adjust_cell_length(width, self.rich_style)

    def watch_has_focus(self, _value: bool) -> None:
        super().watch_has_focus(_value)
        self.refresh()
