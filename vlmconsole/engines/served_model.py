"""What the folder of the model behind a server says, where the server itself names the one that lies here.

A name alone proves nothing: a server on another machine may have other files under it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.registry import find_engine
from vlmconsole.models.base import BaseReadError, read_base
from vlmconsole.models.door import can_render, door
from vlmconsole.models.template import TemplateError
from vlmconsole.vision.tokens import ProcessorSettings


def folder_of(profile: ServerProfile, settings: EffectiveSettings) -> Path | None:
    """Return the served model's folder on this machine; None where it is elsewhere, or not known to be it."""
    folder = profile.model_dir()
    if folder is None or not settings.model_path or profile.route != "loopback":
        return None
    try:
        return folder if Path(settings.model_path).samefile(folder) else None
    except OSError:
        return None


def picture_settings(profile: ServerProfile, settings: EffectiveSettings | None) -> ProcessorSettings | None:
    """Return what decides the visual tokens: the model's, under what the server says that it was started with.

    None where it was started with a key that the arithmetic here does not know: then nothing is expected, as a wrong
    expectation would be an alarm.
    """
    base = profile.processor_settings()
    processor = settings.told("mm-process-config") if settings is not None else None
    changed = processor.get("image") if isinstance(processor, dict) else None
    if base is None or not changed:
        return base
    if not isinstance(changed, dict) or changed.keys() - {"min_pixels", "max_pixels"}:
        return None
    try:
        return ProcessorSettings.model_validate({**base.model_dump(), **changed})
    except ValidationError:
        return None


def serves_another(profile: ServerProfile, settings: EffectiveSettings) -> bool:
    """Return whether the server names a folder of this machine that is not the one which its profile names."""
    folder, path = profile.model_dir(), Path(settings.model_path or "")
    return folder is not None and path.is_absolute() and path.is_dir() and not path.samefile(folder)


def add_quantization(profile: ServerProfile, settings: EffectiveSettings) -> None:
    """Let the folder's config say how the weights are quantised, where the server does not: `precision` with it.

    Servers tell the type that they compute in, which a folder of four-bit weights does not change.
    """
    folder = folder_of(profile, settings) if settings.quantization is None else None
    try:
        stated = read_base(folder).quantization if folder is not None else None
    except BaseReadError:
        return
    if stated is not None:
        settings.quantization, settings.precision = stated.to_json(), stated.label


def prompt_facts(profile: ServerProfile, settings: EffectiveSettings | None) -> dict[str, str]:
    """`prompt_sha256` and `template_sha256` of what the server renders, for conditions; {} where they are not known.

    Waits for a process (`models.renderer`): not for an event loop.
    """
    if settings is None or not can_render() or settings.told("chat-template") is not None:
        return {}
    folder = folder_of(profile, settings)
    try:
        variables = dict(find_engine(profile.engine).template_variables)
        return door(folder).facts(variables) if folder is not None else {}
    except TemplateError:
        return {}
