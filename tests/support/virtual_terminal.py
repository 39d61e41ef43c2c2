"""A terminal in memory: the lines that a person would see, including the scrollback."""

import re

_TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>]|(.)", re.DOTALL)

_UNFINISHED = re.compile(r"\x1b(\[[?\d;]*)?$")


class VirtualTerminal:
    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width = width
        self.height = height
        self._rows = [""]
        self._top = 0
        self._row = 0
        self._column = 0
        self._unfinished = ""

    @property
    def lines(self) -> list[str]:
        """All lines from the first line on, without trailing blanks."""
        rows = [row.rstrip() for row in self._rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def narrow(self, width: int) -> None:
        """Makes the window narrower: wraps long lines, and leaves the cursor after the last line."""
        self.width = width
        wrapped = [[row[start : start + width] for start in range(0, len(row), width)] or [""] for row in self._rows]
        self._rows = [row for rows in wrapped for row in rows]
        self._row = len(self._rows) - 1
        self._top = max(0, self._row - self.height + 1)

    def write(self, text: str) -> int:
        text = self._unfinished + text
        self._unfinished = unfinished[0] if (unfinished := _UNFINISHED.search(text)) else ""
        for numbers, letter, character in _TOKEN.findall(text.removesuffix(self._unfinished)):
            if letter:
                self._control(letter, int(numbers) if numbers.isdecimal() else 0)
            elif character:
                self._put(character)
        return len(text)

    def flush(self) -> None:
        pass

    def _put(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\n":  # the terminal driver adds a carriage return
            self._column = 0
            self._down()
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column == self.width:  # the cursor stays on the last cell until another character follows
                self._column = 0
                self._down()
            row = self._rows[self._row].ljust(self._column)
            self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1

    def _control(self, letter: str, number: int) -> None:
        match letter:
            case "A":
                self._row = max(self._top, self._row - max(1, number))
            case "B":
                self._row = min(len(self._rows) - 1, self._row + max(1, number))
            case "C":
                self._column = min(self.width - 1, self._column + max(1, number))
            case "D":
                self._column = max(0, self._column - max(1, number))
            case "K":
                self._rows[self._row] = "" if number == 2 else self._rows[self._row][: self._column]
            case "J":
                self._rows[self._row] = self._rows[self._row][: self._column]
                del self._rows[self._row + 1 :]
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"this terminal does not know CSI {number} {letter}")

    def _down(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")
        self._top = max(self._top, self._row - self.height + 1)
