"""The lab: where things are kept and what the user has set. One door for screens and commands to the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import platformdirs

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places
from vlmconsole.system.file_system import check_locks
from vlmconsole.system.privacy import close_home
from vlmconsole.system.reading import UnreadableError, read_toml
from vlmconsole.system.typed_paths import named

ENV_PREFIX = "VLMCONSOLE_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class SettingsError(LabError):
    """The settings file or an override cannot be used; the message names the file, the key and what is allowed."""

    exit_status = 2


def _setting(default: Any, help: str, *allowed: str, least: float | None = None, most: float | None = None) -> Any:
    return field(default=default, metadata={"help": help, "allowed": allowed, "least": least, "most": most})


@dataclass(frozen=True)
class LabSettings:
    """What the user has set: defaults, then config.toml, then `VLMCONSOLE_*` of the environment (which wins).

    Checked by hand: these are the only values read before the first frame, and pydantic (with its settings) would
    add a third to the console's cold start.
    """

    server: str = _setting("demo", "Server profile used where none is named")
    pictures: Literal["auto", "kitty", "sixel", "halfcell", "off"] = _setting(
        "auto", "How images are drawn; auto never probes inside tmux", "auto", "kitty", "sixel", "halfcell", "off"
    )
    theme: Literal["dark", "light"] = _setting("dark", "Colours of the console", "dark", "light")
    slow_link: bool = _setting(False, "Fewer repaints and no animation, for slow SSH links")
    bell: bool = _setting(False, "Ring the terminal bell when a job ends")
    max_tokens: int = _setting(1024, "Max tokens of an answer", least=1)
    temperature: float = _setting(0.0, "Sampling temperature; 0 = greedy", least=0.0, most=2.0)
    trusted_programs: str = _setting("", "Modules and programs that presets may name besides the installed ones: a,b")
    background: str = _setting("white", "Background of transparent images")
    #: Checked by the console, which knows the acts: a wrong one costs a key, not the start.
    keys: Mapping[str, str] = field(default_factory=dict, metadata={"help": "act's id → its keys, comma-separated"})


@dataclass(frozen=True)
class Lab:
    """An opened lab home: its places on disk and its settings. Opening makes the folders, and starts nothing."""

    places: Places
    settings: LabSettings
    fault: str = ""  # why the usual settings hold in the place of its own
    note: str = ""  # what was put right when it was opened, for people

    @classmethod
    def open(cls, home: Path | None = None, *, lenient: bool = False) -> Lab:
        """Open the lab of `home`, else of `VLMCONSOLE_HOME`, else of the platform's data and config folders.

        Raises LabError when the settings or the home cannot be used, or the home is another's; `lenient`: settings
        that cannot be used are its `fault`, for the one command that tells what is wrong with everything.
        """
        given = home or (Path(os.environ["VLMCONSOLE_HOME"]) if os.environ.get("VLMCONSOLE_HOME") else None)
        if given is not None:
            data = named(given).resolve()
            config = data / "config.toml"
        else:
            data = Path(platformdirs.user_data_dir("vlmconsole", appauthor=False))
            config = Path(platformdirs.user_config_dir("vlmconsole", appauthor=False)) / "config.toml"
        places = Places(home=data, config=config)
        try:
            # Before anything is made in it: it may be another's.
            note = close_home(data, places.chats, places.queue) if data.exists() else ""
            places.ensure()
        except OSError as error:
            raise SettingsError(
                f"The lab home {data} cannot be made: {error.strerror}.",
                "Choose another with --home DIR or VLMCONSOLE_HOME.",
            ) from None
        check_locks(places.home, places.state)
        try:
            return cls(places, read_settings(config), note=note)
        except SettingsError as error:
            if not lenient:
                raise
            return cls(places, LabSettings(), error.message, note)


def read_settings(config: Path) -> LabSettings:
    """Settings from `config` (which may be missing) and the environment. Raises :class:`SettingsError`."""
    try:
        values: dict[str, Any] = read_toml(config)
    except UnreadableError as error:
        if not error.missing:
            raise SettingsError(error.message, code=error.code) from None
        values = {}
    keys = _keys(values.pop("keys", {}), config)
    known = {setting.name: setting for setting in fields(LabSettings) if setting.name != "keys"}
    overrides = {key: os.environ[ENV_PREFIX + key.upper()] for key in known if ENV_PREFIX + key.upper() in os.environ}
    for key in values.keys() - known.keys():
        raise SettingsError(f"{config} sets {key!r}, which is no setting. Known: {', '.join(known)}, [keys].")
    checked: dict[str, Any] = {}
    for key, value in {**values, **overrides}.items():
        source = f"the environment's {ENV_PREFIX}{key.upper()}" if key in overrides else str(config)
        checked[key] = _checked(known[key], value, source)
    return LabSettings(**checked, keys=keys)


def _keys(table: Any, config: Path) -> dict[str, str]:
    """The table `[keys]` as id → keys; `jobs.cancel = "X"` and `"jobs.cancel" = "X"` are the same to it."""

    def flat(part: Any, before: str) -> Iterator[tuple[str, str]]:
        if isinstance(part, dict):
            for name, value in part.items():
                yield from flat(value, f"{before}.{name}" if before else name)
        elif isinstance(part, str) and before:
            yield before, part
        else:
            where = f"keys.{before}" if before else "keys"
            raise SettingsError(f'{config} sets {where} to {part!r}; allowed: act = "key, key" below [keys].')

    return dict(flat(table, ""))


def _checked(setting: Field[Any], value: Any, source: str) -> Any:
    """`value` as the setting's own type, from TOML or from the text of the environment; SettingsError otherwise."""
    setting_text = f"{source} sets {setting.name} to {value!r}"
    rules = setting.metadata
    kind: Any = type(setting.default)
    if kind is bool:
        word = str(value).lower()
        switch = word in _TRUE if word in _TRUE + _FALSE else None
        if switch is None:
            raise SettingsError(f"{setting_text}; allowed: true, false.")
        return switch
    if kind is str:
        if not isinstance(value, str) or (rules["allowed"] and value not in rules["allowed"]):
            raise SettingsError(f"{setting_text}; allowed: {' or '.join(map(repr, rules['allowed'])) or 'a text'}.")
        return value
    least, most = rules["least"], rules["most"]
    allowed = f"{'a whole number' if kind is int else 'a number'} of at least {least:g}"
    allowed += f" and at most {most:g}" if most is not None else ""
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{setting_text}; allowed: {allowed}.") from None
    if (
        isinstance(value, bool)
        or number != float(value)
        or not least <= number <= (most if most is not None else number)
    ):
        raise SettingsError(f"{setting_text}; allowed: {allowed}.")
    return number
