"""What is wrong with a command line or its files is told in one line: exit code 2. What went wrong
with right input: 1."""

import argparse
import os
import pathlib
import re
import subprocess
import sys


class Mistake(Exception):
    """Of the input; its text is the whole error."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        rule = re.sub(r"^argument (--[a-z-]+): ", r"\1 ", message)
        self.exit(2, f"{self.prog}: {rule} (--help lists the options)\n")


def number(kind, low, high, open_low=False):
    """A type for add_argument: int or float from low (or above it) to high."""
    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not (low < value or (low == value and not open_low)) or not value <= high:
            what = "a whole number" if kind is int else "a number"
            raise argparse.ArgumentTypeError(
                f"must be {what} {'above' if open_low else 'from'} {low} to {high}, got '{text}'")
        return value
    return read


def numbers(kind, low, high, open_low=False, empty=False):
    """The same for a list with commas; values that are there twice count once."""
    one = number(kind, low, high, open_low)

    def read(text):
        if text or not empty:
            return list(dict.fromkeys(one(part) for part in text.split(",")))
        return []
    return read


def find_programs(folder, names):
    for name in names:
        if not os.access(pathlib.Path(folder, name), os.X_OK):
            raise Mistake(f"--bin must be a folder with the program {name}, got '{folder}'; "
                          f"build it with ninja -C build {name}")


def run_program(command, text=None):
    """The standard output of a program that is to end well; else the last line of what it says is
    the mistake."""
    try:
        done = subprocess.run([str(part) for part in command], input=text, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise Mistake(f"cannot run {command[0]}: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        name = pathlib.Path(command[0]).name
        raise Mistake(said[-1] if said[-1].startswith(name) else f"{name}: {said[-1]}")
    return done.stdout


def run(main):
    """main(), with mistakes as they are to be told."""
    name = pathlib.Path(sys.argv[0]).name
    try:
        main()
        sys.stdout.flush()
    except Mistake as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read the output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"{name}: {error.filename or 'error'}: {error.strerror}", file=sys.stderr)
        named = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError,
                 PermissionError)
        sys.exit(2 if isinstance(error, named) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
