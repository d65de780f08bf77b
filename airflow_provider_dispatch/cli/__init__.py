# SPDX-License-Identifier: Apache-2.0
"""The ``dispatch`` command: the contract's verbs by hand, over whichever backend a connection or a file names."""
