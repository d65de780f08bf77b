# SPDX-License-Identifier: Apache-2.0
"""The one error of the testbed."""


class TestbedError(RuntimeError):
    """The testbed could not do what was asked; the message says what is missing or shows the end of a log."""

    __test__ = False  # not a test, whatever pytest thinks of its name
