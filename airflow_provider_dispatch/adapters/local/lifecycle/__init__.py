# SPDX-License-Identifier: Apache-2.0
"""What happens to a local job, decided without doing it: inputs → status, events and effects. Pure.

The agent feeds it intents and process events and carries out its effects; the in-memory fake drives the same machine
with processes that exist on paper only.
"""
