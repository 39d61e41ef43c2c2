"""How much is tried by tests that find more the longer they try. FULL_TESTS=1, as in `.ci/run`, asks for all of it."""

import os

FULL = os.environ.get("FULL_TESTS") == "1"
