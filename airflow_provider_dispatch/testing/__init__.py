# SPDX-License-Identifier: Apache-2.0
"""Shipped fakes and builders for people who test their own DAGs; nothing in the package imports it."""
