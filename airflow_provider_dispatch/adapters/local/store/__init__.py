# SPDX-License-Identifier: Apache-2.0
"""The store: one SQLite file that says what callers want and what has become of it.

Callers write intents (:mod:`.intents`), the agent alone writes statuses (:mod:`.agency`), everybody reads
(:mod:`.reading`). All of it goes through :mod:`.database`, and every error of SQLite or the operating system is
translated in :mod:`.errors`.
"""
