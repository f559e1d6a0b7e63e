"""Settings that a job accepts and the engine it chose does not use: said when it is planned, and in its run."""

from collections.abc import Collection

from pydantic import BaseModel


def unused(spec: BaseModel, used: Collection[str], who: str) -> list[str]:
    """A sentence for each setting that is not as by default and not among those that `who` uses."""
    found = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in used and value != field.get_default(call_default_factory=True):
            told = ", ".join(sorted(value.model_fields_set)) if isinstance(value, BaseModel) else repr(value)
            found.append(f"{name} ({told}) is not used by {who}")
    return found
