"""`vlmconsole gauges`: what the server, the GPU and the client do now, once or live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vlmconsole.cli.common import FAILED, USAGE, Failure, console, emit, fail, state
from vlmconsole.errors import LabError
from vlmconsole.gauges.words import course, job_said
from vlmconsole.system.typed_paths import named, new_file
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import PLAIN, sign_of
from vlmconsole.text.times import age, clock
from vlmconsole.text.units import in_unit, of_total

if TYPE_CHECKING:
    from vlmconsole.gauges.board import GaugeTile, Snapshot
    from vlmconsole.gauges.recording import Recorder, Replay
    from vlmconsole.gauges.sources import Gauges

UNITS = {"bytes": "GiB", "share": "%", "s": "-"}  # said once, beside now; seconds may be ms there and s here
FIRST_WAIT = 6.0  # seconds that one snapshot may wait for every source's second reading


def register(app: typer.Typer) -> None:
    """Add `gauges` to the command tree."""

    @app.command("gauges")
    def gauges(
        once: bool = typer.Option(False, "--once", help="Print one snapshot (two readings), then exit"),
        server: str = typer.Option(
            "", "--server", metavar="NAME", help="Server profile; default: the setting `server`"
        ),
        record: str = typer.Option("", "--record", metavar="FILE", help="Also record every reading to FILE"),
        replay: str = typer.Option("", "--replay", metavar="FILE", help="Replay a recording"),
        speed: float = typer.Option(1.0, "--speed", min=0.1, max=1000.0, help="Replay speed, a factor; default 1"),
    ) -> None:
        """What server, GPU and client do now, each figure with its source and age. --json or a pipe implies --once."""
        from vlmconsole.gauges.recording import Replay

        if record and replay:
            fail("--record and --replay exclude each other: a replay is a recording already.", exit_status=USAGE)
        shown: Gauges | Replay
        shown, recorder = (Replay(named(replay), speed), None) if replay else _live(server, record)
        shown.start()
        try:
            # A table that repaints itself is for a terminal; a pipe gets one snapshot.
            if once or state.json or not sys.stdout.isatty():
                emit_snapshot(_settled(shown))
            else:
                _watch(shown, recorder)
        except KeyboardInterrupt:  # how live gauges end, so no failure of its own
            if recorder is None or not recorder.why:
                raise
        finally:
            shown.stop()
        if recorder is not None and recorder.why:
            # On stderr alone: the snapshot, which is whole, was the one value on stdout.
            sys.stderr.write(f"error: {inert(recorder.why)} ({inert(str(recorder.path))})\n")
            raise typer.Exit(FAILED)


def _live(server: str, record: str) -> tuple[Gauges, Recorder | None]:
    from vlmconsole.engines.profile import ProfileError, profiles_for
    from vlmconsole.gauges.sources import Gauges, default_sources

    lab = state.lab
    name = server or lab.settings.server
    try:
        profiles = profiles_for(name, lab.places.servers)
    except ProfileError as error:
        raise Failure(str(error), exit_status=USAGE, code=error.code) from None
    if name not in profiles:
        raise Failure(f"there is no server profile {name!r}", f"Known: {', '.join(sorted(profiles))}.", USAGE)
    recorder = _recorder(record) if record else None
    return Gauges(default_sources(lab.places, profiles[name]), record=recorder), recorder


def _recorder(record: str) -> Recorder:
    """The recording, its file made and open to us before anything starts."""
    from vlmconsole.gauges.recording import Recorder
    from vlmconsole.runs.events import append_line

    try:
        path = new_file(record)
        append_line(path)
        return Recorder(path)
    except OSError as error:
        fail(f"{record[:200]} cannot be written: {error.strerror}.", "Name another file.", USAGE)
    except LabError as error:
        raise error.named() from None


def _settled(shown: Gauges | Replay) -> Snapshot:
    """A snapshot with rates: every source that answers has answered twice, or the wait is over."""
    from vlmconsole.gauges.recording import Replay

    if isinstance(shown, Replay):
        return shown.to_end()
    begun = time.monotonic()
    while True:
        time.sleep(0.1)
        snapshot = shown.snapshot()
        states = snapshot.sources.values()
        settled = all(source.state == "missing" or source.readings >= 2 for source in states) and _has_rate(snapshot)
        if settled or time.monotonic() - begun > FIRST_WAIT:
            return snapshot


def _has_rate(snapshot: Snapshot) -> bool:
    """Whether the server's throughput is known, or never will be: a counter of ended requests takes seconds."""
    tile = snapshot.tiles.get("server.throughput")
    return tile is None or tile.value is not None or snapshot.sources[tile.source].state == "missing"


def emit_snapshot(snapshot: Snapshot) -> None:
    """Print one snapshot: a table for people, one JSON value with `--json`."""
    emit(snapshot.to_json(), lambda console: console.print(_table(snapshot, console.width)))


def _watch(shown: Gauges | Replay, recorder: Recorder | None) -> None:
    from rich.live import Live

    from vlmconsole.gauges.recording import Replay

    screen = console()
    with Live(console=screen, auto_refresh=False) as live:
        while True:
            table = _table(shown.snapshot(), screen.width)
            if recorder is not None and recorder.why:
                table.renderables.append(Text(f"✗ {recorder.why}", style="red"))
            live.update(table, refresh=True)
            if isinstance(shown, Replay) and shown.finished:
                return
            time.sleep(1.0)


def _reason(tile: GaugeTile) -> str:
    """What is to be said beside a figure; why there is none, where its source names no reason."""
    return tile.why or ("" if tile.value is not None else "no request yet")


def _origin(tile: GaugeTile) -> str:
    """Where a figure is from; of our clients' figures the server or run too, since both change."""
    return f"{tile.source} {one_line(tile.subject, 40)}" if tile.source == "own" and tile.subject else tile.source


def _unsaid(snapshot: Snapshot) -> list[Text]:
    """Why figures of a source that answers are dashes: a line for each reason, where the table has no room for it."""
    reasons: dict[str, list[str]] = {}
    for tile in snapshot.tiles.values():
        source = snapshot.sources.get(tile.source)
        if tile.value is None and (source is None or source.state == "ok"):
            reasons.setdefault(_reason(tile), []).append(tile.title)
    return [Text(f"– {', '.join(titles)}: {why}", style="dim") for why, titles in reasons.items()]


def _table(snapshot: Snapshot, width: int) -> Group:
    """One row a figure; below it one line a source that does not answer, the running job, the newest marks."""
    wide = width >= 110
    table = Table(box=None, pad_edge=False, header_style="bold")
    headings = (("", "left"), ("figure", "left"), ("now", "right"), ("p50", "right"), ("p95", "right"))
    for heading, justify in headings:
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("last minute" if wide else "30 s", no_wrap=True)
    table.add_column("source · age", no_wrap=True)
    if wide:
        table.add_column("", overflow="fold", ratio=1)
    for tile in snapshot.tiles.values():
        answers = snapshot.sources[tile.source].state == "ok" if tile.source in snapshot.sources else True
        both = (tile.p50, tile.p95)
        seen = PLAIN if tile.state == "ok" else sign_of(tile.state)
        cells = [
            Text(seen.mark),
            Text(tile.title),
            Text(of_total(tile.value, tile.total, tile.unit)),
            *(Text(in_unit(value, tile.unit).removesuffix(f" {UNITS.get(tile.unit, tile.unit)}")) for value in both),
            Text(course(tile.points if wide else tile.points[-15:], tile.unit)),
            Text(" · ".join(filter(None, (_origin(tile), age(tile.age_s)))), style="dim"),
        ]
        if wide:  # why a whole source is silent stands once below, not in every row
            cells.append(Text(_reason(tile) if answers else "", style="dim"))
        table.add_row(*cells, style=seen.rich)
    lines: list[Table | Text] = [table, *(_unsaid(snapshot) if not wide else ())]
    for name, source in snapshot.sources.items():
        if source.state != "ok":
            hint = f". {source.hint}" if source.hint else ""
            lines.append(Text(f"✗ {name}: {source.why}{hint}", style="red" if source.state == "missing" else "dim"))
    if snapshot.job:
        lines.append(Text(f"running: {job_said(snapshot.job)}"))
    lines += [Text(f"{clock(mark.at)} {mark.text}") for mark in snapshot.marks[-3:]]
    return Group(*lines)
