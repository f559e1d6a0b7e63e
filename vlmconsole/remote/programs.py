"""On another machine over SSH: start a program in its environment, follow its log, stop it; list and fetch runs."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import selectors
import shlex
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal, cast

from vlmconsole.remote.ssh import SshError, SshHost, end, explain, run
from vlmconsole.system.atomic_folder import making
from vlmconsole.text.sizes import size

FETCH_LIMIT = 8 * 1024**3  # bytes of one run folder
SILENCE = 30.0  # seconds without a byte while fetching
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Shared head of the scripts: where a started program is kept, and whether its pid is still that program.
_HEAD = """
set -u
umask 077
dir="${XDG_STATE_HOME:-$HOME/.local/state}/vlmconsole/remote/"@NAME@
born() { ps -o lstart= -p "$1" 2>/dev/null || cut -d' ' -f22 "/proc/$1/stat" 2>/dev/null || true; }
lives() {
  [ -s "$dir/pid" ] || return 1
  pid=$(cat "$dir/pid")
  kill -0 "$pid" 2>/dev/null && [ "$(born "$pid")" = "$(cat "$dir/born" 2>/dev/null)" ] || return 1
  # Ended, and only its parent has not looked: where nobody reaps it stays so for ever.
  case "$(ps -o stat= -p "$pid" 2>/dev/null)" in Z*) return 1 ;; esac
}
"""

_LAUNCH = """
if lives; then echo "running $pid"; exit 0; fi
mkdir -p "$dir" || exit 1
[ -f "$dir/log.txt" ] && mv -f "$dir/log.txt" "$dir/log.1.txt"
cd -- @FOLDER@ || { echo "there is no folder "@FOLDER@ >&2; exit 1; }
if command -v setsid >/dev/null; then
  setsid nohup env @ENV@ @ARGV@ >>"$dir/log.txt" 2>&1 </dev/null &
else
  set -m
  nohup env @ENV@ @ARGV@ >>"$dir/log.txt" 2>&1 </dev/null &
fi
pid=$!
sleep 0.3
born "$pid" >"$dir/born"
echo "$pid" >"$dir/pid"
if lives; then echo "started $pid"; exit 0; fi
echo "it ended at once: $(tail -n 3 "$dir/log.txt" | tr '\\n' ' ')" >&2
exit 1
"""

_STATUS = 'if lives; then echo "running $pid"; elif [ -s "$dir/pid" ]; then echo ended; else echo none; fi\n'

_STOP = """
if ! lives; then rm -f "$dir/pid"; echo none; exit 0; fi
kill -TERM -- "-$pid" 2>/dev/null || kill -TERM "$pid" 2>/dev/null
n=0
while lives && [ "$n" -lt @TENTHS@ ]; do sleep 0.1; n=$((n + 1)); done
if lives; then kill -KILL -- "-$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null; how=killed; else how=ended; fi
n=0
while lives && [ "$n" -lt 30 ]; do sleep 0.1; n=$((n + 1)); done
if lives; then echo "pid $pid does not go away" >&2; exit 1; fi
rm -f "$dir/pid"
echo "$how"
"""

_RUNS = """
set -u
export COPYFILE_DISABLE=1
home=@HOME@
if [ -z "$home" ]; then home="${VLMCONSOLE_HOME:-}"; fi
if [ -z "$home" ]; then
  case "$(uname)" in
    Darwin) home="$HOME/Library/Application Support/vlmconsole" ;;
    *) home="${XDG_DATA_HOME:-$HOME/.local/share}/vlmconsole" ;;
  esac
fi
cd "$home/runs" 2>/dev/null || { echo "there is no lab in $home" >&2; exit 1; }
"""
_LIST = "find . -maxdepth 2 '(' -name job.json -o -name state.json ')' -exec sh -c "
_LIST += """'for f; do printf "%s\\n" "$f"; tr -d "\\n" <"$f"; printf "\\n"; done' sh '{}' +\n"""
_FETCH = 'test -d @NAME@ || { echo "there is no run "@NAME@ >&2; exit 1; }\ntar -cf - @NAME@\n'


@dataclass(frozen=True)
class RemoteProcess:
    """A program started there under `name`. `state`: running, ended by itself, or none (never started, stopped)."""

    name: str
    state: Literal["running", "ended", "none"]
    pid: int | None = None


@dataclass(frozen=True)
class RemoteRun:
    """A run folder there: its name, and what its job.json and state.json say."""

    name: str
    job: dict[str, Any]
    state: dict[str, Any]


def word(text: str) -> str:
    """A word for the far shell, which takes it literally; only a leading `~/` becomes its home."""
    return f'"$HOME"/{shlex.quote(text[2:])}' if text.startswith("~/") else shlex.quote(text)


def launch(
    host: SshHost,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str] | None = None,
    folder: str = "~/",
    secrets: Mapping[str, str] | None = None,
) -> RemoteProcess:
    """Start `argv` there in `folder`, in its own session, so that it outlives the line; its log is kept there.

    One that runs already under that name is found, not started again. Raises SshError, with the log's end when the
    program ended at once. `argv` and `env` are seen by that machine's other users; `secrets` (variables too)
    are not: they come with the script, which the far shell reads from its standard input.
    """
    if not argv or any(not _VARIABLE.fullmatch(key) for key in (*(env or {}), *(secrets or {}))):
        raise SshError("a command and environment variables with proper names are needed")
    given = " ".join(f"{key}={word(value)}" for key, value in (env or {}).items())
    values = {"NAME": _checked(name), "ENV": given, "ARGV": " ".join(map(word, argv)), "FOLDER": word(folder)}
    hidden = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in (secrets or {}).items())
    return _said(name, run(host, hidden + _filled(_HEAD + _LAUNCH, values)))


def status(host: SshHost, name: str) -> RemoteProcess:
    """Whether that program runs."""
    return _said(name, run(host, _filled(_HEAD + _STATUS, {"NAME": _checked(name)})))


def stop(host: SshHost, name: str, grace: float = 10.0) -> str:
    """TERM to its process group, KILL after `grace` seconds; returns "ended", "killed" or "none" (it did not run)."""
    values = {"NAME": _checked(name), "TENTHS": str(max(1, round(grace * 10)))}
    return run(host, _filled(_HEAD + _STOP, values), timeout=grace + 15).strip()


def read_log(host: SshHost, name: str, offset: int, most: int = 256 * 1024) -> bytes:
    """At most `most` bytes of that program's log from `offset` on; nothing where there is no log."""
    script = f'[ -f "$dir/log.txt" ] || exit 0\ntail -c +{offset + 1} "$dir/log.txt" | head -c {most} | base64\n'
    return base64.b64decode(run(host, _filled(_HEAD + script, {"NAME": _checked(name)})))


def follow(host: SshHost, name: str, stopping: threading.Event, offset: int = 0) -> Iterator[bytes]:
    """The log of that program from `offset` bytes on, as it grows; opened again where it broke off.

    An empty piece says that the line is down and is tried again. Ends when `stopping` is set.
    """
    while not stopping.is_set():
        script = _filled(_HEAD + f'exec tail -c +{offset + 1} -F "$dir/log.txt"\n', {"NAME": _checked(name)})
        process = subprocess.Popen(
            host.command(remote=f"exec sh -c {shlex.quote(script)}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            for piece in _pieces(process, stopping):
                offset += len(piece)
                yield piece
        finally:
            end(process)
        if not stopping.is_set():
            yield b""
            stopping.wait(1.0)


def _pieces(process: subprocess.Popen[bytes], stopping: threading.Event) -> Iterator[bytes]:
    pipe = cast(IO[bytes], process.stdout)
    with selectors.DefaultSelector() as watched:
        watched.register(pipe, selectors.EVENT_READ)
        while not stopping.is_set():
            if watched.select(0.2):
                piece = pipe.read1(65536) if hasattr(pipe, "read1") else pipe.read(65536)
                if not piece:
                    return
                yield piece


def list_runs(host: SshHost, home: str = "") -> list[RemoteRun]:
    """The run folders of the lab there, newest first. `home`: its lab home where it is not the usual one."""
    lines = run(host, _filled(_RUNS, _home(home)) + _LIST, timeout=30).split("\n")
    runs: dict[str, dict[str, dict[str, Any]]] = {}
    for path, text in zip(lines[::2], lines[1::2], strict=False):
        parts = PurePosixPath(path).parts
        if len(parts) != 2 or not _NAME.fullmatch(parts[0]):
            continue
        try:
            value = json.loads(text)
        except ValueError:
            value = {}
        runs.setdefault(parts[0], {})[parts[1]] = value if isinstance(value, dict) else {}
    named = sorted(runs.items(), reverse=True)
    return [RemoteRun(name, file.get("job.json", {}), file.get("state.json", {})) for name, file in named]


def fetch_run(host: SshHost, name: str, into: Path, home: str = "", limit: int = FETCH_LIMIT) -> Path:
    """Copy one run folder from there into `into`; returns where it lies. All of it or nothing arrives.

    Raises SshError: the run is not there, is here already, is larger than `limit` bytes, or the line broke.
    Links and special files are left out: they would lead out of the folder.
    """
    _checked(name)
    goal = into / name
    if goal.exists():
        raise SshError(f"{goal} is here already", "Move it away to fetch it again.", code="run-present")
    into.mkdir(mode=0o700, parents=True, exist_ok=True)
    process = subprocess.Popen(
        host.command(remote="sh -s"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with making(goal) as part:
        try:
            assert process.stdin is not None and process.stdout is not None and process.stderr is not None
            process.stdin.write(_filled(_RUNS + _FETCH, _home(home) | {"NAME": name}).encode())
            process.stdin.close()
            try:
                _unpack(_Watched(process.stdout), part, name, limit)
            except (tarfile.TarError, OSError) as error:
                with contextlib.suppress(subprocess.TimeoutExpired):  # its last words come with its end
                    process.wait(2.0)
                end_words = process.stderr.read(4096).decode("utf-8", "replace") if process.poll() is not None else ""
                raise explain(host, end_words or f"the copy broke off: {error}", process.returncode) from None
            process.wait(5.0)
            if process.returncode != 0 or not (part / name).is_dir():
                raise explain(host, process.stderr.read(4096).decode("utf-8", "replace"), process.returncode)
            (part / name).rename(goal)
        except subprocess.TimeoutExpired:
            raise SshError(f"{host.name} did not end the copy") from None
        finally:
            with contextlib.suppress(BrokenPipeError):
                end(process)
    return goal


class _Watched:
    """A pipe that gives up after :data:`SILENCE` seconds without a byte."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._watched = selectors.DefaultSelector()
        self._watched.register(pipe, selectors.EVENT_READ)

    def read(self, size: int) -> bytes:
        if not self._watched.select(SILENCE):
            raise OSError(f"nothing came for {SILENCE:g} s")
        return self._pipe.read1(size) if hasattr(self._pipe, "read1") else self._pipe.read(size)


def _unpack(pipe: _Watched, into: Path, name: str, limit: int) -> None:
    unpacked = 0
    with tarfile.open(fileobj=cast(Any, pipe), mode="r|") as archive:
        for member in archive:
            if not (member.isreg() or member.isdir()) or PurePosixPath(member.name).parts[0] != name:
                continue
            unpacked += member.size
            if unpacked > limit:
                raise SshError(
                    f"the run is larger than {size(limit)}",
                    "Copy it by hand with rsync.",
                    code="limit-size",
                )
            archive.extract(member, into, filter="data")


def _home(home: str) -> dict[str, str]:
    return {"HOME": word(home) if home else "''"}


def _filled(script: str, values: Mapping[str, str]) -> str:
    """The script with its `@NAMES@` filled in, in one pass: a value that looks like a name stays what it is."""
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], script)


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise SshError(f"{name[:60]!r} is no name for it", "Letters, digits, '.', '_' and '-'.", code="name-invalid")
    return name  # nothing in it means anything to a shell


def _said(name: str, answer: str) -> RemoteProcess:
    words = answer.split()
    if len(words) == 2 and words[0] in ("running", "started") and words[1].isdigit():
        return RemoteProcess(name, "running", int(words[1]))
    if words in (["ended"], ["none"]):
        return RemoteProcess(name, "ended" if words == ["ended"] else "none")
    raise SshError(f"the far shell answered {answer[:100]!r}", "Does a start-up file there print something?")
