"""A schema registry that speaks Confluent's API: Confluent's own, Apicurio (`/apis/ccompat/v7`), Karapace, Redpanda.

Subjects follow TopicNameStrategy: the value schema of a topic is `<topic>-value`.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from turnlog.codec.errors import RegistryRefused, RegistryUnavailable
from turnlog.codec.schemas import Schema

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_ABSENT = frozenset({40401, 40402, 40403})
"""Confluent's codes for: no such subject, version, schema."""


class Registry:
    """One registry. Every call blocks for at most `timeout_s`; nothing is cached here (the codec does) and nothing retried.

    `register`: publish schemas that are not there yet; without it they are only looked up, for installations where that is
    an operator's or pipeline's right. `auth` is user and password, `headers` whatever else the registry wants (a bearer
    token); `verify` is False or a path to the certificates to trust.
    """

    def __init__(
        self,
        url: str,
        *,
        register: bool = True,
        auth: tuple[str, str] | None = None,
        headers: dict[str, str] | None = None,
        verify: bool | str = True,
        timeout_s: float = 10.0,
    ) -> None:
        self._register = register
        self._url = url.rstrip("/") + "/"
        self._shown = urlsplit(url).netloc.rpartition("@")[2]
        self._options: dict[str, Any] = {
            "auth": auth,
            "headers": {"Accept": _MEDIA_TYPE, "Content-Type": _MEDIA_TYPE, **(headers or {})},
            "verify": verify,
            "timeout": timeout_s,
        }

    def schema(self, schema_id: int) -> Schema | None:
        """The schema of an id; None: the registry has none, or none that is Avro. Raises RegistryUnavailable."""
        found = self._ask("GET", f"schemas/ids/{schema_id}")
        if found is None or found.get("schemaType", "AVRO") != "AVRO":
            return None
        try:
            return json.loads(found["schema"])
        except (KeyError, TypeError, ValueError):
            return None

    def id_of(self, topic: str, schema: Schema) -> int:
        """The id of a topic's value schema. Raises RegistryUnavailable; RegistryRefused when the registry finds the schema
        incompatible, or does not know it and we may not register."""
        subject = quote(f"{topic}-value", safe="")
        path = f"subjects/{subject}/versions" if self._register else f"subjects/{subject}"
        found = self._ask("POST", path, {"schemaType": "AVRO", "schema": json.dumps(schema, ensure_ascii=False)})
        if found is None:
            raise RegistryRefused(
                f"the registry has no such schema under {topic}-value: register schemas/records, or allow us to"
            )
        return int(found["id"])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """One exchange on a connection of its own: a process makes a handful in its life. None where the registry says that
        what was asked for does not exist."""
        import httpx  # a tenth of a second, which processes without a registry need not wait

        content = None if body is None else json.dumps(body)
        try:
            answer = httpx.request(method, self._url + path, content=content, **self._options)
            said = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise RegistryUnavailable(
                f"the schema registry at {self._shown} does not answer {method} {path}: {error!r}"
            ) from error
        if answer.is_success and isinstance(said, dict):
            return said
        _raise_unless_absent(answer.status_code, said if isinstance(said, dict) else {}, f"{method} {path}")
        return None


def _raise_unless_absent(status: int, said: dict[str, Any], what: str) -> None:
    """Returns if the answer is "does not exist"; raises what the caller must do about any other."""
    message = f"the schema registry answers {what} with {status}: {str(said.get('message', ''))[:500]}"
    if status == HTTPStatus.NOT_FOUND and said.get("error_code") in _ABSENT:
        return
    if status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
        raise RegistryRefused(message)
    raise RegistryUnavailable(message)
