"""What the lab knows of one engine: how it is started, asked, read back and measured.

A module of `engines.supported` holds one object, `ENGINE`. This class is a server that speaks OpenAI's protocol and
tells its models; a subclass names what is different.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import httpx

from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import SAMPLING, EffectiveSettings, Flushed
from vlmconsole.engines.http import EngineError, request
from vlmconsole.engines.interpreters import interpreter_path
from vlmconsole.engines.launch_lines import filled, flags_of, refuse_untrusted
from vlmconsole.engines.metrics import MetricTable
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.runs.places import Places
from vlmconsole.vision.tokens import Reader

AdapterRule = Literal["none", "by name", "by folder"]
"""How a request says which adapter is to answer. "by name": the server keeps adapters by their names, and may answer
with the base unasked. "by folder": it loads the folder that the request names, or refuses."""


class Engine(ABC):
    """One engine; without state, so one object serves every server of it.

    In methods, `client` and `profile` are a server that answers: the profile with its address and access.
    """

    name: ClassVar[str]
    """The word in profiles, and the name of its module."""
    label: ClassVar[str]
    """What conditions and screens call it."""
    generic: ClassVar[bool] = False
    """Whether it stands for any server: nothing is known of its launch line, its model's folder or its adapters."""

    # --- starting it
    package: ClassVar[str] = ""
    """Its package on the index, whose `--help` names the launch flags; "": they are not checked."""
    help_flags: ClassVar[Sequence[str]] = ("--help",)
    """The questions for all its launch flags, in the order in which they are tried."""
    key_variable: ClassVar[str] = ""
    """The environment variable that it reads its key from; "": it is started without one."""
    writes_line: ClassVar[bool] = False
    """Whether the lab writes the launch line from the profile's keys: `argv` stays empty, `extra` adds to it."""
    needs_metal: ClassVar[bool] = False
    """Whether its only GPUs are Apple's, so that it runs on the processor elsewhere."""
    phases: ClassVar[Sequence[tuple[str, str]]] = ()
    """(mark in its log, what a start is at from there on), for people."""
    limit_flag: ClassVar[str] = ""
    """The launch flag of the running limit B."""
    cache_flags: ClassVar[tuple[str, str]] = ("", "")
    """The launch flags that switch its prefix cache on and off; "" where it is so without a flag."""

    # --- asking it
    ready_path: ClassVar[str] = "/v1/models"
    """Answers 200 once the server is up, and costs it nothing."""
    warm_path: ClassVar[str] = ""
    """Answers 503 until it has warmed up, where it is ready before that; asking may cost a token."""
    server_header: ClassVar[str] = ""
    """How the HTTP header `server` of its answers begins, where that tells it from others."""
    request_fields: ClassVar[frozenset[str]] = SAMPLING
    """What its requests may carry besides the fields that every request has, and what it really honours."""
    adapter_rule: ClassVar[AdapterRule] = "none"
    template_variables: ClassVar[tuple[tuple[str, Any], ...]] = ()
    """What it hands the chat template besides the messages."""
    picture_reader: ClassVar[Reader] = "transformers"
    """Whose rules make visual tokens of a picture."""

    # --- measuring it
    metrics: ClassVar[MetricTable | None] = None
    picture_caches: ClassVar[Sequence[str]] = ()
    """Settings of its vision-feature and picture caches, as its launch flags or its read-back spell them."""

    # --- its launch line
    def command(self, profile: ServerProfile, places: Places, port: int) -> list[str]:
        """Return the words that start it on that port. Raises ProfileError, also for a model with programs of its
        own.
        """
        refuse_untrusted(profile)
        return self.words(profile, places, port)

    def words(self, profile: ServerProfile, places: Places, port: int) -> list[str]:
        """As `command`, whatever the model's folder holds: the profile's own words."""
        launch = profile.launch
        if launch is None or not launch.argv:
            raise ProfileError(
                f"profile {profile.name}: launch.argv is empty; it must be the words that start the server"
            )
        values = {"port": str(port), "model": str(profile.model_dir() or profile.model)}
        words = [filled(word, values) for word in launch.argv] + list(launch.extra)
        if words[0] in ("python", "python3"):
            words[0] = interpreter_path(launch.interpreter, places)
        return words

    def environment(self, profile: ServerProfile, places: Places) -> dict[str, str]:
        """Return what its environment gets on top of ours."""
        return {}

    def takes_key(self, words: Sequence[str]) -> bool:
        """Return whether a start with these words can be given a key, and does not name one itself."""
        return bool(self.key_variable) and "api-key" not in flags_of(words)

    def keyed(self, words: Sequence[str], *, far: bool = False) -> list[str]:
        """Return the words of a start that reads its key from the environment; never with the key.

        far: on another machine, which has no file of ours.
        """
        return list(words)

    def wanted(self, profile: ServerProfile) -> dict[str, str]:
        """Return what a profile asks for by launch-flag name, to stand beside what is read back."""
        if profile.launch is None:
            return {}
        model = str(profile.model_dir() or profile.model)
        asked = flags_of([filled(word, {"model": model}) for word in profile.launch.words])
        # Any free port is what such a launch line asks for.
        return {flag: value for flag, value in (asked | self.flags_of_keys(profile)).items() if value != "{port}"}

    def flags_of_keys(self, profile: ServerProfile) -> dict[str, str]:
        """Return what the profile's own keys ask for by launch-flag name, where the lab writes the launch line."""
        return {}

    def plain_flag(self, flag: str) -> str:
        """Return a launch flag as its help spells it."""
        return flag

    def is_its_own(self, front: Sequence[str]) -> bool:
        """Return whether a command (up to its first flag) starts the engine's package, and no wrapper of the user's
        own.
        """
        module = front[front.index("-m") + 1] if "-m" in front[:-1] else ""
        return module.startswith(self.package)

    def help_front(self, front: Sequence[str]) -> list[str]:
        """Return what is asked for the help: the command up to its first flag."""
        return list(front)

    def frozen_line(self, profile: ServerProfile) -> list[str]:
        """Return the launch line as the profile holds it, for what is frozen with its hash."""
        return list(profile.launch.words) if profile.launch is not None else []

    # --- a server of it
    @abstractmethod
    async def readback(self, client: httpx.AsyncClient, profile: ServerProfile) -> EffectiveSettings:
        """Return the settings in force; no value is made up for one that it does not tell. Raises EngineError."""

    async def flush(self, client: httpx.AsyncClient, profile: ServerProfile) -> Flushed:
        """Empty its prefix cache, and say whether it really did."""
        return Flushed(False, f"not flushed: no way is known ({self.label})")

    def own_name(self, profile: ServerProfile) -> str:
        """Return the model name to send, where the profile decides it without asking."""
        return profile.served_model

    def name_without_model(self, profile: ServerProfile) -> str:
        """Return the model name to send where the server has none in memory; "" if it cannot be known."""
        return profile.served_model

    def select_adapter(self, body: dict[str, Any], served: str, adapter: str | None) -> None:
        """Make a request's `body` name the adapter, or the bare base; `served` is the base's name.

        Raises EngineError where it cannot.
        """
        if adapter:
            raise EngineError(
                "no adapters are known of it: name the model that you want instead", code="adapter-unsupported"
            )

    async def make_ready(
        self, client: httpx.AsyncClient, profile: ServerProfile, served: str, adapter: SelectedAdapter | None
    ) -> None:
        """Open the connection, and have the adapter loaded: that time is no part of an answer's. Raises EngineError."""
        await request(client, profile, self.ready_path)

    def rules_for(self, settings: EffectiveSettings | None) -> Engine:
        """Return the engine by whose rules requests name an adapter: another one where the server says that it is
        that.
        """
        return self

    def held_output(self, profile: ServerProfile) -> dict[str, Any]:
        """Request fields that keep an answer going to its ceiling, where it knows no min_tokens."""
        return {}

    def block_size(self, settings: EffectiveSettings, fetch: Callable[[str], str]) -> int | None:
        """Tokens in the smallest part that the prefix cache shares; None where it does not tell.

        fetch: the text at a path of the server. May raise ValueError, or what `fetch` raises.
        """
        return None
