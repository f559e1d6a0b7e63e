"""Settings that a job accepts and the engine it chose does not use: said when it is planned, and in its run."""

from collections.abc import Collection

from pydantic import BaseModel


def unused(spec: BaseModel, used: Collection[str], who: str) -> list[str]:
    """Return a sentence for each setting that is not as by default and not among those that `who` uses."""
    unused_names = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in used and value != field.get_default(call_default_factory=True):
            shown = ", ".join(sorted(value.model_fields_set)) if isinstance(value, BaseModel) else repr(value)
            unused_names.append(f"{name} ({shown}) is not used by {who}")
    return unused_names


def unused_by_client(spec: BaseModel) -> list[str]:
    """For jobs that measure or ask a server, named by its profile or by its address: what belongs to the other way."""
    address = bool(getattr(spec, "base_url", ""))
    idle = {"server"} if address else {"model", "api_key_env"}
    names = unused(
        spec, type(spec).model_fields.keys() - idle, "a server by its " + ("address" if address else "profile")
    )
    if getattr(spec, "arrivals", "closed") in ("constant", "poisson") and not _paced(spec):
        names += unused(spec, type(spec).model_fields.keys() - {"arrivals"}, "a closed loop (no rate)")
    return names


def _paced(spec: BaseModel) -> bool:
    """Whether requests are sent at a rate, in a sweep's cells too."""
    return bool(getattr(spec, "paced", getattr(spec, "rate", None) is not None))
