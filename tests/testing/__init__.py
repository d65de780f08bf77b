# SPDX-License-Identifier: Apache-2.0
"""What the package ships for testing is tested too."""
