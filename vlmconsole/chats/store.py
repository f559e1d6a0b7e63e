"""The conversation store: chats, messages and pictures, written as an answer streams.

A killed console loses at most what it had not yet handed to `progress`; the message it was writing is found by
the next reader (its writer's pid and start time are kept) and marked `interrupted`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlmconsole.chats.checked import read_answer, read_facts, read_sampling, read_text, read_time
from vlmconsole.chats.history import request_messages
from vlmconsole.chats.records import (
    STATES,
    Chat,
    ChatStoreError,
    Draft,
    MessageState,
    Role,
    StoredMessage,
    StoredPicture,
)
from vlmconsole.chats.schema import connect, connect_to_read
from vlmconsole.runs.folder import write_atomic

if TYPE_CHECKING:
    from vlmconsole.vision.images import Picture

#: A deleted conversation can be brought back for this long (seconds); then its rows and pictures go.
UNDO_WINDOW = 7 * 86400.0

_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}


class ChatStore:
    """Conversations of one lab home. Times are wall-clock seconds; all methods raise ChatStoreError on a fault."""

    def __init__(
        self, database: Path, pictures: Path, *, clock: Callable[[], float] = time.time, read_only: bool = False
    ) -> None:
        self.database = database
        self.pictures = pictures
        self._clock = clock
        self._db = connect_to_read(database) if read_only else connect(database)
        self._me: tuple[int, str | None] | None = None
        if not read_only:
            self.mark_interrupted()

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def together(self) -> Iterator[None]:
        """All of what is written in it, or nothing; within another such it is that one's."""
        if self._db.in_transaction:
            yield
            return
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            self._db.rollback()
            raise

    # -- conversations -------------------------------------------------------------------------------------

    def new_chat(self, *, server: str = "", title: str = "", system: str = "") -> Chat:
        now = self._clock()
        cursor = self._run(
            "INSERT INTO chats(title, created, updated, server, system) VALUES (?,?,?,?,?)",
            (title, now, now, server, system),
        )
        return self.chat(int(cursor.lastrowid or 0))

    def chat(self, chat_id: int) -> Chat:
        """Return one conversation, deleted ones included (undo needs them)."""
        row = self._run(f"{_CHATS} WHERE c.id = ?", (chat_id,)).fetchone()
        if row is None:
            raise ChatStoreError(f"there is no conversation {chat_id}; `vlmconsole chats list` shows them").named()
        return _chat(row)

    def chats(self, search: str = "") -> list[Chat]:
        """Live conversations, newest first. `search` looks in titles and in messages, ignoring case (ASCII)."""
        where, values = "WHERE c.deleted IS NULL", []
        if search.strip():
            like = "%" + search.strip().replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%"
            where += (
                r" AND (c.title LIKE ? ESCAPE '\' OR EXISTS (SELECT 1 FROM messages s WHERE s.chat_id = c.id"
                r" AND s.superseded = 0 AND s.text LIKE ? ESCAPE '\'))"
            )
            values = [like, like]
        rows = self._run(f"{_CHATS} {where} ORDER BY c.updated DESC, c.id DESC", values)
        return [_chat(row) for row in rows]

    def set_chat(self, chat_id: int, **fields: Any) -> None:
        """Change title, server, system or sampling (a dict) of a conversation."""
        unknown = fields.keys() - {"title", "server", "system", "sampling"}
        if unknown:
            raise ValueError(f"not a field of a conversation: {sorted(unknown)}")
        for name, value in fields.items():
            stored = json.dumps(value, ensure_ascii=False) if name == "sampling" else value
            self._run(f"UPDATE chats SET {name} = ? WHERE id = ?", (stored, chat_id))

    def delete(self, chat_id: int) -> Chat:
        """Take a conversation out of the list; `restore` brings it back within UNDO_WINDOW."""
        chat = self.chat(chat_id)
        self._run("UPDATE chats SET deleted = ? WHERE id = ?", (self._clock(), chat_id))
        return chat

    def restore(self, chat_id: int) -> None:
        self._run("UPDATE chats SET deleted = NULL WHERE id = ?", (chat_id,))

    def purge(self) -> int:
        """Drop what was deleted longer ago than UNDO_WINDOW, and picture files nothing refers to any more."""
        limit = self._clock() - UNDO_WINDOW
        gone = self._run("DELETE FROM chats WHERE deleted IS NOT NULL AND deleted < ?", (limit,)).rowcount
        if gone and self.pictures.is_dir():
            used = {row[0] for row in self._run("SELECT sha256 FROM pictures UNION SELECT sha256 FROM draft_pictures")}
            for file in self.pictures.iterdir():
                if file.is_file() and file.stem not in used:
                    file.unlink(missing_ok=True)
        return gone

    # -- messages ------------------------------------------------------------------------------------------

    def add(
        self,
        chat_id: int,
        role: Role,
        text: str,
        *,
        pictures: Sequence[Picture] = (),
        places: Sequence[int] = (),
        state: MessageState = "done",
        server: str = "",
    ) -> StoredMessage:
        """Append a message; pictures reach the disk before the row that names them. `places`: see `Message`."""
        self.keep_files(pictures)
        now = self._clock()
        with self.together():
            cursor = self._run(
                "INSERT INTO messages(chat_id, role, text, created, state, server, writer_pid, writer_started)"
                " VALUES (?,?,?,?,?,?,?,?)",
                (chat_id, role, text, now, state, server, *self._writer()),
            )
            message_id = int(cursor.lastrowid or 0)
            self._add_pictures("pictures", message_id, pictures, places)
            self._run("UPDATE chats SET updated = ? WHERE id = ?", (now, chat_id))
        return self.message(message_id)

    def progress(self, message_id: int, text: str, reasoning: str = "") -> None:
        """What has streamed so far; called about once a second."""
        self._run("UPDATE messages SET text = ?, reasoning = ? WHERE id = ?", (text, reasoning, message_id))

    def finish(
        self,
        message_id: int,
        *,
        text: str,
        state: MessageState,
        reasoning: str = "",
        error: str = "",
        answer: dict[str, Any] | None = None,
    ) -> StoredMessage:
        """Close an answer with how it ended and its evidence."""
        kept = None if answer is None else json.dumps(answer, ensure_ascii=False)
        self._run(
            "UPDATE messages SET text = ?, reasoning = ?, state = ?, error = ?, answer = ? WHERE id = ?",
            (text, reasoning, state, error, kept, message_id),
        )
        return self.message(message_id)

    def supersede(self, chat_id: int, from_id: int) -> None:
        """Put aside a message and all after it (an edit or a second try): kept and exported, no longer shown."""
        self._run("UPDATE messages SET superseded = 1 WHERE chat_id = ? AND id >= ?", (chat_id, from_id))

    def message(self, message_id: int) -> StoredMessage:
        row = self._run(f"SELECT {_COLUMNS}, {_LEAN} AS answer FROM messages WHERE id = ?", (message_id,)).fetchone()
        if row is None:
            raise ChatStoreError(f"there is no message {message_id}")
        return self._message(row)

    def messages(self, chat_id: int, *, superseded: bool = False, evidence: int | None = None) -> list[StoredMessage]:
        """Return all messages of a conversation in order; those put aside only when asked for.

        evidence: how many of the newest come with the evidence of their answers (None: all). Reading thousands of
        them costs seconds and hundreds of MB, and a screen shows a few.
        """
        keep = "" if superseded else " AND superseded = 0"
        first = 0
        if evidence is not None:
            newest = f"SELECT id FROM messages WHERE chat_id = ?{keep} ORDER BY id DESC LIMIT 1 OFFSET ?"
            row = self._run(newest, (chat_id, max(0, evidence - 1))).fetchone() if evidence else None
            first = row["id"] if row is not None else (0 if evidence else _NONE)
        columns = f"{_COLUMNS}, CASE WHEN id >= ? THEN {'answer' if evidence is None else _LEAN} END AS answer"
        rows = self._run(f"SELECT {columns} FROM messages WHERE chat_id = ?{keep} ORDER BY id", (first, chat_id))
        pictures: dict[int, list[sqlite3.Row]] = {}
        of_chat = (
            "SELECT p.message_id, p.sha256, p.facts FROM pictures p JOIN messages m ON m.id = p.message_id"
            " WHERE m.chat_id = ? ORDER BY p.message_id, p.position"
        )
        for item in self._run(of_chat, (chat_id,)):
            pictures.setdefault(item["message_id"], []).append(item)
        return [self._message(row, pictures.get(row["id"], [])) for row in rows.fetchall()]

    def request(self, message_id: int) -> dict[str, Any] | None:
        """Return the request behind an answer, its messages in full (pictures by their hash); None for one without.

        They are kept by reference, as ids of messages: kept in full with each answer a conversation grew by the square.
        """
        row = self._run("SELECT answer FROM messages WHERE id = ?", (message_id,)).fetchone()
        request = read_answer(row["answer"])[0].get("request") if row is not None and row["answer"] else None
        if not isinstance(request, dict) or "message_ids" not in request:
            return request
        from vlmconsole.models.messages import to_record

        ids = [item for item in request["message_ids"] if isinstance(item, int)]
        sent = request_messages(str(request.get("system") or ""), [self.message(item) for item in ids])
        rest = {name: value for name, value in request.items() if name not in ("message_ids", "system")}
        return {**rest, "messages": to_record(sent)}

    def mark_interrupted(self) -> int:
        """Close answers whose writer is gone (killed, crashed, machine restarted). Returns how many."""
        rows = self._run("SELECT id, writer_pid, writer_started FROM messages WHERE state = 'streaming'")
        lost = [row["id"] for row in rows.fetchall() if not _lives(row["writer_pid"], row["writer_started"])]
        for message_id in lost:
            self._run("UPDATE messages SET state = 'interrupted' WHERE id = ?", (message_id,))
        return len(lost)

    # -- drafts --------------------------------------------------------------------------------------------

    def keep_draft(
        self,
        text: str,
        chat_id: int | None = None,
        changing: int | None = None,
        pictures: Sequence[Picture] = (),
    ) -> None:
        """Keep what is written in this process and not sent, in the place of what it kept before; "": nothing is."""
        self.keep_files(pictures)
        with self.together():
            self._run("DELETE FROM drafts WHERE writer_pid = ? AND writer_started IS ?", self._writer())
            if text.strip() or pictures:
                cursor = self._run(
                    "INSERT INTO drafts(chat_id, text, changing, kept, writer_pid, writer_started)"
                    " VALUES (?,?,?,?,?,?)",
                    (chat_id, text, changing, self._clock(), *self._writer()),
                )
                self._add_pictures("draft_pictures", int(cursor.lastrowid or 0), pictures)

    def take_draft(self) -> Draft | None:
        """Return the newest draft of a process that is gone; from now on it is this process's own."""
        with self.together():
            rows = self._run("SELECT * FROM drafts ORDER BY kept DESC, id DESC").fetchall()
            lost = next((row for row in rows if not _lives(row["writer_pid"], row["writer_started"])), None)
            if lost is None:
                return None
            writer = (*self._writer(), lost["id"])
            self._run("UPDATE drafts SET writer_pid = ?, writer_started = ? WHERE id = ?", writer)
        pictures, _ = self._pictures_of("draft_pictures", lost["id"])
        return Draft(read_text(lost["text"]), lost["chat_id"], lost["changing"], tuple(pictures))

    def keep_files(self, pictures: Sequence[Picture]) -> None:
        """Write the pictures' files; from any thread. Raises ChatStoreError."""
        for picture in pictures:
            path = self._picture_path(picture.sha256, picture.mime)
            try:
                self.pictures.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not path.exists():
                    write_atomic(path, picture.data)
            except OSError as error:
                what = f"{picture.name} cannot be kept in {self.pictures}: {error.strerror or error}"
                raise ChatStoreError(what, "Make room there, or take the image away.") from error

    # -- inside --------------------------------------------------------------------------------------------

    def _add_pictures(self, table: str, owner: int, pictures: Sequence[Picture], places: Sequence[int] = ()) -> None:
        for position, picture in enumerate(pictures):
            facts = {
                "name": picture.name,
                "pixel_sha256": picture.pixel_sha256,
                "mime": picture.mime,
                "size": picture.size,
                "original_size": picture.original_size,
                "changes": picture.changes,
                "note": picture.note,
                **({"place": places[position]} if places else {}),
            }
            kept = (owner, position, picture.sha256, json.dumps(facts, ensure_ascii=False))
            self._run(f"INSERT INTO {table} VALUES (?,?,?,?)", kept)

    def _writer(self) -> tuple[int, str | None]:
        """This process, so that a reader can tell whether it still lives. Asked for only when something is written."""
        if self._me is None:
            from vlmconsole.system.processes import started

            self._me = (os.getpid(), started(os.getpid()))
        return self._me

    def _picture_path(self, sha256: str, mime: str) -> Path:
        return self.pictures / f"{sha256}.{_EXTENSIONS.get(mime, 'bin')}"

    def _message(self, row: sqlite3.Row, items: Sequence[sqlite3.Row] | None = None) -> StoredMessage:
        """A message of its row; `items` are its pictures' rows where they have been read."""
        pictures, lost = self._pictures_of("pictures", row["id"]) if items is None else self._pictures(items)
        answer, damaged = (None, False) if row["answer"] is None else read_answer(row["answer"])
        known = row["role"] in ("user", "assistant") and row["state"] in STATES
        return StoredMessage(
            id=row["id"],
            chat_id=row["chat_id"],
            role=row["role"] if known else "assistant",
            text=read_text(row["text"]),
            reasoning=read_text(row["reasoning"]),
            created=read_time(row["created"]),
            state=row["state"] if known else "interrupted",
            error=read_text(row["error"]),
            server=read_text(row["server"]),
            answer=answer,
            superseded=bool(row["superseded"]),
            pictures=tuple(pictures),
            damaged=damaged or lost or not known,
        )

    def _pictures_of(self, table: str, owner: int) -> tuple[list[StoredPicture], bool]:
        """The pictures of a message or a draft, and whether a damaged one was left out."""
        column = "message_id" if table == "pictures" else "draft_id"
        return self._pictures(
            self._run(f"SELECT sha256, facts FROM {table} WHERE {column} = ? ORDER BY position", (owner,)).fetchall()
        )

    def _pictures(self, items: Sequence[sqlite3.Row]) -> tuple[list[StoredPicture], bool]:
        stored = [(item["sha256"], read_facts(item["sha256"], item["facts"])) for item in items]
        pictures = [self._picture(sha256, facts) for sha256, facts in stored if facts is not None]
        return pictures, len(pictures) < len(stored)

    def _picture(self, sha256: str, facts: dict[str, Any]) -> StoredPicture:
        return StoredPicture(
            sha256=sha256,
            name=facts["name"],
            mime=facts["mime"],
            size=(facts["size"][0], facts["size"][1]),
            original_size=(facts["original_size"][0], facts["original_size"][1]),
            pixel_sha256=facts["pixel_sha256"],
            changes=tuple(facts["changes"]),
            note=facts["note"],
            path=self._picture_path(sha256, facts["mime"]),
            place=facts.get("place") or 0,
        )

    def _run(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except OverflowError:  # a number as someone typed it
            raise ChatStoreError("that number has more than 64 bits: there is no such conversation").named() from None
        except sqlite3.Error as error:
            raise ChatStoreError(f"the conversations in {self.database} cannot be used: {error}") from error


_NONE = (1 << 63) - 1  # above every id
_COLUMNS = "id, chat_id, role, text, reasoning, created, state, error, server, superseded"
#: Evidence as it is read for a list: without the messages of the request, which earlier versions kept in full.
_LEAN = (
    "CASE WHEN length(answer) > 65536 AND json_valid(answer) THEN json_remove(answer, '$.request.messages')"
    " ELSE answer END"
)
_CHATS = "SELECT c.*, (SELECT COUNT(*) FROM messages m WHERE m.chat_id = c.id AND m.superseded = 0) AS n FROM chats c"


def _chat(row: sqlite3.Row) -> Chat:
    sampling, damaged = read_sampling(row["sampling"])
    return Chat(
        id=row["id"],
        title=read_text(row["title"]),
        created=read_time(row["created"]),
        updated=read_time(row["updated"]),
        server=read_text(row["server"]),
        system=read_text(row["system"]),
        sampling=sampling,
        count=row["n"],
        damaged=damaged,
    )


def _lives(pid: int | None, started: str | None) -> bool:
    """Is the writer still the same process? A reused pid has another start token."""
    from vlmconsole.system.processes import alive

    return alive(pid, started)
