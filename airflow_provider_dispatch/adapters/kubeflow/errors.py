# SPDX-License-Identifier: Apache-2.0
"""The one place where answers of an API server, and failures to get one, become errors of the contract.

The rule is the contract's question "may I try the same call again?": what passes by itself is
:class:`~airflow_provider_dispatch.exceptions.UnavailableError`, what somebody has to mend first is a
:class:`~airflow_provider_dispatch.exceptions.RefusedError`. The subclasses here say more to the rest of the adapter and
to the controller; callers of an adapter need not know them. The transport and the client call it; it asks nobody.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING

import aiohttp

from airflow_provider_dispatch.adapters.kubeflow.model import fields
from airflow_provider_dispatch.exceptions import (
    CapabilityError,
    ConflictError,
    DispatchError,
    JobNotFoundError,
    RefusedError,
    UnavailableError,
    cut_text,
)

if TYPE_CHECKING:
    from airflow_provider_dispatch.adapters.kubeflow.transport import Call

DEFAULT_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
_QUOTED = re.compile(r"\((\d{3}\b.*)\)")
"""Where our messages have what :func:`_describe_answer` says."""
_WEBHOOK_AWAY = re.compile(r'failed calling webhook(?: "([^"]*)")?')


class AnswerLostError(UnavailableError):
    """A write was sent and nobody knows whether it was carried out: look before sending it again."""

    is_answer_unknown = True


class ThrottledError(UnavailableError):
    """The API server refused the request unread because it is busy.

    :param retry_after_seconds: as it asks.
    """

    def __init__(self, message: str, retry_after_seconds: float = DEFAULT_RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds

    def __reduce__(self) -> tuple[type[ThrottledError], tuple[str, float]]:
        return type(self), (str(self), self.retry_after_seconds)


class ExpiredVersionError(UnavailableError):
    """The resource version is too old to watch or to go on listing from: list anew."""


class WebhookAwayError(UnavailableError):
    """A webhook of the cluster doesn't answer. Nothing was written.

    :param webhook: its name.
    """

    def __init__(self, message: str, webhook: str = "") -> None:
        super().__init__(message)
        self.webhook = webhook

    def __reduce__(self) -> tuple[type[WebhookAwayError], tuple[str, str]]:
        return type(self), (str(self), self.webhook)


class UnauthorizedError(RefusedError):
    """The API server doesn't know who is asking."""


class StaleObjectError(ConflictError):
    """The object has changed since it was read: read it and judge again. Nothing was written."""


class AlreadyExistsError(ConflictError):
    """There is an object of this name already. Nothing was written."""


class ObjectGoneError(JobNotFoundError):
    """The object of the call isn't there."""


def translate_answer(call: Call, status: int, body: bytes, headers: Mapping[str, str]) -> DispatchError:
    """The contract's error for an answer that is none of success.

    :param body: a Status object of the API server, or whatever stands between us and it has said.
    """
    answer = _read_status(body)
    said = _describe_answer(status, answer, body)
    if status == 404:
        return _translate_not_found(call, answer, said)
    if status == 409:
        return _translate_conflict(call, answer, said)
    if status == 410:
        return ExpiredVersionError(f"can't {call}: the resource version is too old ({said}); list again")
    if status == 422 and call.is_json_patch and _is_bare(answer):
        return StaleObjectError(f"can't {call}: a test of the patch has failed ({said}); read the object again")
    if status == 429:
        pause = _read_retry_after(answer, headers)
        return ThrottledError(f"can't {call}: the API server is busy ({said}); try again in {pause:g} s", pause)
    if status >= 500 or status == 408:
        return _translate_server_error(call, said)
    return _translate_refusal(call, status, said)


def quote_answer(error: DispatchError) -> str:
    """What the API server itself has said, without our own words around it; the whole message where it said nothing."""
    quoted = _QUOTED.search(str(error))
    return quoted[1] if quoted else str(error)


def translate_event(call: Call, answer: fields.Raw) -> DispatchError:
    """The contract's error for an ERROR event of a watch; its object is a Status."""
    status = fields.number(answer, "code") or 500
    return translate_answer(call, status, json.dumps(answer).encode(), {})


def translate_failure(call: Call, error: Exception) -> DispatchError:
    """The contract's error for a request that got no answer, or only a part of one."""
    what = cut_text(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ServerFingerprintMismatch() | ssl.CertificateError():
            return RefusedError(
                f"can't {call}: the API server's certificate isn't trusted ({what}); mend the kubeconfig"
            )
        case aiohttp.InvalidURL() | aiohttp.ContentTypeError():
            return RefusedError(f"can't {call}: {what}; mend the address in the kubeconfig")
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return UnavailableError(f"can't {call}: the API server can't be reached ({what}); try again")
    if call.is_write:
        return AnswerLostError(
            f"can't tell whether the request to {call} was carried out ({what}); look before retrying"
        )
    if isinstance(error, TimeoutError):
        return UnavailableError(f"can't {call}: no answer in time ({what}); try again")
    return UnavailableError(f"can't {call}: the connection broke ({what}); try again")


def _read_status(body: bytes) -> fields.Raw:
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and answer.get("kind") == "Status" else {}


def _describe_answer(status: int, answer: fields.Raw, body: bytes) -> str:
    said = fields.text(answer, "message") or body.decode("utf-8", "replace").strip()
    reason = fields.text(answer, "reason")
    return f"{status}{f' {reason}' if reason else ''}{f': {cut_text(said)}' if said else ''}"


def _is_bare(answer: fields.Raw) -> bool:
    """A 422 without an object or a cause: kube-apiserver gives it when a JSON patch can't be carried out."""
    details = fields.mapping(answer, "details")
    return not fields.text(details, "name") and not fields.text(details, "kind") and not fields.items(details, "causes")


def _translate_not_found(call: Call, answer: fields.Raw, said: str) -> DispatchError:
    kind = fields.text(answer, "details", "kind")
    if not kind and not fields.text(answer, "details", "name"):
        return CapabilityError(
            f"can't {call}: the cluster doesn't serve {call.api} ({said}); install what does, in that version"
        )
    if kind == "namespaces" and call.method == "POST":
        return RefusedError(f"can't {call}: its namespace doesn't exist ({said}); create it")
    return ObjectGoneError(f"can't {call}: there is none of that name ({said})")


def _translate_conflict(call: Call, answer: fields.Raw, said: str) -> DispatchError:
    if fields.text(answer, "reason") == "AlreadyExists":
        return AlreadyExistsError(f"can't {call}: there is one of that name already ({said})")
    if call.method == "POST":
        # Seen with quota objects: the server lost a race with itself and asks to be asked again.
        return UnavailableError(f"can't {call}: somebody else was quicker ({said}); try again")
    return StaleObjectError(f"can't {call}: it has changed since it was read ({said}); read it again")


def _translate_server_error(call: Call, said: str) -> DispatchError:
    if found := _WEBHOOK_AWAY.search(said):
        # Admission comes before storage, so this write was certainly not carried out.
        told = f"can't {call}: a webhook of the cluster doesn't answer ({said}); try again"
        return WebhookAwayError(told, found[1] or "")
    if call.is_write:
        return AnswerLostError(
            f"can't tell whether the request to {call} was carried out ({said}); look before retrying"
        )
    return UnavailableError(f"can't {call}: the API server has trouble ({said}); try again")


def _translate_refusal(call: Call, status: int, said: str) -> DispatchError:
    if status == 401:
        return UnauthorizedError(
            f"can't {call}: the API server doesn't accept our credentials ({said}); renew the token or certificate, "
            "and look in the log for a credential plugin that failed"
        )
    if status == 403 and "system:anonymous" in said:
        return UnauthorizedError(
            f"can't {call}: the API server takes us for nobody ({said}); the kubeconfig's user has no credentials, or "
            "their plugin failed: look in the log"
        )
    if status == 403:
        return RefusedError(f"can't {call}: it isn't allowed ({said}); grant it, or use another account or namespace")
    if 300 <= status < 400:
        return RefusedError(f"can't {call}: something answers that is no API server ({said}); mend the address")
    return RefusedError(f"can't {call}: the API server refuses it ({said})")


def _read_retry_after(answer: fields.Raw, headers: Mapping[str, str]) -> float:
    stamp = fields.whole_number(headers.get("Retry-After", ""))
    seconds = stamp if stamp is not None else fields.number(answer, "details", "retryAfterSeconds")
    return min(float(seconds), LONGEST_RETRY_SECONDS) if seconds else DEFAULT_RETRY_SECONDS
