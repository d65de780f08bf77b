# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities as whole numbers: cpu in millicores, everything else in its own unit (memory in bytes).

The job spec reads with it and reasons for people are written with it. The grammar is that of
``k8s.io/apimachinery/pkg/api/resource``; fractions are rounded up, as Kubernetes does.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from airflow_provider_dispatch.exceptions import SpecError

CPU = "cpu"
MEMORY = "memory"
LARGEST = 2**63 - 1

_BINARY = {unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
_DECIMAL = {
    unit: Fraction(1000) ** power for power, unit in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
}
_GRAMMAR = re.compile(
    r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d{1,2})?", re.ASCII
)


def parse_quantity(resource: str, value: str | float, *, field: str = "resources") -> int:
    """Read a quantity such as ``500m``, ``1.5``, ``2Gi`` or ``3``.

    :returns: millicores for ``cpu``, else the plain number (bytes for memory).
    :raises SpecError: not a quantity, negative, or above 2**63 - 1.
    """
    match = None if isinstance(value, bool) else _GRAMMAR.fullmatch(str(value))
    if match is None:
        cure = "must be a quantity that is not negative, such as 500m, 2 or 1Gi"
        raise SpecError(f"{field}.{resource}", cure, value)
    # Fractions are exact; decimals would round by a context that any code of the caller's thread may have changed.
    number, unit = Fraction(match[1]), match[2] or ""
    exact = number * (_BINARY.get(unit) or _DECIMAL.get(unit) or Fraction(10) ** int(unit[1:]))
    amount = math.ceil(exact * (1000 if resource == CPU else 1))
    if amount > LARGEST:
        raise SpecError(f"{field}.{resource}", "is larger than any machine", value)
    return amount


def format_quantity(resource: str, amount: int) -> str:
    """Write an amount the way people write it: ``500m``, ``2``, ``1Gi``."""
    if resource == CPU:
        return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
    if resource == MEMORY:
        for unit, factor in reversed(_BINARY.items()):
            if amount and amount % factor == 0:
                return f"{amount // factor}{unit}"
    return str(amount)
