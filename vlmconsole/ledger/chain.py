"""The ledger: an append-only chain of hashes that makes later edits of runs and frozen plans show.

Each line is a JSON object whose `hash` is the SHA-256 of its own canonical JSON (without `hash`), and
whose `prev` is the hash of the line before. Editing, dropping or reordering a line breaks the chain. Cutting
off its end does not; a run that says it is sealed but stands in no line shows that.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vlmconsole.runs.conditions import canonical_json
from vlmconsole.runs.folder import RunFolder, write_atomic

MANIFEST = "manifest.json"
STAGED = f".{MANIFEST}.seal.tmp"  # the manifest until its line stands in the ledger
GENESIS = "0" * 64
# Grown by the process even after its last words (at-exit messages): what stood there at sealing must stay.
GROWING = frozenset({"log.txt"})
# Locks carry no evidence, and an order to stop may still come in while the worker is sealing (what it led to stands
# in state.json).
LEFT_OUT = frozenset({MANIFEST, "worker.lock", "reserve", "stop.json"})


@dataclass(frozen=True)
class SealVerdict:
    """What `verify` says of one run. `files` are the changed, missing or added ones; `why` is a sentence."""

    run: str
    status: Literal["intact", "changed", "missing", "not sealed", "ledger broken"]
    why: str
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "status": self.status,
            "why": self.why,
            "changed": list(self.changed),
            "missing": list(self.missing),
            "added": list(self.added),
        }


@dataclass(frozen=True)
class Chain:
    """The ledger as read: its good entries, the first break (None when whole) and lines torn by a crash."""

    entries: tuple[dict[str, Any], ...] = ()
    broken: str | None = None
    torn: tuple[int, ...] = field(default=())

    def last(self, kind: str, run: str) -> dict[str, Any] | None:
        """Return the newest entry of `kind` for the run called `run`."""
        entries = [entry for entry in self.entries if entry.get("kind") == kind and entry.get("run") == run]
        return entries[-1] if entries else None


def sha256_file(path: Path, size: int | None = None) -> str:
    """SHA-256 (hex) of a file, or of its first `size` bytes."""
    digest = hashlib.sha256()
    left = size
    with path.open("rb") as file:
        while left is None or left > 0:
            block = file.read(1 << 20 if left is None else min(left, 1 << 20))
            if not block:
                break
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


def manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of every file below `folder`, by relative path. A link counts as its target's text."""
    files: dict[str, dict[str, Any]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            relative = path.relative_to(folder).as_posix()
            if relative in LEFT_OUT or (name.startswith(".") and name.endswith(".tmp")):
                continue
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                text = str(path.readlink()).encode("utf-8", "surrogateescape")
                files[relative] = {"link": True, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
            elif stat.S_ISREG(mode):
                size = path.stat().st_size
                files[relative] = {"size": size, "sha256": sha256_file(path, size)}
    return dict(sorted(files.items()))


class Ledger:
    """The ledger file of one lab home. Safe under many processes: every append holds an exclusive flock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _locked(self) -> Iterator[int]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def append(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Add one entry and return it (with seq, t, prev, hash). Raises OSError when it cannot be written."""
        with self._locked() as descriptor:
            size = os.fstat(descriptor).st_size
            last = self._last_entry(descriptor, size)
            entry = {
                "seq": last["seq"] + 1 if last else 1,
                "t": round(time.time(), 3),
                "kind": kind,
                **fields,
                "prev": last["hash"] if last else GENESIS,
            }
            entry["hash"] = hashlib.sha256(canonical_json(entry)).hexdigest()
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            line = (b"\n" if torn else b"") + canonical_json(entry) + b"\n"
            if os.write(descriptor, line) != len(line):  # the disk filled: leave no half entry behind
                os.ftruncate(descriptor, size)
                raise OSError(28, "no space left for the ledger", str(self.path))
            os.fsync(descriptor)
            return entry

    @staticmethod
    def _last_entry(descriptor: int, size: int) -> dict[str, Any] | None:
        """The last whole entry, reading back from the end only as far as needed."""
        reach = 64 * 1024
        while size:
            start = max(0, size - reach)
            lines = os.pread(descriptor, size - start, start).split(b"\n")
            for line in reversed(lines if start == 0 else lines[1:]):
                entry = _entry(line)
                if entry is not None:
                    return entry
            if start == 0:
                break
            reach *= 8
        return None

    def read(self) -> Chain:
        """Read and check the whole chain."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return Chain()
        entries: list[dict[str, Any]] = []
        torn: list[int] = []
        previous, broken = GENESIS, None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            entry = _entry(line)
            if entry is None:
                torn.append(number)  # harmless if the next entry follows on the one before; else the link breaks
                continue
            body = {key: value for key, value in entry.items() if key != "hash"}
            if hashlib.sha256(canonical_json(body)).hexdigest() != entry["hash"]:
                broken = broken or f"line {number} of {self.path} was changed after it was written"
            elif entry.get("prev") != previous:
                broken = broken or f"line {number} of {self.path} does not follow on the line before it"
            previous = entry["hash"]
            entries.append(entry)
        return Chain(tuple(entries), broken, tuple(torn))

    def seal(self, run: RunFolder) -> dict[str, Any]:
        """Write the run's manifest and chain its hash; the run must not be written afterwards.

        The manifest is staged first and gets its name last: whoever dies in between leaves either no line in the
        ledger, or a line and the very bytes that it names. Raises OSError.
        """
        files = manifest(run.path)
        data = canonical_json({"run": run.name, "files": files})
        write_atomic(run.file(STAGED), data)
        entry = self._sealed(run, data, len(files))
        run.file(STAGED).replace(run.file(MANIFEST))
        return entry

    def _sealed(self, run: RunFolder, data: bytes, files: int) -> dict[str, Any]:
        state = run.state().get("state")
        return self.append("sealed", run=run.name, state=state, files=files, manifest=hashlib.sha256(data).hexdigest())

    def complete(self, run: RunFolder) -> None:
        """Finish a seal that a death cut short, as far as the bytes prove it; never one over an edit. Raises OSError.

        Call it with the run's lock. A manifest without its line (an earlier version wrote it first) gets the line only
        where every file is as the manifest says.
        """
        entry = self.read().last("sealed", run.name)
        path = run.file(MANIFEST)
        if entry is not None:
            if not path.exists() and self._manifest(run, entry) is not None:
                run.file(STAGED).replace(path)
            return
        if not path.exists():
            self.seal(run)
            return
        files = _files(data := path.read_bytes(), run.name)
        if files is not None and self._compare(run, files).status == "intact":
            self._sealed(run, data, len(files))

    @staticmethod
    def _manifest(run: RunFolder, entry: dict[str, Any]) -> bytes | None:
        """The manifest that the ledger's line names; staged still where a death kept it from its name; None: gone."""
        with contextlib.suppress(FileNotFoundError):
            return run.file(MANIFEST).read_bytes()
        with contextlib.suppress(FileNotFoundError):
            data = run.file(STAGED).read_bytes()
            return data if hashlib.sha256(data).hexdigest() == entry.get("manifest") else None
        return None

    def verify(self, run: RunFolder, chain: Chain | None = None) -> SealVerdict:
        """Compare a run with its seal. A broken chain proves nothing about any run, and is said so."""
        chain = chain or self.read()
        if chain.broken:
            return SealVerdict(run.name, "ledger broken", f"no seal can be trusted: {chain.broken}")
        entry = chain.last("sealed", run.name)
        if not run.path.is_dir():
            return SealVerdict(run.name, "missing", f"the folder {run.path} is gone")
        if entry is None:
            if run.file(MANIFEST).exists():
                return SealVerdict(run.name, "changed", "it has a manifest but stands in no ledger entry")
            return SealVerdict(run.name, "not sealed", "the run has not ended, or ended without sealing")
        data = self._manifest(run, entry)
        if data is None:
            return SealVerdict(run.name, "missing", f"{MANIFEST} is gone", missing=(MANIFEST,))
        if hashlib.sha256(data).hexdigest() != entry["manifest"]:
            return SealVerdict(run.name, "changed", f"{MANIFEST} was changed", changed=(MANIFEST,))
        return self._compare(run, json.loads(data)["files"])

    @staticmethod
    def _compare(run: RunFolder, sealed: dict[str, dict[str, Any]]) -> SealVerdict:
        now = manifest(run.path)
        missing = tuple(name for name in sealed if name not in now)
        added = tuple(name for name in now if name not in sealed)
        changed = tuple(
            name
            for name, was in sealed.items()
            if name in now and now[name] != was and not _only_grew(run.file(name), was, name)
        )
        if not (missing or added or changed):
            return SealVerdict(run.name, "intact", f"all {len(sealed)} files are as they were sealed")
        parts = [
            f"{label}: {', '.join(names[:5])}{'…' if len(names) > 5 else ''}"
            for label, names in (("changed", changed), ("missing", missing), ("added", added))
            if names
        ]
        status: Literal["changed", "missing"] = "missing" if missing and not changed and not added else "changed"
        return SealVerdict(run.name, status, "; ".join(parts), changed, missing, added)


def _only_grew(path: Path, was: dict[str, Any], name: str) -> bool:
    return name in GROWING and path.stat().st_size >= was["size"] and sha256_file(path, was["size"]) == was["sha256"]


def _files(data: bytes, run: str) -> dict[str, dict[str, Any]] | None:
    """The files of a manifest of that run; None where it is no such manifest."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    files = value.get("files") if isinstance(value, dict) and value.get("run") == run else None
    return files if isinstance(files, dict) and data == canonical_json({"run": run, "files": files}) else None


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    whole = isinstance(entry, dict) and isinstance(entry.get("hash"), str) and isinstance(entry.get("seq"), int)
    return entry if whole else None
