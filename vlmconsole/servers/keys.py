"""The key of a server that we start: random at each start, in a file of its owner's, given by environment alone.

Never in a launch line (every user of a machine reads those), a log, or a run folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path

from vlmconsole.engines import sglang_server
from vlmconsole.engines.effective import flags_of
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.runs.folder import write_atomic

VARIABLES = {"mlx": "MLX_VLM_SERVER_API_KEY", "vllm": "VLLM_API_KEY", "sglang": sglang_server.KEY_VARIABLE}
"""Where each engine reads its key. A generic server has no place that we know of."""
_SGLANG = ("-m", "sglang.launch_server")


def takes_key(profile: ServerProfile, words: Sequence[str]) -> bool:
    """Whether the launch line starts a server that we can give a key to, and does not name one itself."""
    if profile.engine not in VARIABLES or "api-key" in flags_of(words):
        return False
    # SGLang takes its key as a flag only: its own start line is run by our wrapper, another one stays as it is.
    return profile.engine != "sglang" or tuple(words[1:3]) == _SGLANG


def lacks_key(profile: ServerProfile, words: Sequence[str]) -> bool:
    """Whether a server of that running line asks for no key though its engine takes one."""
    own = profile.api_key_env or profile.api_key_file
    return profile.engine in VARIABLES and not own and "api-key" not in flags_of(words)


def new_key(folder: Path, name: str) -> tuple[str, Path]:
    """A key and the file that holds it, of a name that no other start has had; those of earlier starts go."""
    forget(folder, name)
    key, path = secrets.token_urlsafe(32), folder / f"{name}.{secrets.token_hex(4)}.key"
    write_atomic(path, key + "\n")
    return key, path


def forget(folder: Path, name: str) -> None:
    """Remove the keys of a server's earlier starts."""
    for old in folder.glob(f"{name}.*.key"):
        if len(old.name) == len(f"{name}.01234567.key"):  # a server `a` has no say in one that is called `a.b`
            old.unlink(missing_ok=True)


def keyed_line(words: Sequence[str], *, far: bool = False) -> list[str]:
    """SGLang's start line through the wrapper that reads the key from the environment; every other line as it is.

    far: on another machine, which has no file of ours: the wrapper's text is the line's.
    """
    if tuple(words[1:3]) != _SGLANG:
        return list(words)
    source = Path(sglang_server.__file__)
    wrapper = ["-c", source.read_text("utf-8")] if far else [str(source)]
    return [words[0], *wrapper, *words[3:]]
