"""Server profiles: what a server is, where it answers, how it is started. TOML in, checked values out.

Presets come with the package; a file of the same name in the lab home's `servers` folder overrides single keys, a new
name adds a profile. A profile never holds a secret: only the name of the variable or file that does.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import tomlkit
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from vlmconsole.engines.access import Access
from vlmconsole.engines.registry import GENERIC, engine_names, find_engine
from vlmconsole.errors import LabError
from vlmconsole.runs.folder import write_atomic
from vlmconsole.system.reading import UnreadableError, read_text, toml_table
from vlmconsole.system.redaction import redact as redact
from vlmconsole.system.redaction import remember
from vlmconsole.system.typed_paths import named
from vlmconsole.text.settings_errors import explain_all
from vlmconsole.vision.tokens import ProcessorError, ProcessorSettings

Route = Literal["loopback", "tunnel", "network"]
ASSET = "asset:"
GIVEN = "given"
"""The name of a profile made of an address alone; nobody typed it, so messages say the address."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SSH_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(@[A-Za-z0-9_][A-Za-z0-9_.-]*)?(:\d{1,5})?")


class ProfileError(LabError):
    """A profile that cannot be used; one line that names the file, the key and what is allowed."""


class Launch(BaseModel):
    """How the server is started on this machine.

    argv: the command, word by word, never through a shell. `{port}` is replaced by a free loopback port, `{model}` by
    the model. Empty for an engine whose line the lab writes (mlx); there `extra` adds server arguments.
    interpreter: the Python that runs it: "" this one, "env:NAME" one made by `vlmconsole env make`, else a path. It
    takes the place of a leading `python` in argv.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    argv: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    interpreter: str = ""
    env: dict[str, str] = {}
    folder: str = ""
    """Working folder of the command; "" the lab's state folder, so that nothing lying about is imported."""
    start_timeout_s: float = Field(600.0, gt=0)
    stop_grace_s: float = Field(10.0, ge=0)

    @property
    def words(self) -> tuple[str, ...]:
        """Every word of its launch line that the profile holds."""
        return (*self.argv, *self.extra)


class ServerProfile(BaseModel):
    """One server. Tokens, seconds; `running_limit` is B, how many requests the server runs at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    engine: str
    """One of `engines.registry.engine_names`."""
    base_url: str = ""
    """Where it answers. Empty for a server that is started here on a free port."""
    model: str = ""
    """Model folder, Hugging Face name, or `asset:NAME` for a model that comes with the package."""
    served_model: str = ""
    """The model name to send; empty: what the server's /v1/models says."""
    api_key_env: str = ""
    api_key_file: str = ""
    launch: Launch | None = None
    running_limit: int | None = Field(None, ge=1)
    prefix_cache: bool | None = None
    precision: str = ""
    hardware: str = ""
    processor: ProcessorSettings | None = None
    picture_wrapper_tokens: int = Field(2, ge=0)
    """Tokens that the chat template puts around each picture (Qwen: vision start and end)."""
    context: int | None = Field(None, ge=1)
    ssh_host: str = ""
    trust_remote_code: bool = False
    """Whether a program in the model's folder may run when it is loaded (see models.programs)."""
    price_per_hour: float | None = Field(None, ge=0)
    currency: str = ""
    notes: str = ""
    _access: Access = PrivateAttr(default_factory=Access)
    """Found with its server, never written down."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("small letters, digits, '.', '_' and '-' only, beginning with a letter or digit")
        return value

    @field_validator("engine")
    @classmethod
    def _check_engine(cls, value: str) -> str:
        if value not in (known := engine_names()):
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    @field_validator("base_url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        if not value:
            return value
        try:
            parts = urlsplit(value)
            host, _ = parts.hostname, parts.port
        except ValueError:
            raise ValueError("not a URL; an example: http://127.0.0.1:30000") from None
        if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in value):
            raise ValueError("must be http://HOST[:PORT] or https://HOST[:PORT], with an optional path")
        if parts.username or parts.password:
            raise ValueError("must not hold a password; use api_key_env or api_key_file")
        if parts.query or parts.fragment:
            raise ValueError("must not have a '?' or '#' part")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _check_variable(cls, value: str) -> str:
        if value and not _VARIABLE.fullmatch(value):
            raise ValueError("must be the NAME of an environment variable (never the key itself), e.g. OPENAI_API_KEY")
        return value

    @field_validator("ssh_host")
    @classmethod
    def _check_ssh(cls, value: str) -> str:
        if value and not _SSH_HOST.fullmatch(value):
            raise ValueError("must be HOST, USER@HOST or an ssh alias: letters, digits, '.', '_', '-'; no leading '-'")
        return value

    def at(self, base_url: str, served_model: str = "", access: Access | None = None) -> ServerProfile:
        """Return the same profile, answered at `base_url` (the port that a started server got) by its `access`."""
        moved = self.model_copy(
            update={"base_url": base_url.rstrip("/"), "served_model": served_model or self.served_model}
        )
        if access is not None:
            moved._access = access
        return moved

    def with_env(self, more: dict[str, str]) -> ServerProfile:
        """Return the same profile, its server started with more variables; as it is where nobody here starts it."""
        if self.launch is None:
            return self
        launch = self.launch.model_copy(update={"env": {**self.launch.env, **more}})
        return self.model_copy(update={"launch": launch})

    @property
    def access(self) -> Access:
        """Who must hold its port, and the key of this start; empty where a server is only given by its address."""
        return self._access

    def url(self, path: str) -> str:
        """Return the address of an endpoint: `/v1/…` is added once, whether base_url ends with a version or not."""
        base = self.base_url
        if path.startswith("/v1/") and re.search(r"/v\d+$", base):
            return base + path.removeprefix("/v1")
        if not path.startswith("/v1/"):
            base = re.sub(r"/v\d+$", "", base)
        return base + path

    @property
    def called(self) -> str:
        """What messages about it call it."""
        return self.base_url if self.name == GIVEN else f"server {self.name}"

    @property
    def loopback(self) -> bool:
        """True when base_url names a loopback interface: this machine's, or that of its SSH host."""
        return is_loopback(urlsplit(self.base_url).hostname or "")

    @property
    def route(self) -> Route:
        """How its server is reached, as conditions name it."""
        return "tunnel" if self.ssh_host else "loopback" if self.loopback else "network"

    def warnings(self) -> list[str]:
        """Return what is unsafe about this profile though usable, one line each."""
        warnings = []
        if self.base_url.startswith("http://") and not self.loopback:
            what = "the key and every image" if self.names_key else "every image and question"
            warnings.append(f"{self.name}: {what} go to {self.base_url} unencrypted; use https or an SSH tunnel")
        start = self.launch
        if start is not None and start.interpreter and start.argv[:1] not in ((), ("python",), ("python3",)):
            warnings.append(f"{self.name}: launch.interpreter is not used: launch.argv does not begin with python")
        return warnings

    def model_dir(self) -> Path | None:
        """Return the model's folder on this machine, or None when it is not here (or not a model folder)."""
        folder = model_folder(self.model)
        return folder if self.model and (folder / "config.json").is_file() else None

    def processor_settings(self) -> ProcessorSettings | None:
        """Return what decides the visual tokens: the profile's own, else the model folder's; None when unknown."""
        if self.processor is not None:
            return self.processor
        folder = self.model_dir()
        if folder is None:
            return None
        try:
            return ProcessorSettings.from_model_dir(folder, find_engine(self.engine).picture_reader)
        except ProcessorError:
            return None

    @property
    def names_key(self) -> bool:
        """Whether it names a key of its own."""
        return bool(self.api_key_env or self.api_key_file)

    def api_key(self) -> str | None:
        """Return the key, read anew each time and kept nowhere. Raises ProfileError when it is named but cannot be
        used.
        """
        if self.api_key_file:
            return _checked_key(read_key_file(named(self.api_key_file)), f"file {self.api_key_file}")
        if self.api_key_env:
            value = os.environ.get(self.api_key_env, "")
            if not value:
                raise ProfileError(f"profile {self.name} wants its key in ${self.api_key_env}, which is not set")
            return _checked_key(value, f"${self.api_key_env}")
        if self._access.key_file is not None:
            return _checked_key(read_key_file(self._access.key_file), f"file {self._access.key_file}")
        return None


def is_loopback(host: str) -> bool:
    """True for localhost and for loopback addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key_file(path: Path) -> str:
    """Return the key in a file that only its owner can read. Raises ProfileError for looser modes."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o077:
                raise ProfileError(f"{path} can be read by others (mode {mode & 0o777:03o}); run: chmod 600 {path}")
            return file.read(64 * 1024).decode("utf-8", "replace")
    except OSError as error:
        raise ProfileError(f"the key file {path} cannot be read: {error.strerror}") from None


def _checked_key(value: str, where: str) -> str:
    key = value.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ProfileError(f"the key in {where} is empty or holds spaces, line breaks or other odd characters")
    return remember(key)


def no_such_profile(name: str, known: Iterable[str]) -> ProfileError:
    """Return what the commands and the console say when a profile is named that is not there."""
    return ProfileError(f"There is no server profile called {name!r}.", f"Known: {', '.join(sorted(known))}").named()


def load_profiles(
    folder: Path | None, builtin: bool = True, problems: list[ProfileError] | None = None
) -> dict[str, ServerProfile]:
    """Return every profile by name: the package's presets, then those of `folder`, key by key on top.

    A bad file raises ProfileError, or, when `problems` is given, is added there and left out.
    """
    raw: dict[str, tuple[dict[str, Any], str]] = {}
    profiles: dict[str, ServerProfile] = {}
    sources: list[tuple[str, str, Any]] = []
    if builtin:
        presets = resources.files("vlmconsole.presets") / "servers"
        sources += [(e.name, f"preset {e.name}", e) for e in sorted(presets.iterdir(), key=lambda e: e.name)]
    if folder is not None and folder.is_dir():
        sources += [(e.name, str(e), e) for e in sorted(folder.iterdir(), key=lambda e: e.name)]
    for file_name, where, source in sources:
        name = file_name.removesuffix(".toml")
        if name == file_name or name.startswith("."):
            continue
        try:
            values = _read_toml(source, where)
            if values.get("name", name) != name:
                raise ProfileError(f"{where}: name must be {name!r}, as the file is called")
            merged = _laid_over(raw[name][0], values) if name in raw else values
            profiles[name] = make_profile({**merged, "name": name}, where)
            raw[name] = (merged, where)
        except ProfileError as error:
            if problems is None:
                raise
            problems.append(error)
    return profiles


def profiles_for(name: str, folder: Path) -> dict[str, ServerProfile]:
    """Return every usable profile, for one who wants that called `name`: raises ProfileError where it is its file that
    is bad.

    Another bad file stands in nobody's way: what lists the profiles tells of it.
    """
    problems: list[ProfileError] = []
    profiles = load_profiles(folder, problems=problems)
    for problem in problems:
        if problem.message.startswith(str(folder / f"{name}.toml")):
            raise problem
    return profiles


def find_profile(name: str, folder: Path) -> ServerProfile:
    """Return the profile that a job calls `name`. Raises ProfileError with the names that there are."""
    profiles = profiles_for(name, folder)
    if name not in profiles:
        known = ", ".join(sorted(profiles))
        raise ProfileError(
            f"no server profile is called “{name}”", f"there are: {known}", code="profile-missing"
        ).named()
    return profiles[name]


def make_profile(values: dict[str, Any], where: str = "profile") -> ServerProfile:
    """Return a checked profile. Raises ProfileError naming the key and what is allowed; values are not repeated in it.

    A model without an address is started here, as the presets are, by an engine whose line the lab writes.
    """
    bare = values.get("model") and not values.get("base_url") and "launch" not in values
    if bare and values.get("engine") in engine_names() and find_engine(values["engine"]).writes_line:
        values = {"launch": {}, **values}
    try:
        return ServerProfile.model_validate(values)
    except ValidationError as error:
        wrong = explain_all(error.errors(include_input=False), ServerProfile)
        raise ProfileError(f"{where}: {wrong}", code="setting-invalid") from None


def given_profile(
    base_url: str, served_model: str, *, name: str = GIVEN, api_key_env: str = "", where: str = ""
) -> ServerProfile:
    """Return the profile of a server of which only the address is known. Raises ProfileError, which begins with
    `where`.
    """
    values = {"name": name, "engine": GENERIC, "base_url": base_url, "served_model": served_model}
    return make_profile(values | {"api_key_env": api_key_env}, where)


def save_profile(folder: Path, profile: ServerProfile) -> Path:
    """Writes the profile (only what differs from the defaults) as TOML; returns the file."""
    path = folder / f"{profile.name}.toml"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomic(path, profile_toml(profile))
    return path


def profile_toml(profile: ServerProfile) -> str:
    """Return the profile as a TOML document, without its name and what is as by default."""
    return tomlkit.dumps(profile.model_dump(mode="json", exclude_defaults=True, exclude={"name"}))


def _read_toml(source: Any, where: str) -> dict[str, Any]:
    try:
        text = read_text(source) if isinstance(source, Path) else source.read_text(encoding="utf-8")
        return toml_table(text, where)
    except UnreadableError as error:
        raise ProfileError(error.message, code=error.code) from None


def _laid_over(preset: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A file over the preset of its name; what that says of its model is not true of another one."""
    other = own.get("model", preset.get("model")) != preset.get("model")
    said = ("title", "precision", "notes") if other else ()
    return _merge({key: value for key, value in preset.items() if key not in said}, own)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def model_folder(name: str) -> Path:
    """Return where the model `name` would be here: a folder, `asset:NAME`, or a Hugging Face name that was
    downloaded.
    """
    if name.startswith(ASSET):
        return Path(str(resources.files("vlmconsole.assets") / name.removeprefix(ASSET)))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not Path(name).exists():
        return _hub_snapshot(name)
    return named(name)


def _hub_snapshot(name: str) -> Path:
    """Where Hugging Face's cache keeps a model, whether it is there or not."""
    home = named(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")) / f"models--{name.replace('/', '--')}"
    try:
        return hub / "snapshots" / (hub / "refs" / "main").read_text().strip()
    except OSError:
        return hub
