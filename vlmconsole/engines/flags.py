"""Launch flags against the `--help` of the installed version, before a server is started with them.

Versions drop and rename flags, and a server says so only after a minute of imports, or not at all where a wrapper
swallows it. The help is asked once for each interpreter and version and kept in the lab's cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from vlmconsole.engines.profile import ProfileError
from vlmconsole.runs.folder import to_json, write_atomic
from vlmconsole.system.reading import read_json
from vlmconsole.system.typed_paths import named

if TYPE_CHECKING:
    from vlmconsole.engines.engine import Engine

HELP_S, VERSION_S = 300.0, 60.0  # the longest that a server's help and its version may take
_FLAG = re.compile(r"--[A-Za-z][\w-]*")
_VERSION = """import importlib.metadata, importlib.util, sys
try:
    print(importlib.metadata.version(sys.argv[1]))
except importlib.metadata.PackageNotFoundError:
    print("" if importlib.util.find_spec(sys.argv[1].replace("-", "_")) else "none")
"""


@dataclass(frozen=True)
class Help:
    """What a server's `--help` knows. version "" where it is not told; why: the reason when `flags` is empty."""

    version: str
    flags: tuple[str, ...]
    why: str = ""


async def check(
    name: str, engine: Engine, words: Sequence[str], env: Mapping[str, str], folder: Path | None, cache: Path
) -> str:
    """Check a launch line; returns "" when every flag is known, else why they could not be checked.

    name: the profile's. words: the whole command. env: what the server gets on top of ours. folder: its working
    folder. Raises ProfileError for a program that is not there, a package that its Python lacks, or unknown flags.
    """
    program(name, words, folder)
    given = flags_in(words)
    if not engine.package or not given:
        return ""
    known = await ask(name, engine, words, env, folder, cache)
    if not known.flags:
        return known.why
    bad = unknown(given, known.flags, engine)
    if bad:
        said = "; ".join(flag + (f" (near: {', '.join(near)})" if near else "") for flag, near in bad.items())
        title = f"{engine.package} {known.version}".strip()
        raise ProfileError(
            f"profile {name}: {title} does not know {said}",
            f"Its flags: {' '.join((*_front(engine, words), '--help'))}",
            code="flag-unknown",
        )
    return ""


def program(name: str, words: Sequence[str], folder: Path | None) -> str:
    """Return where the first word of a command is. Raises ProfileError when there is no such program."""
    first = named(words[0])
    path = str((folder or Path()) / first) if "/" in words[0] and not first.is_absolute() else str(first)
    executable = shutil.which(path)
    if executable is None:
        raise ProfileError(
            f"profile {name}: {words[0]} is not a program that can be run",
            "It is the first word of launch.argv, or launch.interpreter.",
            code="program-missing",
        )
    return executable


def flags_in(words: Sequence[str]) -> list[str]:
    """Return the flags of a launch line, each once, without their values; nothing after a bare `--`."""
    line = takewhile(lambda word: word != "--", words[1:])
    return list(dict.fromkeys(word.partition("=")[0] for word in line if _FLAG.match(word)))


def unknown(given: Sequence[str], known: Sequence[str], engine: Engine) -> dict[str, list[str]]:
    """Return the given flags that are not known, with up to three near ones each."""
    bad: dict[str, list[str]] = {}
    for flag in given:
        plain = engine.plain_flag(flag)
        # argparse takes a beginning that only one flag has.
        if plain in known or sum(other.startswith(plain) for other in known) == 1:
            continue
        bad[flag] = difflib.get_close_matches(plain.replace("_", "-"), known, n=3, cutoff=0.6)
    return bad


def parse_help(text: str) -> tuple[str, ...]:
    """Return every flag that argparse's help lists: the lines that begin an option, not what their texts mention."""
    flags: list[str] = []
    for line in text.splitlines():
        if re.match(r" {1,4}-", line):
            flags += _FLAG.findall(re.split(r" {2,}", line.strip(), maxsplit=1)[0])
    return tuple(dict.fromkeys(flags))


async def ask(
    name: str, engine: Engine, words: Sequence[str], env: Mapping[str, str], folder: Path | None, cache: Path
) -> Help:
    """Return the flags of the installed version, from the cache or from its `--help`. Raises ProfileError: package
    missing.
    """
    front = _front(engine, words)
    version = await _version(name, engine, front, env, folder)
    stamp = version or str(Path(program(name, words, folder)).stat().st_mtime_ns)
    key = hashlib.sha256(json.dumps([front, stamp]).encode()).hexdigest()[:16]
    path = cache / "flags" / f"{key}.json"
    try:
        kept = read_json(path)
        return Help(kept["version"], tuple(kept["flags"]))
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not asked yet, or a damaged file: asked again
    why = ""
    for question in engine.help_flags:
        code, printed = await _run([*front, question], env, folder, HELP_S)
        flags = parse_help(printed)
        if code == 0 and "--help" in flags:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            value = {"command": front, "version": version, "asked": time.time(), "flags": flags}
            write_atomic(path, to_json(value))
            return Help(version, flags)
        why = f"flags not checked: {Path(front[0]).name} … {question} " + (
            f"ended with {code}" if code else "lists no flags"
        )
    return Help(version, (), why)


def _front(engine: Engine, words: Sequence[str]) -> list[str]:
    """What comes before the first flag: the program, and the module or sub-command."""
    return engine.help_front(list(takewhile(lambda word: not word.startswith("--"), words)))


async def _version(name: str, engine: Engine, front: Sequence[str], env: Mapping[str, str], folder: Path | None) -> str:
    """The package's version in the interpreter that will serve; "" when it cannot be told."""
    if not engine.is_its_own(front):
        return ""
    _, printed = await _run([front[0], "-c", _VERSION, engine.package], env, folder, VERSION_S)
    lines = printed.strip().splitlines()
    version = lines[-1].strip() if lines else ""
    if version == "none":
        raise ProfileError(
            f"profile {name}: {front[0]} has no {engine.package}",
            f"Name a Python that has it as launch.interpreter, or: vlmconsole env make {engine.name}",
            code="package-missing",
        )
    return version if re.fullmatch(r"\d[\w.+!-]*", version) else ""


async def _run(words: Sequence[str], env: Mapping[str, str], folder: Path | None, limit_s: float) -> tuple[int, str]:
    """Exit code and standard output; −1 when it took too long or could not be run. Ended when it is cancelled."""
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **env, "COLUMNS": "200", "NO_COLOR": "1"},
            cwd=folder,
            start_new_session=True,
        )
    except OSError:
        return -1, ""
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), limit_s)
    except TimeoutError:
        return -1, ""
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode or 0, printed.decode("utf-8", "replace")
