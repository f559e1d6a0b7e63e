"""The lab: where things are kept and what the user has set. One door for screens and commands to the rest."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vlmconsole.errors import LabError
from vlmconsole.runs.places import Places

ENV_PREFIX = "VLMCONSOLE_"


class SettingsError(LabError):
    """The settings file or an override cannot be used; the message names the file, the key and what is allowed."""

    code = 2


class Settings(BaseModel):
    """What the user has set: defaults, then config.toml, then ``VLMCONSOLE_*`` of the environment (which wins).

    Plain pydantic with a ten-line overlay: pydantic-settings would add 0.13 s to every cold start of the console.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    server: str = Field("demo", description="profile asked when none is named")
    pictures: Literal["auto", "kitty", "sixel", "halfcell", "off"] = Field(
        "auto", description="how pictures are drawn; auto never probes inside tmux"
    )
    theme: Literal["dark", "light"] = Field("dark", description="colours of the console")
    slow_link: bool = Field(False, description="fewer repaints, no animation: for thin SSH lines")
    max_tokens: int = Field(256, ge=1, description="ceiling of an answer, tokens")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="0 is greedy")
    background: str = Field("white", description="what a transparent picture is laid over")


@dataclass(frozen=True)
class Lab:
    """An opened lab home: its places on disk and its settings. Opening makes the folders, and starts nothing."""

    places: Places
    settings: Settings

    @classmethod
    def open(cls, home: Path | None = None) -> Lab:
        """Open the lab of ``home``, else of ``VLMCONSOLE_HOME``, else of the platform's data and config folders.

        Raises :class:`SettingsError` when the settings or the home cannot be used.
        """
        named = home or (Path(os.environ["VLMCONSOLE_HOME"]) if os.environ.get("VLMCONSOLE_HOME") else None)
        if named is not None:
            data = named.expanduser().resolve()
            config = data / "config.toml"
        else:
            data = Path(platformdirs.user_data_dir("vlmconsole", appauthor=False))
            config = Path(platformdirs.user_config_dir("vlmconsole", appauthor=False)) / "config.toml"
        places = Places(home=data, config=config)
        try:
            places.ensure()
        except OSError as error:
            raise SettingsError(
                f"The lab home {data} cannot be made: {error.strerror}.",
                "Choose another with --home DIR or VLMCONSOLE_HOME.",
            ) from None
        return cls(places, read_settings(config))


def read_settings(config: Path) -> Settings:
    """Settings from ``config`` (which may be missing) and the environment. Raises :class:`SettingsError`."""
    try:
        values: dict[str, Any] = tomllib.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{config} is not valid TOML: {error}") from None
    overrides = {
        key: os.environ[ENV_PREFIX + key.upper()]
        for key in Settings.model_fields
        if ENV_PREFIX + key.upper() in os.environ
    }
    try:
        return Settings.model_validate({**values, **overrides})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        source = f"the environment's {ENV_PREFIX}{key.upper()}" if key in overrides else str(config)
        if first["type"] == "extra_forbidden":
            raise SettingsError(
                f"{source} sets {key!r}, which is no setting. Known: {', '.join(Settings.model_fields)}."
            ) from None
        raise SettingsError(f"{source} sets {key} to {first['input']!r}: {first['msg']}.") from None
