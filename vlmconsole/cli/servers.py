"""`vlmconsole servers`: the profiles, what runs, and the settings that are really in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from vlmconsole.cli.common import emit, say, state
from vlmconsole.errors import LabError
from vlmconsole.text.signs import sign_of

if TYPE_CHECKING:
    from rich.console import Console

    from vlmconsole.engines.compared import Setting
    from vlmconsole.engines.effective import EffectiveSettings
    from vlmconsole.engines.profile import ServerProfile
    from vlmconsole.servers.status import ServerStatus


def register(app: typer.Typer) -> None:
    """Add the group `servers` to the command tree."""
    group = typer.Typer(help="Server profiles: list, start, stop, effective settings.", no_args_is_help=True)
    group.command("list")(list_servers)
    group.command("show")(show)
    group.command("start")(start)
    group.command("stop")(stop)
    group.command("restart")(restart)
    app.add_typer(group, name="servers")


def find_profile(name: str) -> ServerProfile:
    """The profile of that name, or one clear failure that names the known ones."""
    from vlmconsole.engines.profile import no_such_profile, profiles_for

    profiles = profiles_for(name, state.lab.places.servers)
    if name not in profiles:
        raise no_such_profile(name, profiles)
    return profiles[name]


def list_servers() -> None:
    """Every profile and how its server is, asked now."""
    from vlmconsole.engines.profile import ProfileError, load_profiles

    problems: list[ProfileError] = []
    profiles = load_profiles(state.lab.places.servers, problems=problems)
    for problem in problems:
        say(f"left out: {problem}")
    statuses = asyncio.run(_probe_all(list(profiles.values())))
    rows = [_row(profiles[status.name], status) for status in statuses]
    words = [status.word for status in statuses]
    emit({"servers": rows, "problems": [str(p) for p in problems]}, lambda console: _table(console, rows, words))


def show(name: str = typer.Argument(..., help="Server profile")) -> None:
    """One server: how it is, what the profile asks for, and what was read back. Exit code 1 when it does not answer."""
    from vlmconsole.engines.compared import compare_settings
    from vlmconsole.engines.registry import find_engine
    from vlmconsole.servers.costs import cost_said

    profile = find_profile(name)
    status, effective, why = asyncio.run(_look(profile))
    lines = compare_settings(profile, effective)
    value: dict[str, Any] = {
        **_row(profile, status),
        "log": status.log,
        "launch": _launch_line(profile),
        "cost": cost_said(profile, status, time.time()) or None,
        "wanted": find_engine(profile.engine).wanted(profile),
        "effective": None if effective is None else {k: v for k, v in asdict(effective).items() if k != "raw"},
        "settings": [asdict(line) for line in lines],
        "not_read_back": why,
        "warnings": profile.warnings(),
        "notes": profile.notes,
    }
    emit(value, lambda console: _sheet(console, value, lines, status.word))
    if status.state != "ready":
        raise typer.Exit(1)


def start(name: str = typer.Argument(..., help="Server profile")) -> None:
    """Start the server, or find it running, and wait until it answers. It goes on when this command ends."""
    _bring(find_profile(name))


def restart(name: str = typer.Argument(..., help="Server profile")) -> None:
    """Stop the server and start it anew, as after a change of its profile. One that is not running is started."""
    from vlmconsole.queue.served import stop_served

    profile = find_profile(name)
    say(f"{name} {asyncio.run(stop_served(profile, state.lab.places))}")
    _bring(profile)


def _bring(profile: ServerProfile) -> None:
    from vlmconsole.queue.served import start_served

    ready = asyncio.run(start_served(profile, state.lab.places, progress(profile.name)))
    how = "started" if ready.started_here else "was running"
    emit(
        {
            "name": profile.name,
            "base_url": ready.base_url,
            "model": ready.model,
            "pid": ready.pid,
            "log": ready.log,
            "how": how,
        },
        f"{profile.name} {how}: {ready.base_url}, model {ready.model}" + (f", pid {ready.pid}" if ready.pid else ""),
    )


def stop(name: str = typer.Argument(..., help="Server profile")) -> None:
    """Stop a server that was started here: politely, then by force; nothing of it stays."""
    from vlmconsole.queue.served import stop_served

    how = asyncio.run(stop_served(find_profile(name), state.lab.places))
    emit({"name": name, "how": how}, f"{name} {how}")


def progress(name: str) -> Any:
    """A callback for `ensure_served` that says each phase once, on stderr."""

    def on_phase(phase: str, seconds: float) -> None:
        say(f"{name}: {phase} ({seconds:.1f} s)")

    return on_phase


async def _probe_all(profiles: list[ServerProfile]) -> list[ServerStatus]:
    from vlmconsole.servers.where import server_of

    servers = [server_of(profile, state.lab.places) for profile in profiles]
    return _with_jobs(await asyncio.gather(*(server.probe() for server in servers)))


def _with_jobs(statuses: Sequence[ServerStatus]) -> list[ServerStatus]:
    """What the queue says of servers that are not there: one that waits for its device is not just stopped."""
    from vlmconsole.queue.served import with_its_job
    from vlmconsole.queue.store import Store

    places = state.lab.places
    if not places.queue.exists() or all(status.state not in ("stopped", "ended") for status in statuses):
        return list(statuses)
    try:
        with closing(Store(places.queue)) as store:
            return [with_its_job(status, store, places)[0] for status in statuses]
    except LabError:  # `jobs list` says what is wrong with the queue
        return list(statuses)


async def _look(profile: ServerProfile) -> tuple[ServerStatus, EffectiveSettings | None, str | None]:
    from vlmconsole.engines.readback import readback
    from vlmconsole.servers.where import server_of

    server = server_of(profile, state.lab.places)
    status = _with_jobs([await server.probe()])[0]
    if status.state != "ready":
        return status, None, f"the server is {status.state}"
    try:
        return status, await readback(await server.reach()), None
    except LabError as error:
        return status, None, str(error)


def _launch_line(profile: ServerProfile) -> str | None:
    from vlmconsole.engines.profile import ProfileError
    from vlmconsole.servers.where import server_of

    try:
        return server_of(profile, state.lab.places).launch_line() or None
    except ProfileError as error:
        return f"cannot be started: {error.message}"


def _row(profile: ServerProfile, status: ServerStatus) -> dict[str, Any]:
    return {
        "name": profile.name,
        "title": profile.title,
        "engine": profile.engine,
        "state": status.state,
        "why": status.why or None,
        "base_url": status.base_url or profile.base_url or None,
        "model": profile.model or profile.served_model or None,
        "pid": status.pid,
        "since": status.since,
    }


def _table(console: Console, rows: list[dict[str, Any]], words: list[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in ("", "name", "engine", "state", "address", "what"):
        # What is copied from here stays in one piece; the words beside it go on below.
        table.add_column(title, overflow="fold", no_wrap=title in ("name", "state", "address"))
    for row, word in zip(rows, words, strict=True):
        cells = [sign_of(word).mark, row["name"], row["engine"], word, row["base_url"] or "–"]
        table.add_row(*(Text(str(cell)) for cell in (*cells, row["title"])))
    console.print(table)
    for row in rows:
        if row["why"]:  # beneath, where it has the whole width
            console.print(Text(f"{row['name']}: {row['why']}", style="dim"), soft_wrap=True)


def _sheet(console: Console, value: dict[str, Any], lines: list[Setting], word: str) -> None:
    from rich.table import Table
    from rich.text import Text

    line = f"{sign_of(word).mark} {value['name']}  {value['engine']}  {word}"
    console.print(Text(line + (f": {value['why']}" if value["why"] else "")), soft_wrap=True)
    console.print(Text(f"  {value['title']}   {value['base_url'] or ''}".rstrip()))
    console.print(Text(f"  model: {value['model'] or 'as the server reports'}"))
    console.print(Text(f"  launch: {value['launch'] or 'not started by this lab'}"), soft_wrap=True)
    if value["cost"]:
        console.print(Text(f"  cost: {value['cost']}"))
    table = Table(box=None, pad_edge=False)
    for title in ("", "setting", "wanted", "read back"):
        table.add_column(title, overflow="fold")
    for setting in lines:
        if setting.wanted or setting.read:
            sign = "≠" if setting.state == "differs" else ""
            shown = (
                f"{setting.read} {setting.note}".strip()
                if setting.read
                else "not reported"
                if value["effective"]
                else "–"
            )
            table.add_row(*(Text(cell) for cell in (sign, setting.name, setting.wanted or "–", shown)))
    if table.row_count:
        console.print(table)
    if value["effective"] is not None:
        adapters = value["effective"]["adapters"]
        console.print(Text(f"  adapters: {', '.join(adapters) if adapters else 'none loaded'}"))
        for note in (*value["effective"]["notes"], value["effective"]["cached_rule"]):
            console.print(Text(f"  {note}"))
    elif value["state"] == "ready":
        console.print(Text(f"  settings not read back: {value['not_read_back']}"))
    for warning in value["warnings"]:
        console.print(Text(f"  warning: {warning}"))
