"""The list of server profiles: a sign and a word for the state, the engine, and what the state comes from."""

from __future__ import annotations

from rich.cells import cell_len
from textual.content import Content

from vlmconsole.desks.servers import ServerLine
from vlmconsole.engines.registry import find_engine
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import sign_of


class ServerList(ItemList[ServerLine]):
    """One line a profile."""

    def key(self, item: ServerLine) -> str:
        return item.profile.name

    def differs(self, before: ServerLine, now: ServerLine) -> bool:
        return _labels(before) != _labels(now)

    def show_from(self, lines: tuple[ServerLine, ...], first: str) -> None:
        """`first` is the profile that the cursor stands on when nothing was chosen yet."""
        if self.chosen is None:
            self.choose_key(first)
        self.show(lines)

    def line(self, y: int, width: int) -> Content:
        name, engine, state, _ = _labels(self.items[y])
        mark, style = painted(sign_of(state))
        longest = min(24, max(cell_len(line.profile.name) for line in self.items))
        shown = Content(one_line(name)).truncate(longest, ellipsis=True, pad=True)
        return Content.assemble(
            " ",
            (mark, style),
            " ",
            shown,
            "  ",
            (f"{engine:<8} ", "$muted"),
            (state, style if state != "ready" else ""),
        ).truncate(width, ellipsis=True)


def _labels(line: ServerLine) -> tuple[str, str, str, str]:
    engine = find_engine(line.profile.engine).label
    return line.profile.name, engine if len(engine) <= 8 else line.profile.engine, line.status.word, line.why
