"""A contact sheet begun: the question's dataset made, and an evaluation of it queued that nothing scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from vlmconsole.data.rows import DataError
from vlmconsole.data.sheet import ContactSheet, SheetImage, dataset_images, folder_images, write_sheet
from vlmconsole.desks.data import DataDesk, ExamplesView
from vlmconsole.evaluation.named_sides import sides_of
from vlmconsole.jobs.presets import Preset
from vlmconsole.queue import adding, process
from vlmconsole.queue.store import Store
from vlmconsole.runs.places import Places
from vlmconsole.system.typed_paths import named
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

DEMO = "demo"  # the profile whose model also answers in this process
MAX_TOKENS = 256


def sheet_of(places: Places, source: str, question: str, where: str = "", name: str = "") -> ContactSheet:
    """Return the dataset of one question over a dataset of the lab (as the filter `where` leaves it), else over a
    folder.

    Raises LabError: what is named is neither, or holds nothing to ask about.
    """
    desk = DataDesk(places)
    try:
        entry = next((entry for entry in desk.listing(check=False) if entry.name == source), None)
        if entry is not None:
            view = desk.view(entry, where)
            return sheet_of_view(places, view, view.shown, question, name)
    finally:
        desk.close()
    folder = named(source)
    if not folder.is_dir():
        raise DataError(
            f"{one_line(source, 120)} is no dataset of this lab and no folder.",
            "vlmconsole data list shows the datasets.",
            code="source-missing",
        ).named()
    if where:
        raise DataError("A folder of images has nothing to filter by.", "Leave --where out.", code="filter-unused")
    return write_sheet(question, folder_images(folder), folder.absolute().name, places.datasets, name)


def sheet_of_view(
    places: Places, view: ExamplesView, chosen: Sequence[int], question: str, name: str = ""
) -> ContactSheet:
    """Return the dataset of one question over some examples of a view, by their places in the dataset."""

    def images() -> Iterator[SheetImage]:
        yield from dataset_images(view.opened.example(place) for place in chosen)

    return write_sheet(question, images(), view.opened.entry.name, places.datasets, name)


def queue_sheet(
    places: Places,
    sheet: ContactSheet,
    *,
    usual_server: str,
    server: str = "",
    base: str = "",
    adapter: str = "",
    hand_over: bool = False,
    **more: Any,
) -> tuple[Store, int, list[str]]:
    """Queue the evaluation of a sheet; (the store, the job's number, warnings). `more` are further settings of it.

    Without server, base and adapter the lab's `usual_server` answers; the demo's model in this process.
    """
    if not server and not base and not adapter and usual_server != DEMO:
        server = usual_server
    spec = {"data": [sheet.folder.name], "max_new_tokens": MAX_TOKENS}
    spec |= sides_of(places, server=server, base=base, adapter=adapter, against="")
    spec |= {key: value for key, value in more.items() if value is not None}
    n = sheet.manifest["rows"]
    title = f"Ask “{one_line(sheet.manifest['prompt'], 60)}” over {many(n, 'image')}"
    planned = adding.plan(Preset("ask", "evaluate", title, spec), [], places)
    store = Store(places.queue)
    number = adding.add(store, planned, hand_over=hand_over)
    process.ensure(places)
    return store, number, list(dict.fromkeys(plan.warning for plan in planned if plan.warning))
