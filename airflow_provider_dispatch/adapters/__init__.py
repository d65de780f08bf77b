# SPDX-License-Identifier: Apache-2.0
"""Implementations of the contract, one package a backend; they don't know each other and never import Airflow."""
