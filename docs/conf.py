# SPDX-License-Identifier: Apache-2.0
"""How Sphinx builds the documentation; ``make docs`` calls it and treats a warning as an error."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

# The reference imports operators, and so Airflow, which writes into its home.
_home = tempfile.mkdtemp(prefix="dispatch-docs-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ["AIRFLOW_HOME"] = _home

from airflow_provider_dispatch import __version__  # noqa: E402 - Airflow reads its environment when it's imported

project = "airflow-provider-dispatch"
author = "the airflow-provider-dispatch authors"
project_copyright = author
version = release = __version__

sys.path.append(str(Path(__file__).parent / "_ext"))
extensions = ["myst_parser", "sphinx.ext.autodoc", "settings_reference"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings: list[str] = []

autodoc_default_options = {"members": True, "member-order": "bysource", "show-inheritance": True}
autodoc_typehints = "signature"
# Signatures as they are written: an expanded default or union says less than its name.
autodoc_preserve_defaults = True
# An operator has some thirty arguments: one a line.
maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"airflow-provider-dispatch {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
