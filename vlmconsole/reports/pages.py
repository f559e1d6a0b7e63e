"""Pages of reports, compiled once: one HTML file each, without scripts and without anything from the network."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

from vlmconsole.errors import LabError


@cache
def page_template(name: str) -> Any:
    """Return the Jinja2 template of a page; what it is given is escaped. Raises LabError without the extra for
    reports.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise LabError(
            "A report needs Jinja2, which is not installed.", "pip install 'vlmconsole[report]', or --csv and --json."
        ) from None
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["drawn"] = Markup  # only Plot.svg, whose texts reports.svg has escaped
    return environment.from_string((files("vlmconsole.reports") / name).read_text("utf-8"))
