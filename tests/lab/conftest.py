"""The lab is a separate distribution. If the lab is not installed, its tests are not collected."""

from importlib.util import find_spec

from tests.acceptance.conftest import server
from tests.integration.conftest import attempts_are_counted, harness

__all__ = ("attempts_are_counted", "harness", "server")

collect_ignore_glob = [] if find_spec("turnstream_lab") else ["*"]
