# SPDX-License-Identifier: Apache-2.0
"""Apache Airflow provider for multi-node training jobs: the version, and nothing else.

Every Airflow process may import this package, so it imports nothing itself.
"""

__version__ = "0.1.0"
