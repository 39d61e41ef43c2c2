"""Checks for optional packages, which are installed by extras of the distribution."""

from importlib.util import find_spec

from turnstream.domain.errors import ConfigError


def need(package: str, extra: str, user: str) -> None:
    """Raises ConfigError if the package is not installed. `user` is the subject of the error's sentence."""
    try:
        found = find_spec(package)
    except ModuleNotFoundError:  # its parent package is not installed
        found = None
    if found is None:
        raise ConfigError(f"{user} needs the package {package}: pip install 'turnstream[{extra}]'.")
