"""Which adapter answers in this conversation: chosen from a list or by `/adapter`, checked before it is used."""

from __future__ import annotations

import asyncio

from vlmconsole.errors import LabError
from vlmconsole.screens.chat.both import ChatBoth
from vlmconsole.screens.chat.composer import FAULT
from vlmconsole.text.plain import one_line

COMMAND = "/adapter"
OTHER_BASE = "--other-base"
NONE = "none"


class ChatAdapter(ChatBoth):
    """Keeps the adapter's name with the conversation; None of it asks the server anything."""

    async def command(self, text: str) -> bool:
        """`/adapter NAME`, `/adapter none`, or `/adapter` for the list."""
        word, _, rest = text.partition(" ")
        if word != COMMAND:
            return await super().command(text)
        self.composer.question.gone(text)
        names = rest.split()
        other_base = OTHER_BASE in names
        name = " ".join(part for part in names if part != OTHER_BASE)
        if name:
            await self._use(name, other_base)
        else:
            self.action_adapter()
        return True

    def action_adapter(self) -> None:
        """a: the lab's adapters, and none; what does not fit the server's model is refused when it is chosen."""
        from vlmconsole.screens.widgets.dialogs import Choose
        from vlmconsole.training.adapters.store import list_adapters

        options = [(NONE, NONE, "the base alone")]
        for adapter in list_adapters(self.console.lab.places):
            origin = adapter.provenance
            note = f"{origin.kind} on {origin.base}, {origin.precision}" if origin else "does not say its base"
            options.append((adapter.name, one_line(adapter.name, 60), one_line(note, 60)))

        async def chosen(name: str | None) -> None:
            if name is not None:
                await self._use(name, False)

        self.app.push_screen(Choose("Which adapter answers", options), chosen)

    async def _use(self, name: str, other_base: bool) -> None:
        """Check the adapter against the server's model and keep it for this conversation; else say why not."""
        link = self.console.link
        if fault := self._fault():
            self.composer.notice(fault, "$warning", about=FAULT)
            return
        assert link is not None
        self.composer.notice(f"looking at adapter {one_line(name, 80)}…")
        try:
            found = await asyncio.to_thread(link.adapter, name, other_base)
        except (LabError, OSError) as error:
            hint = getattr(error, "hint", "")
            self.composer.notice(one_line(f"{error}{f': {hint}' if hint else ''}", 300), "$error")
            return
        sampling = {k: v for k, v in self.sampling.items() if k not in ("adapter", "other_base")}
        if found is not None:
            sampling |= {"adapter": found.name, **({"other_base": True} if other_base else {})}
        self.keep_settings(sampling=sampling)
        self.show_server()
        said = "the base alone answers from now on"
        if found is not None:
            sha = f" ({found.sha256[:12]}…)" if found.sha256 else ""
            said = f"{found.name}{sha} answers from now on" + "".join(f"; {note}" for note in found.notes)
        self.composer.notice(one_line(said, 300))
