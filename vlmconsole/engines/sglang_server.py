"""Starts SGLang's server with a key from the environment. Runs under the *server's* interpreter, by its file name.

SGLang takes its key as a flag only, and every user of a machine can read another's command lines. Here the flag is
added inside the process; SGLang's own log line of all its arguments is kept from naming it.
"""

import sys

if sys.path and sys.path[0].rstrip("/").endswith("engines"):
    # Started by file name: this folder holds `profile.py`, which must not stand in for the standard library's.
    del sys.path[0]

import os
import runpy
from importlib import import_module
from typing import Any

KEY_VARIABLE = "VLMCONSOLE_SGLANG_KEY"


def hide(arguments: Any, key: str) -> None:
    """Make the text of the arguments' class say ••• where the key stands."""
    plain = arguments.__repr__

    def told(self: Any) -> str:
        return str(plain(self)).replace(key, "•••")

    arguments.__repr__ = told
    arguments.__str__ = told


def main() -> None:
    """Run `python -m sglang.launch_server` with the words of this line, and the key."""
    key = os.environ.pop(KEY_VARIABLE, "")
    if key:
        hide(import_module("sglang.srt.server_args").ServerArgs, key)
        sys.argv += ["--api-key", key]
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
