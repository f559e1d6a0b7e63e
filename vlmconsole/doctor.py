"""The check-up behind `vlmconsole doctor`: what is found, what is missing, what is at the wrong version."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata as metadata
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from packaging.requirements import Requirement

from vlmconsole import __version__
from vlmconsole.errors import LabError
from vlmconsole.lab import Lab
from vlmconsole.queue import environments
from vlmconsole.system import file_system
from vlmconsole.text.sizes import GIB, size

#: where systemd-logind keeps its settings, the strongest last
LOGIND = ("usr/lib", "run", "etc")
State = Literal["ok", "missing", "wrong", "info"]

#: extra → what stops working without it. Missing extras are facts, not faults: a base install is a right install.
EXTRAS = {
    "tui": "the console's screens",
    "local": "the bundled model's server (mlx-vlm)",
    "train": "training and in-process evaluation",
    "report": "HTML reports",
    "ray": "jobs on a Ray cluster",
}


@dataclass(frozen=True)
class DoctorCheck:
    """One line of the check-up. `wrong` is a fault to mend; `missing` only takes a feature away."""

    name: str
    state: State
    found: str
    hint: str = ""


def examine(lab: Lab) -> list[DoctorCheck]:
    """Return every check, in the order a person would ask. Starts nothing and changes nothing."""
    return [
        *_python(),
        *_packages(),
        *_home(lab),
        *_books(lab),
        *_bundled_model(),
        *_profiles(lab),
        *_environments(lab),
        *_devices(),
        *_logout(),
        *_terminal(),
    ]


def as_json(checks: list[DoctorCheck]) -> dict[str, Any]:
    """`{ok, checks: [{name, state, found, hint}]}`; ok is false when any check is `wrong`."""
    return {
        "ok": all(check.state != "wrong" for check in checks),
        "checks": [asdict(check) for check in checks],
    }


def _python() -> Iterator[DoctorCheck]:
    version = platform.python_version()
    fine = sys.version_info >= (3, 11)
    yield DoctorCheck(
        "python", "ok" if fine else "wrong", f"{version} ({sys.executable})", "" if fine else "3.11 or newer"
    )
    yield DoctorCheck("vlmconsole", "ok", f"{__version__}, {platform.system()} {platform.machine()}")


def _packages() -> Iterator[DoctorCheck]:
    try:
        wanted = [Requirement(line) for line in metadata.requires("vlmconsole") or []]
    except metadata.PackageNotFoundError:
        yield DoctorCheck(
            "install",
            "wrong",
            "not installed: running from a folder",
            "pip install -e '.[tui]'",
        )
        return
    for extra in ("", *EXTRAS):
        mine = [need for need in wanted if _belongs(need, extra)]
        bad, absent = [], []
        for need in mine:
            try:
                have = metadata.version(need.name)
            except metadata.PackageNotFoundError:
                absent.append(need.name)
                continue
            if not need.specifier.contains(have, prereleases=True):
                bad.append(f"{need.name} {have} (wants {need.specifier})")
        name = f"extra [{extra}]" if extra else "base packages"
        install = f"pip install 'vlmconsole[{extra}]'" if extra else "pip install vlmconsole"
        if bad:
            yield DoctorCheck(name, "wrong", "wrong version: " + ", ".join(bad), install)
        elif absent:
            lost = f"without it: no {EXTRAS[extra]}; " if extra else ""
            yield DoctorCheck(name, "missing" if extra else "wrong", "missing: " + ", ".join(absent), lost + install)
        else:
            yield DoctorCheck(name, "ok", ", ".join(f"{need.name} {metadata.version(need.name)}" for need in mine))


def _belongs(need: Requirement, extra: str) -> bool:
    """Whether a requirement is asked for by this extra (`""`: by the base) on this machine."""
    if need.marker is None:
        return extra == ""
    plain = need.marker.evaluate({"extra": ""})
    return plain if extra == "" else (not plain and need.marker.evaluate({"extra": extra}))


def _home(lab: Lab) -> Iterator[DoctorCheck]:
    home = lab.places.home
    free = shutil.disk_usage(home).free
    writable = os.access(home, os.W_OK)
    if not writable:
        yield DoctorCheck("lab home", "wrong", f"{home} is not writable", "choose another with --home DIR")
    else:
        low = free < GIB
        yield DoctorCheck(
            "lab home",
            "wrong" if low else "ok",
            f"{home}, {size(free)} free",
            "free some space: runs need it" if low else "",
        )
    config = lab.places.config
    if lab.fault:
        yield DoctorCheck("settings", "wrong", lab.fault, "fix it; every other command refuses until then")
        return
    yield DoctorCheck(
        "settings",
        "ok" if config.exists() else "info",
        f"{config}" + ("" if config.exists() else " (none yet)"),
    )


def _books(lab: Lab) -> Iterator[DoctorCheck]:
    """The two databases: readable as SQLite, or damaged. Opened read-only, and never waited for."""
    for name, path in (("conversations", lab.places.chats), ("queue", lab.places.queue)):
        if not path.exists():
            yield DoctorCheck(name, "info", f"{path} (none yet)")
            continue
        try:
            with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1)) as database:
                database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            yield DoctorCheck(name, "wrong", *_book_fault(error, path))
        else:
            yield DoctorCheck(name, "ok", str(path))


def _book_fault(error: sqlite3.Error, path: Path) -> tuple[str, str]:
    """What is wrong with a database, and what to do: only a damaged one is ever to be moved away."""
    if lacking := file_system.fault(error, path):
        return lacking.message, lacking.hint
    damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    hint = "move the file away to start afresh; keep it to recover from"
    return f"{path}: {error}", hint if damaged else "check its disk, free space and permissions"


def _bundled_model() -> Iterator[DoctorCheck]:
    folder = files("vlmconsole.assets") / "tiny-qwen2.5-vl"
    names = ("config.json", "model.safetensors", "tokenizer.json", "preprocessor_config.json")
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:
        yield DoctorCheck("bundled model", "wrong", "missing: " + ", ".join(absent), "reinstall vlmconsole")
    else:
        yield DoctorCheck("bundled model", "ok", "tiny-qwen2.5-vl")


def _profiles(lab: Lab) -> Iterator[DoctorCheck]:
    from vlmconsole.engines.profile import ProfileError, load_profiles

    problems: list[ProfileError] = []
    profiles = load_profiles(lab.places.servers, problems=problems)
    for problem in problems:
        yield DoctorCheck("server profile", "wrong", str(problem), f"edit the file in {lab.places.servers}")
    yield DoctorCheck("server profiles", "ok", ", ".join(sorted(profiles)))
    if lab.settings.server not in profiles:
        yield DoctorCheck(
            "default server",
            "wrong",
            f"{lab.settings.server!r} is not a profile",
            "set `server` in the settings",
        )


def _environments(lab: Lab) -> Iterator[DoctorCheck]:
    """The Python environments of the heavy stacks: whether each that was made is whole and holds its pins."""
    absent = []
    for name, recipe in environments.recipes().items():
        now, again = environments.condition(name, lab.places), f"vlmconsole env make {name}"
        if now == "not built":
            absent.append(name)
        elif now == "unfinished":
            yield DoctorCheck(f"environment {name}", "wrong", "unfinished: its build failed or still runs", again)
        else:
            try:
                bad = environments.off_pins(recipe, lab.places)
            except LabError as error:
                yield DoctorCheck(f"environment {name}", "wrong", error.message, again)
                continue
            versions = ", ".join(f"{package} {version}" for package, version in bad.items())
            whole = f"{recipe.title}, as pinned; `vlmconsole env list --check` imports it"
            yield DoctorCheck(f"environment {name}", "wrong" if bad else "ok", versions or whole, again if bad else "")
    if absent:
        yield DoctorCheck("environments", "info", f"not built: {', '.join(absent)}", "vlmconsole env list")


def _devices() -> Iterator[DoctorCheck]:
    yield DoctorCheck("cpu", "info", f"{os.cpu_count()} cores")
    from vlmconsole.gauges.nvidia import summary

    yield DoctorCheck("nvidia gpu", "info", summary())
    from vlmconsole.devices.locks import DeviceLocks
    from vlmconsole.queue.process import lock_folder

    locks = DeviceLocks(lock_folder())
    if not os.path.lexists(locks.wanted):  # nobody has worked here yet: nothing is made by looking
        return
    try:
        where = locks.folder
    except OSError as error:
        yield DoctorCheck(
            "device locks", "wrong", str(error), "set VLMCONSOLE_DEVICE_LOCKS to a folder on a local disk"
        )
        return
    yield DoctorCheck("device locks", "wrong" if locks.remark else "ok", locks.remark or str(where))


def _logout(root: Path = Path("/")) -> Iterator[DoctorCheck]:
    """Whether systemd lets jobs live on after their owner has logged out; nothing where there is no systemd.

    A session of its own is enough against closed terminals; against KillUserProcesses only lingering helps.
    """
    if not (root / "run/systemd/system").is_dir():
        return
    files = [path for base in LOGIND for path in (root / base).glob("systemd/logind.conf.d/*.conf")]
    kills = False
    for path in [*(root / base / "systemd/logind.conf" for base in LOGIND), *sorted(files, key=lambda path: path.name)]:
        with contextlib.suppress(OSError):
            for line in path.read_text("utf-8", "replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip() == "KillUserProcesses":
                    kills = value.strip().lower() in ("yes", "true", "1", "on")
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        user = str(os.getuid())
    if kills and user != "root" and not (root / "var/lib/systemd/linger" / user).exists():
        hint = f"`loginctl enable-linger {user}` lets them live; without it: no job outlives your last session"
        yield DoctorCheck("logout", "missing", "this machine ends all your processes when you log out", hint)
    else:
        yield DoctorCheck("logout", "ok", "jobs go on when you log out")


def _terminal() -> Iterator[DoctorCheck]:
    env = os.environ
    facts = [f"TERM={env.get('TERM', 'unset')}"]
    facts += [name for name in ("TMUX", "SSH_CONNECTION", "NO_COLOR") if env.get(name)]
    facts.append("true colour" if env.get("COLORTERM") in {"truecolor", "24bit"} else "true colour not announced")
    hint = "" if "true colour" in facts else "run with COLORTERM=truecolor; over SSH: SendEnv COLORTERM"
    yield DoctorCheck("terminal", "info", ", ".join(facts), hint)
    for tool, use in (("tmux", "sessions that survive SSH"), ("ssh", "remote servers through a tunnel")):
        path = shutil.which(tool)
        yield DoctorCheck(
            tool, "ok" if path else "missing", path or "not found", "" if path else f"without it: no {use}"
        )
