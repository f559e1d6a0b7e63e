"""The lab: where things are kept and what the user has set. One door for screens and commands to the rest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from vlmconsole.runs.places import Places


class SettingsError(ValueError):
    """The settings file or an override cannot be used; the message names the file, the key and what is allowed."""


class Settings(BaseSettings):
    """What the user has set: defaults, then config.toml, then ``VLMCONSOLE_*`` of the environment (which wins)."""

    model_config = SettingsConfigDict(env_prefix="VLMCONSOLE_", extra="forbid")

    server: str = Field("demo", description="profile asked when none is named")
    pictures: Literal["auto", "kitty", "sixel", "halfcell", "off"] = Field(
        "auto", description="how pictures are drawn; auto never probes inside tmux"
    )
    theme: Literal["dark", "light"] = Field("dark", description="colours of the console")
    slow_link: bool = Field(False, description="fewer repaints, no animation: for thin SSH lines")
    max_tokens: int = Field(256, ge=1, description="ceiling of an answer, tokens")
    temperature: float = Field(0.0, ge=0.0, le=2.0, description="0 is greedy")
    background: str = Field("white", description="what a transparent picture is laid over")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)


@dataclass(frozen=True)
class Lab:
    """An opened lab home: its places on disk and its settings. Opening makes the folders, and starts nothing."""

    places: Places
    settings: Settings

    @classmethod
    def open(cls, home: Path | None = None) -> Lab:
        """Open the lab of ``home``, else of ``VLMCONSOLE_HOME``, else of the platform's data and config folders.

        Raises :class:`SettingsError` when the settings cannot be used, ``OSError`` when the home cannot be made.
        """
        named = home or (Path(os.environ["VLMCONSOLE_HOME"]) if os.environ.get("VLMCONSOLE_HOME") else None)
        if named is not None:
            data = named.expanduser().resolve()
            config = data / "config.toml"
        else:
            data = Path(platformdirs.user_data_dir("vlmconsole", appauthor=False))
            config = Path(platformdirs.user_config_dir("vlmconsole", appauthor=False)) / "config.toml"
        places = Places(home=data, config=config)
        places.ensure()
        return cls(places, read_settings(config))


def read_settings(config: Path) -> Settings:
    """Settings from ``config`` (which may be missing) and the environment. Raises :class:`SettingsError`."""

    class FromFile(Settings):
        model_config = SettingsConfigDict(env_prefix="VLMCONSOLE_", extra="forbid", toml_file=config)

    try:
        return FromFile()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Settings.model_fields)
        allowed = f" Known keys: {known}." if first["type"] == "extra_forbidden" else ""
        raise SettingsError(
            f"Setting {key!r} (in {config} or VLMCONSOLE_{key.upper()}): {first['msg']}.{allowed}"
        ) from None
    except ValueError as error:  # tomllib's own error names line and column
        raise SettingsError(f"{config} is not valid TOML: {error}") from None
