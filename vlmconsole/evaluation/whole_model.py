"""A whole model under test in the place of the one that a server's profile names."""

from __future__ import annotations

from pathlib import Path

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.system.typed_paths import named

TRUSTING = "--trust-remote-code"


def served_folder(model: str, profile: ServerProfile) -> Path | None:
    """Return a model's folder as its launch line means it: a relative one lies where the server is started from."""
    if profile.launch is None:
        return None
    folder = named(profile.launch.folder) / model
    return folder if (folder / "config.json").is_file() else None


def with_model(profile: ServerProfile, folder: Path) -> ServerProfile:
    """Return the profile serving the model in `folder`. Raises LabError when its launch line does not take a model's
    name.
    """
    argv = profile.launch.argv if profile.launch is not None else ()
    if argv and not any("{model}" in word for word in argv):
        raise LabError(
            f"The launch line of {profile.name} names its model itself.",
            "Write {model} there, so that it can change.",
            code="model-fixed",
        )
    launch = profile.launch
    if launch is not None and named(profile.model) != folder:  # whoever trusts one model's programs trusts those alone
        argv, extra = (tuple(w for w in words if w != TRUSTING) for words in (launch.argv, launch.extra))
        launch = launch.model_copy(update={"argv": argv, "extra": extra})
        profile = profile.model_copy(update={"trust_remote_code": False, "launch": launch})
    return profile.model_copy(update={"model": str(folder), "served_model": ""})
