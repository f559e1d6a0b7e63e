"""Lines of the Data screen: the lab's datasets."""

from __future__ import annotations

from textual.content import Content

from vlmconsole.desks.data import DatasetEntry
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.item_list import ItemList
from vlmconsole.text.fitting import fitted
from vlmconsole.text.plain import one_line
from vlmconsole.text.signs import BAD, Sign, sign_of

EMPTY = Content.assemble(
    ("No datasets yet", "bold"),
    ("\n\nBring your own images, questions and answers:\n\n", "$muted"),
    "vlmconsole data import FOLDER --name shops\n",
    ("\nTakes folders, JSONL, CSV, TSV and Parquet; shows first\nwhat it took for what. ", "$muted"),
    ("y", "$accent"),
    (" copies the line.\n\nOr try a small task first: ", "$muted"),
    "vlmconsole data example colours",
)
IMPORT = "vlmconsole data import FOLDER --name shops"
FIGURES = 7  # cells of the number of examples
ROOMY = 44  # cells of a line from which on scorer and runs are shown


class DatasetRows(ItemList[DatasetEntry]):
    """One line a dataset: whether it is intact, its name, and how many examples it has."""

    def key(self, item: DatasetEntry) -> str:
        return item.name

    def header(self, width: int) -> Content:
        line = f"   {'dataset':<{self._room(width)}}{'n':>{FIGURES}}"
        return Content(line + (f"  {'scorer':<10} {'runs':>4}" if width >= ROOMY else "")).stylize("$faint")

    def line(self, y: int, width: int) -> Content:
        entry = self.items[y]
        mark, style = painted(state_sign(entry))
        name = fitted(one_line(entry.name, 120), self._room(width))
        earlier = entry.name != entry.plain_name
        pieces: list[Content | str | tuple[str, str]] = [
            " ", (mark, style), " ", (name, "$muted" if earlier else ""),
            (f"{entry.n:>{FIGURES},}" if not entry.fault else f"{'–':>{FIGURES}}", "$muted"),
        ]  # fmt: skip
        if width >= ROOMY:
            scorer = fitted(one_line(entry.scorer, 40) or "–", 10)
            pieces.append((f"  {scorer} {len(entry.runs) or '–':>4}", "$muted"))
        return Content.assemble(*pieces)

    def _room(self, width: int) -> int:
        return max(6, width - 3 - FIGURES - (17 if width >= ROOMY else 0))


def state_sign(entry: DatasetEntry) -> Sign:
    """Return whether a dataset's files are as they were made."""
    return BAD if entry.fault else sign_of(entry.state)


def about(entry: DatasetEntry, scorers: tuple[str, ...]) -> Content:
    """Return what is known of a dataset, in a few lines: splits with roles, scorer, who used it, whether it is
    intact.
    """
    if entry.fault:
        return Content(f"✗ {entry.fault}").stylize("$error")
    # No line ends between a split and its number.
    splits = "  ".join(f"{one_line(split.name, 30)}\u00a0{split.n:,}" for split in entry.splits)
    mark, style = painted(state_sign(entry))
    scorer = one_line(entry.scorer, 40) or ", ".join(one_line(name, 20) for name in scorers) or "no scorer"
    runs = f"{len(entry.runs)} run{'s' * (len(entry.runs) != 1)}" if entry.runs else "no run yet"
    state = {"intact": "intact", "unchecked": "not checked, v verifies"}.get(entry.state, f"{entry.state}: {entry.why}")
    title = f" · {one_line(entry.title, 80)}" if entry.title else ""
    return Content.assemble(
        (one_line(entry.name, 60), "bold"), (f"  {splits}", "$muted"),
        (f"\n{scorer} · {runs} · ", "$muted"), (f"{mark} ", style),
        (one_line(state, 120), style if mark == "✗" else "$muted"), (title, "$muted"),
    )  # fmt: skip
