"""The plan that judges an evaluation: one frozen earlier as it is, or one that is bound and frozen now."""

from __future__ import annotations


def base_of(name: str) -> str:
    """Hash (hex) of the weights of a base by name ("": the bundled model). Raises LabError when it is not here."""
    from vlmconsole.training.adapters.store import base_sha256
    from vlmconsole.training.bases import base_folder

    return base_sha256(base_folder(name))
