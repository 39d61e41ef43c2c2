"""`turnstream serve`, whose watch over the event loop looks 500 times a second and logs all that it finds."""

from app.cli import commands
from app.engine import loop_watch

if __name__ == "__main__":
    loop_watch.PAUSE, loop_watch.LIMIT, loop_watch._LOGGED = 0.002, 0.01, 0.0
    commands(["serve"])
