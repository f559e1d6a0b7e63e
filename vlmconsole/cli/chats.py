"""`vlmconsole chats list | export ID | delete ID`: the conversations of the chat screen, without the screen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vlmconsole.chats.export import export_chat
from vlmconsole.chats.schema import writable
from vlmconsole.chats.store import ChatStore
from vlmconsole.cli.common import emit, state
from vlmconsole.text.plain import one_line
from vlmconsole.text.times import minute


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Conversations: list, export, delete.")
    group.command("list")(list_command)
    group.command("export")(export)
    group.command("delete")(delete)
    app.add_typer(group, name="chats")


def _store(*, reading: bool = False) -> ChatStore:
    """The conversations; for `reading`, a database that cannot be written will do."""
    places = state.lab.places
    read_only = reading and places.chats.exists() and not writable(places.chats)
    return ChatStore(places.chats, places.pictures, read_only=read_only)


def list_command(
    search: Annotated[str, typer.Option("--search", help="Filter: words in title or messages")] = "",
) -> None:
    """Conversations, newest first."""
    chats = _store(reading=True).chats(search)
    value = {
        "chats": [
            {
                "id": chat.id,
                "title": chat.title,
                "created": chat.created,
                "updated": chat.updated,
                "server": chat.server,
                "messages": chat.count,
            }
            for chat in chats
        ]
    }

    def human(console: Console) -> None:
        if not chats:
            console.print("no conversations" + (" with these words" if search else " yet: `vlmconsole` opens the chat"))
            return
        table = Table(box=None, pad_edge=False)
        for column in ("id", "updated", "messages", "server", "title"):
            table.add_column(column, justify="right" if column in ("id", "messages") else "left")
        for chat in chats:
            when = minute(chat.updated)
            cells = (str(chat.id), when, str(chat.count), one_line(chat.server), one_line(chat.title))
            table.add_row(*(Text(cell) for cell in cells))
        console.print(table)

    emit(value, human)


def export(
    chat_id: Annotated[int, typer.Argument(metavar="ID", help="Conversation ID, as `chats list` shows it")],
    to: Annotated[Path | None, typer.Option("--to", help="Folder for the export; default: the working folder")] = None,
) -> None:
    """Write a conversation as Markdown and JSON, with its images, into a new folder."""
    exported = export_chat(_store(reading=True), chat_id, to or Path.cwd())
    value = {
        "folder": exported.folder,
        "markdown": exported.markdown,
        "json": exported.json,
        "pictures": list(exported.pictures),
    }
    emit(value, f"exported to {exported.folder}")


def delete(
    chat_id: Annotated[int, typer.Argument(metavar="ID", help="Conversation ID, as `chats list` shows it")],
    undo: Annotated[bool, typer.Option("--undo", help="Restore it (within seven days)")] = False,
) -> None:
    """Delete a conversation; `--undo` restores it."""
    store = _store()
    chat = store.chat(chat_id)
    if undo:
        store.restore(chat_id)
        emit({"restored": chat_id}, f"conversation {chat_id} restored: {one_line(chat.title)}")
        return
    store.delete(chat_id)
    emit(
        {"deleted": chat_id},
        f"deleted conversation {chat_id}: {one_line(chat.title)}\n"
        f"`vlmconsole chats delete {chat_id} --undo` restores it",
    )
