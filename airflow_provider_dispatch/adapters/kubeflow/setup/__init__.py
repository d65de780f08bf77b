# SPDX-License-Identifier: Apache-2.0
"""Sets a cluster up for jobs and takes it back: the manifests of the package rendered, queues built, both applied.

The command calls it under the rights of an administrator. Jobs, the adapter and the controller never need it.
"""
