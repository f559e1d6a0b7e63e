"""How the open conversation is asked, as a person sets it: server, adapter, sampling, and how much of it is sent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from vlmconsole.chats.sampling import checked_sampling
from vlmconsole.errors import LabError, refusal
from vlmconsole.screens.chat.hints import FAULT
from vlmconsole.text.counts import many
from vlmconsole.text.plain import one_line

if TYPE_CHECKING:
    from vlmconsole.screens.chat.screen import ChatScreen

OTHER_BASE = "--other-base"
NONE, ALL = "none", "all"


def set_sampling(screen: ChatScreen) -> None:
    """A form: system prompt, temperature, longest answer, seed and top-p of this conversation."""
    from vlmconsole.screens.widgets.dialogs import Form

    conversation = screen.conversation
    sampling, asked = conversation.sampling, conversation.asked()
    fields = (
        ("system", "system prompt", conversation.system, "none"),
        ("temperature", "temperature", f"{asked['temperature']:g}", "0 = greedy"),
        ("max_tokens", "max tokens", str(asked["max_tokens"]), "tokens"),
        ("seed", "seed", _typed(sampling.seed), "server default"),
        ("top_p", "top-p", _typed(sampling.top_p), "server default"),
    )

    def keep(values: dict[str, str] | None) -> None:
        if values is None:
            return
        changed = replace(conversation.sampling, **checked_sampling(values)[0])
        conversation.set(system=values["system"].strip(), sampling=changed)
        screen.composer.count_soon()
        screen.show_why()

    form = Form("Conversation settings", fields, lambda values: checked_sampling(values)[1])
    screen.app.push_screen(form, keep)


def _typed(value: float | None) -> str:
    """A setting as one would type it; nothing for one that is not set."""
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def choose_adapter(screen: ChatScreen) -> None:
    """The lab's adapters, and none; what does not fit the server's model is refused when it is chosen."""
    from vlmconsole.screens.widgets.dialogs import Choose
    from vlmconsole.training.adapters.store import list_adapters

    options = [(NONE, NONE, "base model")]
    for adapter in list_adapters(screen.console.lab.places):
        origin = adapter.provenance
        note = f"{origin.kind} on {origin.base}, {origin.precision}" if origin else "base model unknown"
        options.append((adapter.name, one_line(adapter.name, 60), one_line(note, 60)))

    async def chosen(name: str | None) -> None:
        if name is not None:
            await use_adapter(screen, name)

    screen.app.push_screen(Choose("Choose an adapter", options), chosen)


async def adapter_command(screen: ChatScreen, words: str) -> None:
    """`/adapter NAME`, `/adapter none`, or `/adapter` for the list."""
    names = words.split()
    name = " ".join(part for part in names if part != OTHER_BASE)
    if name:
        await use_adapter(screen, name, other_base=OTHER_BASE in names)
    else:
        choose_adapter(screen)


async def use_adapter(screen: ChatScreen, name: str, *, other_base: bool = False) -> None:
    """Check the adapter against the server's model and let it answer in this conversation; else say why not."""
    link, hints, conversation = screen.console.link, screen.composer.hints, screen.conversation
    if fault := screen.asker.fault:
        hints.notice(fault, "$warning", about=FAULT)
        return
    assert link is not None
    hints.notice(f"checking adapter {one_line(name, 80)}…")
    try:
        adapter = await asyncio.to_thread(link.adapter, name, other_base)
    except (LabError, OSError) as error:
        hints.notice(one_line(refusal(error), 300), "$error")
        return
    chosen = adapter.name if adapter is not None else ""
    sampling = replace(conversation.sampling, adapter=chosen, other_base=bool(chosen) and other_base)
    conversation.set(sampling=sampling)
    screen.show_server()
    message = "base model now answering"
    if adapter is not None:
        sha = f" ({adapter.sha256[:12]}…)" if adapter.sha256 else ""
        message = f"{adapter.name}{sha} now answering" + "".join(f"; {note}" for note in adapter.notes)
    hints.notice(one_line(message, 300))


async def send_recent(screen: ChatScreen, words: str) -> None:
    """`/recent` for what fits, `/recent N` for the last N questions, `/recent all` for everything again.

    A conversation that has outgrown its server's context goes on with its newest turns, and every answer says so.
    Nothing is left out unasked, nothing deleted.
    """
    conversation, composer = screen.conversation, screen.composer
    hints, asked = composer.hints, len(conversation.questions())
    if conversation.chat is None or not asked:
        hints.notice("no earlier questions yet", "$warning")
        return
    count: int | None
    if words == ALL:
        count = asked
    elif words.isdecimal() and len(words) < 7:
        count = min(int(words), asked)
    elif words:
        hints.notice(f"use /recent, /recent N or /recent {ALL}, not {one_line(words, 40)}", "$warning")
        return
    else:
        hints.notice("counting what fits…")
        count = await screen.budgeter.most_that_fit(composer.question.text, screen.attachments.pictures)
    if count is None:
        hints.notice("cannot tell what fits · /recent N sends the last N questions", "$warning")
        return
    conversation.send_newest(count)
    composer.count_soon()
    if count == asked:
        hints.notice("sending the whole conversation")
        return
    message = "sending no earlier turns"
    if count:
        message = f"sending the last {count} of {many(asked, 'question')} with their answers"
    hints.notice(f"{message} · /recent {ALL} sends everything")


def choose_server(screen: ChatScreen) -> None:
    """Another server answers from now on."""
    from vlmconsole.screens.widgets.dialogs import Choose

    console, conversation = screen.console, screen.conversation
    options = [(p.name, p.name, p.title or p.base_url) for p in console.profiles().values()]

    def chosen(name: str | None) -> None:
        if name is not None:
            console.choose_server(name)
            if conversation.chat is not None:
                conversation.store.set_chat(conversation.chat.id, server=name)

    current = console.link.profile.name if console.link is not None else console.lab.settings.server
    screen.app.push_screen(Choose("Choose a server", options, current), chosen)
