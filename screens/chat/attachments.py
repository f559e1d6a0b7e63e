"""Pictures on their way into a question: files, addresses, the clipboard. Each is checked before it is attached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the first frame does not wait for the image library
    from vlmconsole.vision.images import Picture

#: How often the inbox is looked at while something is expected (seconds). Never otherwise.
INBOX_PERIOD = 1.0


class Attachments:
    """The pictures that wait to be sent, in order. Files are read in threads; what cannot be sent is not attached."""

    def __init__(self, background: str) -> None:
        """`background`: the colour that a transparent picture is laid over."""
        self._background = background
        self.pictures: list[Picture] = []

    async def open(self, paths: Sequence[Path]) -> list[str]:
        """Attach files; returns one line for each that cannot be sent. A bad one never keeps the good ones out."""
        pictures, errors = await open_pictures(paths, background=self._background)
        self.pictures += pictures
        return errors

    async def fetch(self, url: str, *, allow_private: bool) -> None:
        """Attach a picture of the web. Raises PictureError."""
        from vlmconsole.vision.fetch import fetch_picture

        fetched = await fetch_picture(url, allow_private=allow_private)
        await self._add(fetched.data, fetched.name)

    async def paste(self) -> None:
        """Attach the picture in this desktop's clipboard. Raises PictureError."""
        from vlmconsole.screens.chat.clipboard import clipboard_picture

        await self._add(await asyncio.to_thread(clipboard_picture), "clipboard.png")

    async def _add(self, data: bytes, name: str) -> None:
        from vlmconsole.vision.images import open_picture

        opening = partial(open_picture, data, name=name, background=self._background)
        self.pictures.append(await asyncio.to_thread(opening))

    async def shrink_last(self, width: int, height: int) -> None:
        """Resize the last picture; the change is one of its `changes`."""
        self.pictures[-1] = await asyncio.to_thread(self.pictures[-1].resized_to, width, height)

    def remove(self, index: int) -> None:
        """Take one away; one that is gone already is passed over."""
        del self.pictures[index : index + 1]

    def take(self) -> list[Picture]:
        """Return all of them; from now on none is attached."""
        taken, self.pictures = self.pictures, []
        return taken

    def put_back(self, pictures: Sequence[Picture]) -> None:
        """Attach pictures that were taken, before those that came since."""
        self.pictures = [*pictures, *self.pictures]


async def open_pictures(paths: Sequence[Path], *, background: str) -> tuple[list[Picture], list[str]]:
    """(the pictures that may be sent, one line for each file that may not), read in a thread."""
    return await asyncio.to_thread(_open_pictures, paths, background)


def _open_pictures(paths: Sequence[Path], background: str) -> tuple[list[Picture], list[str]]:
    from vlmconsole.vision.images import PictureError, open_picture

    pictures: list[Picture] = []
    errors: list[str] = []
    for path in paths:
        try:
            pictures.append(open_picture(path, background=background))
        except PictureError as error:
            errors.append(str(error))
    return pictures, errors


async def await_in_inbox(inbox: Path, names: set[str], arrived: Callable[[Path], None]) -> None:
    """Watch `inbox` until a file of each name has come; a file counts once its size has stopped growing.

    scp writes in place, so a file seen once may be half a picture: it must look the same twice.
    """
    inbox.mkdir(parents=True, exist_ok=True, mode=0o700)
    before: dict[str, tuple[int, int]] = {}
    waiting = set(names)
    while waiting:
        for name in sorted(waiting):
            try:
                state = (inbox / name).stat()
            except OSError:
                continue
            now = (state.st_size, state.st_mtime_ns)
            if state.st_size and before.get(name) == now:
                waiting.discard(name)
                arrived(inbox / name)
            before[name] = now
        if waiting:
            await asyncio.sleep(INBOX_PERIOD)
