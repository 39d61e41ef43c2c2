"""The former name of `turnstream.scripted`, for tests of programs that use it."""

from turnstream.scripted import *  # noqa: F403
