"""A run folder told in lines of text: what is new in it, numbered, each line whole in itself."""

import base64
import binascii
import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TextIO

from vlmconsole.runs.folder import FINAL, RunFolder, write_atomic

FRAME = "@vlmconsole "
PIECE = 48 * 1024  # bytes of a file in one line
LATE = 1024**2  # a larger file is sent once, when the job has ended
# The worker here keeps these itself, or they mean something on one machine only.
OWN = frozenset({"job.json", "state.json", "worker.lock", "reserve", "manifest.json", "stop.json", "ray.json"})
GROWING = (".jsonl", ".txt")


@dataclass(frozen=True)
class Frame:
    """`number` counts from 1. Bytes of `file`, which begins anew with `new`; or the `end`: the last state."""

    number: int
    file: str = ""
    data: bytes = b""
    new: bool = False
    last: bool = True
    end: dict[str, Any] | None = None

    def line(self) -> str:
        value = {"n": self.number, "file": self.file, "new": self.new, "last": self.last, "end": self.end}
        return FRAME + json.dumps(value | {"data": base64.b64encode(self.data).decode()}, ensure_ascii=True)

    @classmethod
    def parse(cls, line: str) -> "Frame | None":
        """Return the frame in a line of a log; None when it is another line, or a damaged one."""
        _, mark, rest = line.partition(FRAME)
        if not mark:
            return None
        try:
            value = json.loads(rest)
            data = base64.b64decode(value["data"], validate=True)
            end = value["end"]
            if not isinstance(value["file"], str) or not (end is None or isinstance(end, dict)):
                return None
            return cls(int(value["n"]), value["file"], data, bool(value["new"]), bool(value["last"]), end)
        except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
            return None


class Giver:
    """Prints what is new in a run folder since the last look."""

    def __init__(self, run: Path, out: TextIO) -> None:
        self.run, self.out = run, out
        self._number = 0
        self._sent: dict[str, tuple[int, int, int]] = {}  # file → size, time, inode when it was last sent

    def give(self, *, everything: bool = False) -> None:
        for path in sorted(self.run.rglob("*")):
            name = path.relative_to(self.run).as_posix()
            if name in OWN or path.is_symlink() or not path.is_file():
                continue
            now = path.stat()
            key, before = (now.st_size, now.st_mtime_ns, now.st_ino), self._sent.get(name)
            grows = name.endswith(GROWING)
            if key == before or (not grows and now.st_size > LATE and not everything):
                continue
            on = before[0] if before is not None and grows and before[2] == now.st_ino and before[0] <= key[0] else 0
            self._sent[name] = (on + self._file(path, name, on), *key[1:])

    def finish(self) -> None:
        """The rest, and how it ended."""
        self.give(everything=True)
        self._line(end=RunFolder(self.run).state())

    def _file(self, path: Path, name: str, on: int) -> int:
        sent, new = 0, on == 0
        with path.open("rb") as file:
            file.seek(on)
            piece = file.read(PIECE)
            while True:
                following = file.read(PIECE)
                self._line(file=name, data=piece, new=new, last=not following)
                sent, new, piece = sent + len(piece), False, following
                if not piece:
                    return sent

    def _line(self, **fields: Any) -> None:
        self._number += 1
        self.out.write(Frame(self._number, **fields).line() + "\n")
        self.out.flush()


class Taker:
    """Writes frames into the run folder here. `end` is the last state there, once it has come."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.end: dict[str, Any] | None = None
        self._seen = 0
        self._parts: dict[str, list[bytes]] = {}

    def take(self, frame: Frame) -> None:
        """Take one frame; one that came before (the log was read anew) is left out. Raises OSError on a full disk."""
        if frame.number <= self._seen:
            return
        self._seen = frame.number
        if frame.end is not None:
            self.end = frame.end if frame.end.get("state") in FINAL else {"state": "failed", "reason": "it just ended"}
            return
        name = PurePosixPath(frame.file)
        if name.is_absolute() or ".." in name.parts or not name.parts or frame.file in OWN:
            return  # a log is no place to write from outside the run folder
        path = self.run.file("far-summary.json" if frame.file == "summary.json" else str(name))
        if not path.parent.resolve().is_relative_to(self.run.path.resolve()):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if frame.file.endswith(GROWING):
            # The worker here writes into its log and events as well, so what comes is only ever added.
            with path.open("ab") as file:
                file.write(frame.data)
            return
        parts = self._parts.setdefault(frame.file, [])
        if frame.new:
            parts.clear()
        parts.append(frame.data)
        if frame.last:
            write_atomic(path, b"".join(self._parts.pop(frame.file)))
