"""A conversation as files: Markdown to read, JSON with all the evidence, and the pictures that both refer to."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from vlmconsole.chats.checked import DAMAGED
from vlmconsole.chats.records import Chat, ChatStoreError, StoredMessage
from vlmconsole.chats.store import ChatStore
from vlmconsole.runs.folder import folder_for_user, write_for_user
from vlmconsole.streams.ending import read_remarks
from vlmconsole.system.privacy import users_mode
from vlmconsole.text.plain import inert, one_line

_ENDINGS = {
    "cut": "cut off",
    "stopped": "stopped",
    "interrupted": "interrupted: the console ended mid-answer",
    "failed": "failed",
    "streaming": "still answering",
}


@dataclass(frozen=True)
class Exported:
    """Where an export went."""

    folder: Path
    markdown: Path
    json: Path
    pictures: tuple[Path, ...]


def chat_json(chat: Chat, messages: list[StoredMessage]) -> dict[str, Any]:
    """Return everything that is kept of a conversation; times in wall-clock seconds, pictures by their SHA-256."""
    return {
        "id": chat.id,
        "title": chat.title,
        "created": chat.created,
        "updated": chat.updated,
        "server": chat.server,
        "system": chat.system,
        "sampling": chat.sampling,
        **({"damaged": True} if chat.damaged else {}),
        "messages": [
            {
                "id": message.id,
                "role": message.role,
                "text": message.text,
                "reasoning": message.reasoning or None,
                "created": message.created,
                "state": message.state,
                "error": message.error or None,
                "server": message.server or None,
                "superseded": message.superseded,
                "pictures": [picture.facts() for picture in message.pictures],
                "answer": message.answer,
                **({"damaged": True} if message.damaged else {}),
            }
            for message in messages
        ],
    }


def chat_markdown(chat: Chat, messages: list[StoredMessage]) -> str:
    """Return the conversation to read; pictures as links into `pictures/`, what was put aside left out."""
    lines = [f"# {_literal(chat.title or f'Conversation {chat.id}')}", ""]
    if chat.system:
        lines += ["> system: " + inert(chat.system).replace("\n", "\n> "), ""]
    if chat.damaged:
        lines += ["*its settings are damaged: using the defaults*", ""]
    for message in messages:
        if message.superseded:
            continue
        who = "You" if message.role == "user" else _literal(message.server or "Model")
        when = datetime.fromtimestamp(message.created).astimezone().isoformat(" ", "seconds")
        lines += [f"## {who} · {when}", ""]
        for picture in message.pictures:
            name = re.sub(r"[\[\]()]", "_", one_line(picture.name))
            size = f"{picture.size[0]}×{picture.size[1]}"
            lines += [
                f"![{name}](pictures/{picture.path.name})",
                "",
                f"{size}, {picture.description}, sha {picture.sha256}",
                "",
            ]
        lines += [inert(message.text), ""]
        if message.state in _ENDINGS:
            lines += [f"*{_ENDINGS[message.state]}{': ' + _literal(message.error) if message.error else ''}*", ""]
        if message.damaged:
            lines += [f"*{DAMAGED}*", ""]
        if message.answer:
            remarked = [_literal(remark.text) for remark in read_remarks(message.answer)]
            remarks = (*remarked, _numbers(message.answer), *_conditions(message.answer))
            lines += [f"*{line}*\n" for line in remarks if line]
    return "\n".join(lines)


def export_chat(store: ChatStore, chat_id: int, parent: Path) -> Exported:
    """Write a conversation into a new folder under `parent`. Raises ChatStoreError when that cannot be done."""
    chat = store.chat(chat_id)
    messages = store.messages(chat_id, superseded=True)
    words = re.sub(r"[^\w]+", "-", one_line(chat.title, 40).lower()).strip("-") or "conversation"
    try:
        folder = _fresh(parent, f"chat-{chat.id}-{words}")
        pictures: list[Path] = []
        for picture in {picture.sha256: picture for message in messages for picture in message.pictures}.values():
            if picture.path.exists():
                folder_for_user(folder / "pictures")
                pictures.append(Path(shutil.copyfile(picture.path, folder / "pictures" / picture.path.name)))
                pictures[-1].chmod(users_mode())
        markdown, data = folder / "chat.md", folder / "chat.json"
        write_for_user(markdown, chat_markdown(chat, messages))
        write_for_user(data, json.dumps(chat_json(chat, messages), ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise ChatStoreError(f"the conversation could not be exported to {parent}: {error.strerror}") from error
    return Exported(folder, markdown, data, tuple(pictures))


def _fresh(parent: Path, name: str) -> Path:
    """A folder that was not there before: an export never overwrites another."""
    for number in range(1, 10_000):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder_for_user(parent)
            folder.mkdir()
            folder.chmod(users_mode(0o777))
        except FileExistsError:
            continue
        return folder
    raise OSError(0, f"{name} and 9,998 more exist already")


def _numbers(answer: dict[str, Any]) -> str:
    timing, usage = answer.get("timing") or {}, answer.get("usage") or {}
    named = (("ttft_s", "TTFT"), ("e2e_s", "total time"))
    parts = [f"{name} {timing[key]:.3f} s" for key, name in named if timing.get(key) is not None]
    if usage.get("prompt_tokens") is not None:
        parts.append(f"{usage['prompt_tokens']} tokens in, {usage.get('completion_tokens')} out")
    cached = usage.get("cached_tokens")
    parts.append("cached tokens not reported" if cached is None else f"{cached} cached tokens")
    return ", ".join(parts)


def _conditions(answer: dict[str, Any]) -> list[str]:
    """What produced the numbers, and what was found of each picture."""
    known, request = answer.get("conditions") or {}, answer.get("request") or {}
    engine = " ".join(str(known[key]) for key in ("engine", "engine_version") if known.get(key))
    parts = [_literal(known[key]) for key in ("model", "adapter", "precision", "hardware") if known.get(key)]
    parts.insert(1 if known.get("model") else 0, _literal(engine))
    named = (("temperature", "temperature"), ("top_p", "top-p"), ("seed", "seed"))
    for key, name in named:
        value = known.get(key, request.get(key))
        if value is not None:
            parts.append(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}")
    if known.get("max_tokens") is not None:
        parts.append(f"max tokens {known['max_tokens']}")
    return [", ".join(filter(None, parts)), *(_sight(sight) for sight in answer.get("vision") or ())]


def _sight(sight: dict[str, Any]) -> str:
    expected, observed = sight.get("expected"), sight.get("observed")
    why = f": {_literal(sight['why'])}" if sight.get("why") else ""
    wanted = "" if expected is None else f", {expected} expected"
    if sight.get("state") == "equal":
        return f"{observed} image tokens{wanted} ✓"
    if sight.get("state") == "different":
        return f"✗ {'image tokens differ' if observed is None else f'{observed} image tokens'}{wanted}{why}"
    return f"image tokens not verifiable{wanted}{why}"


def _literal(text: object) -> str:
    """One line that Markdown shows as it is: no HTML, no emphasis, no links."""
    return re.sub(r"([\\`*_<>\[\]&#|~])", r"\\\1", one_line(text))
