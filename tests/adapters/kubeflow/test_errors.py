# SPDX-License-Identifier: Apache-2.0
"""The seam is complete: whatever the transport can raise or be answered becomes an error of the contract."""

from __future__ import annotations

import inspect
import json
import pickle
import socket
import ssl

import aiohttp
import pytest

from airflow_provider_dispatch.adapters.kubeflow import errors
from airflow_provider_dispatch.adapters.kubeflow.transport import JSON_PATCH, Call
from airflow_provider_dispatch.exceptions import (
    AdapterError,
    CapabilityError,
    ConflictError,
    DispatchError,
    JobNotFoundError,
    RefusedError,
    UnavailableError,
)
from tests.adapters.kubeflow.api_server import status

READ = Call("GET", "/x", "read pods dispatch/p", "v1")
CREATE = Call("POST", "/x", "create pods dispatch/p", "v1")
PATCH = Call("PATCH", "/x", "change pods dispatch/p", "v1", content_type=JSON_PATCH)
DRY = Call("POST", "/x", "create pods dispatch/p", "v1", {"dryRun": "All"})


def translate(call, code, reason="", message="", headers=None, **details):
    return errors.translate_answer(
        call, code, json.dumps(status(code, reason, message, **details)).encode(), headers or {}
    )


def find_subclasses(kind):
    """A class and all that are made of it, here and now."""
    return {kind}.union(*(find_subclasses(child) for child in kind.__subclasses__()))


FAILURES = sorted(find_subclasses(aiohttp.ClientError) | {TimeoutError, OSError, ConnectionResetError, BrokenPipeError,
    ssl.SSLError, ssl.SSLCertVerificationError, socket.gaierror}, key=lambda kind: kind.__name__)  # fmt: skip


@pytest.mark.parametrize("call", [READ, CREATE])
@pytest.mark.parametrize("kind", FAILURES, ids=lambda kind: kind.__name__)
def test_every_failure_of_the_connection_is_translated(kind, call):
    # Many are made of the library's own objects, which only their texts need.
    made: Exception = kind.__new__(type(kind.__name__, (kind,), {"__str__": lambda self: "said"}))
    translated = errors.translate_failure(call, made)
    assert isinstance(translated, (UnavailableError, RefusedError))
    assert call.title in str(translated)
    assert f"{kind.__name__}: said" in str(translated)


@pytest.mark.parametrize("call", [READ, CREATE, PATCH, DRY])
@pytest.mark.parametrize("body", [b"", b"\xff<html>", b"[]", b'{"kind": "Status", "details": null, "message": 3}'])
def test_every_answer_is_translated(call, body):
    passing = {408, 410, 429, *range(500, 1000)} | ({409} if call.method == "POST" else set())
    for code in (0, *range(300, 600), 999):
        translated = errors.translate_answer(call, code, body, {})
        assert isinstance(translated, AdapterError)
        assert translated.is_retryable == (code in passing)
        assert call.title in str(translated)


@pytest.mark.parametrize(
    ("call", "code", "reason", "details", "kind"),
    [
        (READ, 401, "Unauthorized", {}, errors.UnauthorizedError),
        (READ, 403, "Forbidden", {"name": "p", "kind": "pods"}, RefusedError),
        (READ, 404, "NotFound", {"name": "p", "kind": "pods"}, errors.ObjectGoneError),
        (READ, 404, "NotFound", {}, CapabilityError),
        (READ, 404, "NotFound", {"name": "dispatch", "kind": "namespaces"}, errors.ObjectGoneError),
        (CREATE, 404, "NotFound", {"name": "dispatch", "kind": "namespaces"}, RefusedError),
        (CREATE, 409, "AlreadyExists", {"name": "p"}, errors.AlreadyExistsError),
        (CREATE, 409, "Conflict", {"name": "quota"}, UnavailableError),
        (PATCH, 409, "Conflict", {"name": "p"}, errors.StaleObjectError),
        (PATCH, 422, "Invalid", {}, errors.StaleObjectError),
        (PATCH, 422, "Invalid", {"name": "p", "kind": "Pod", "causes": [{"field": "spec"}]}, RefusedError),
        (CREATE, 422, "Invalid", {}, RefusedError),
        (READ, 410, "Expired", {}, errors.ExpiredVersionError),
        (READ, 429, "TooManyRequests", {}, errors.ThrottledError),
        (READ, 500, "InternalError", {}, UnavailableError),
        (CREATE, 500, "InternalError", {}, errors.AnswerLostError),
        (CREATE, 504, "Timeout", {}, errors.AnswerLostError),
        (DRY, 504, "Timeout", {}, UnavailableError),
        (CREATE, 400, "BadRequest", {}, RefusedError),
    ],
)
def test_each_answer_has_its_type(call, code, reason, details, kind):
    assert type(translate(call, code, reason, "said", **details)) is kind


def test_the_types_stand_where_callers_look_for_them():
    bases = {
        errors.AnswerLostError: UnavailableError,
        errors.ThrottledError: UnavailableError,
        errors.ExpiredVersionError: UnavailableError,
        errors.WebhookAwayError: UnavailableError,
        errors.UnauthorizedError: RefusedError,
        errors.StaleObjectError: ConflictError,
        errors.AlreadyExistsError: ConflictError,
        errors.ObjectGoneError: JobNotFoundError,
    }
    own = {kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__}
    assert own == set(bases)
    assert all(kind.__base__ is base for kind, base in bases.items())


def test_a_webhook_that_fails_has_let_nothing_through():
    said = 'Internal error occurred: failed calling webhook "v.kueue.x-k8s.io": connection refused'
    error = translate(CREATE, 500, "InternalError", said)
    assert isinstance(error, errors.WebhookAwayError)
    assert (error.is_retryable, error.webhook) == (True, "v.kueue.x-k8s.io")
    assert pickle.loads(pickle.dumps(error)).webhook == error.webhook


@pytest.mark.parametrize("code", [401, 403, 404, 409, 410, 422, 500])
def test_what_the_server_said_can_be_told_from_our_own_words(code: int):
    error = translate(CREATE, code, "Reason", "said (so), in brackets", kind="pods")
    assert errors.quote_answer(error) == f"{code} Reason: said (so), in brackets"
    assert errors.quote_answer(UnavailableError("no answer (none)")) == "no answer (none)"


def test_nobody_is_told_from_somebody_without_rights():
    anonymous = translate(READ, 403, "Forbidden", 'User "system:anonymous" cannot get resource "pods"')
    assert isinstance(anonymous, errors.UnauthorizedError)
    assert "has no credentials" in str(anonymous)


def test_messages_say_what_happened_to_which_object_and_cut_what_comes_from_outside():
    said = str(translate(READ, 403, "Forbidden", "no " * 2000))
    assert said.startswith("can't read pods dispatch/p: it isn't allowed (403 Forbidden: no no")
    assert said.endswith("grant it, or use another account or namespace")
    assert len(said) < 800
    assert len(str(errors.translate_failure(READ, aiohttp.ClientError("x" * 9000)))) < 800


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, {}, 1.0),
        ({"Retry-After": "99999"}, {}, 60.0),
        ({}, {}, 1.0),
    ],
)
def test_a_busy_server_says_when_to_come_again(headers, details, seconds):
    error = translate(READ, 429, "TooManyRequests", headers=headers, **details)
    assert isinstance(error, errors.ThrottledError)
    assert error.retry_after_seconds == seconds


def test_an_error_event_of_a_watch_is_an_answer_like_others():
    assert isinstance(errors.translate_event(READ, status(410, "Expired")), errors.ExpiredVersionError)
    assert isinstance(errors.translate_event(READ, {}), UnavailableError)


@pytest.mark.parametrize("error", [errors.ThrottledError("busy", 3.0), errors.AnswerLostError("lost")])
def test_errors_cross_processes(error):
    copy: DispatchError = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)
