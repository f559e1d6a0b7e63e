"""Fetching a server's metrics so that nothing it does can hold or fill the console."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

from vlmconsole.engines.access import PortHolder, event_hooks
from vlmconsole.engines.http import tls_fault
from vlmconsole.engines.profile import ProfileError, ServerProfile
from vlmconsole.gauges.figures import SourceError
from vlmconsole.system.bounded_http import LimitError, Limits, fetch

DEADLINE = 2.0  # seconds for the whole answer, however slowly it drips
LARGEST = 4 * 1024 * 1024  # bytes; a real page has 90 KB


class NotThere(SourceError):
    """The server answers, but has no such path (404 or 405)."""


class Fetcher:
    """One kept-alive connection to one server, asked with a deadline for the whole answer and a largest size.

    For threads without an event loop of their own; one call at a time.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        deadline: float = DEADLINE,
        held: PortHolder | None = None,
    ) -> None:
        """held: who must hold the port at each request and each new connection (see engines.access)."""
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._limits = Limits(LARGEST, deadline)
        # A loop that is kept keeps the connection; only a loop can end a drip in the middle of a head.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        # No proxies of the environment (the servers are ours), no redirects (they would lead somewhere unasked).
        self._client = httpx.AsyncClient(
            headers={"Accept-Encoding": "identity", **(headers or {})},
            timeout=deadline,
            trust_env=False,
            follow_redirects=False,
            event_hooks=event_hooks(held, lambda error: SourceError(error.message, error.hint, code=error.code)),
        )

    @classmethod
    def of(cls, profile: ServerProfile, deadline: float = DEADLINE) -> Fetcher:
        """For a profile's server, with its key. Raises SourceError when that cannot be had."""
        try:
            key = profile.api_key()
        except ProfileError as error:
            raise SourceError(error.full_message, code=error.code) from None
        headers = {"Authorization": f"Bearer {key}"} if key else None
        return cls(profile.base_url, headers, deadline, profile.access.held)

    def get(self, path: str) -> str:
        """Return the text at `path`. Raises :class:`NotThere`, or SourceError with what happened in one line."""
        where = f"{self.base_url}{path}"
        try:
            response = self._runner.run(fetch(self._client, self._client.build_request("GET", where), self._limits))
        except LimitError as error:
            more = " (not a metrics page)" if error.kind == "size" else ""
            raise SourceError(f"{error.message}{more}", code=error.code) from None
        except httpx.TimeoutException:
            why = f"{where}: no answer within {self._limits.seconds:g} s"
            raise SourceError(why, code="limit-silence") from None
        except httpx.ConnectError as error:
            if fault := tls_fault(error):
                raise SourceError(f"{self.base_url}: {fault}") from None
            hint = "Is the server started?"
            raise SourceError(f"nothing answers at {self.base_url}", hint, code="server-unreachable") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceError(f"{where}: connection lost: {str(error) or type(error).__name__}") from None
        if response.status_code in (404, 405):
            raise NotThere(f"{where} not found ({response.status_code})")
        if response.status_code in (401, 403):
            raise SourceError(f"{where} requires a key ({response.status_code})", "Set the profile's api_key_env.")
        if response.status_code != 200:
            raise SourceError(f"{where} answered {response.status_code}")
        return response.content.decode("utf-8", "replace")

    def close(self) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()
