"""A conversation of thousands of messages beside one of ten: first frame with it open, memory, a question's way.

    python tests/tools/benchmarks/chat_long.py [MESSAGES] [--squared]

Each console runs in a process of its own against a small local server. Prints one line a size: seconds until the
conversation is shown, seconds from Enter to the answer, peak memory of the process (MiB), size of the database.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "screens" / "chat"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from chat_server import Say, chat_server, profile_file
from test_chat_long import long_chat
from test_chat_screen import answered, ask, until

from vlmconsole.app import ConsoleApp
from vlmconsole.lab import Lab


async def measure(messages: int, squared: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o700)
        async with chat_server(Say(["At once."])) as server:
            server.context = 1_000_000
            profile_file(home, server.port, context=1_000_000)
            long_chat(home, messages, squared=squared).close()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            begun = time.monotonic()
            app = ConsoleApp(Lab.open(home))
            async with app.run_test(size=(120, 40)) as pilot:
                screen = app.screen
                await until(lambda: screen.furnished and len(screen.transcript.messages) == messages)  # type: ignore[attr-defined]
                await pilot.pause()
                shown = time.monotonic() - begun
                await until(lambda: app.link is not None and app.link.view.state == "ready")
                asked = time.monotonic()
                await ask(pilot, screen, "And now?")  # type: ignore[arg-type]
                await until(lambda: bool(server.requests) and answered(screen))  # type: ignore[arg-type]
                took = time.monotonic() - asked
            size = sum(path.stat().st_size for path in home.glob("chats.sqlite*"))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{messages:5d} messages: shown {shown:.2f} s · answered {took:.2f} s · "
            f"memory {peak / 1024:.0f} MiB (before the console {before / 1024:.0f}) · database {size / 1e6:.1f} MB"
        )


def main() -> None:
    words = sys.argv[1:]
    if "--one" in words:
        asyncio.run(measure(int(words[1]), "--squared" in words))
        return
    most = next((word for word in words if word.isdigit()), "5000")
    for messages in ("10", most):
        more = ["--squared"] if "--squared" in words else []
        subprocess.run([sys.executable, __file__, "--one", messages, *more], check=True)


if __name__ == "__main__":
    main()
