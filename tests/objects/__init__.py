# SPDX-License-Identifier: Apache-2.0
"""Objects recorded from real clusters, a folder a version of Kueue and a file a scene; read by :mod:`.recordings`."""
