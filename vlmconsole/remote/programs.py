"""Programs on another machine over SSH: start one in its environment, read its log, stop it."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vlmconsole.remote.ssh import SshError, SshHost, run

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


@dataclass(frozen=True)
class RemoteProcess:
    """A program started there under `name`. `state`: running, ended by itself, or none (never started, stopped)."""

    name: str
    state: Literal["running", "ended", "none"]
    pid: int | None = None


def word(text: str) -> str:
    """Return a word for the far shell, which takes it literally; only a leading `~/` becomes its home."""
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
    """Return whether that program runs."""
    return _said(name, run(host, _filled(_HEAD + _STATUS, {"NAME": _checked(name)})))


def stop(host: SshHost, name: str, grace: float = 10.0) -> str:
    """TERM to its process group, KILL after `grace` seconds; returns "ended", "killed" or "none" (it did not run)."""
    values = {"NAME": _checked(name), "TENTHS": str(max(1, round(grace * 10)))}
    return run(host, _filled(_HEAD + _STOP, values), timeout=grace + 15).strip()


def read_log(host: SshHost, name: str, offset: int, most: int = 256 * 1024) -> bytes:
    """At most `most` bytes of that program's log from `offset` on; nothing where there is no log."""
    script = f'[ -f "$dir/log.txt" ] || exit 0\ntail -c +{offset + 1} "$dir/log.txt" | head -c {most} | base64\n'
    return base64.b64decode(run(host, _filled(_HEAD + script, {"NAME": _checked(name)})))


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
