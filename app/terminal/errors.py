"""Errors of the terminal client that a person can act on; the command line prints each as one sentence."""


class TerminalError(Exception):
    pass
