"""What a study found: a JSON line a cell."""

import json

import report
from mistakes import Mistake

NUMBER = (int, type(None))
KEYS = {"key": str, "name": str, "mode": str, "top_k": NUMBER, "ranks": NUMBER, "m": NUMBER,
        "selection": (dict, type(None)), "documents": list}


def is_cell(cell):
    if not isinstance(cell, dict) or not all(
            key in cell and isinstance(cell[key], kind) for key, kind in KEYS.items()):
        return False
    wanted = {"right", "tokens", "logprob"} | ({"kl"} if cell["ranks"] else set())
    return all(isinstance(document, list) and
               all(isinstance(answer, dict) and wanted <= answer.keys() for answer in document)
               for document in cell["documents"])


def cell_of(line, where):
    try:
        cell = json.loads(line)
    except ValueError:
        cell = None
    if not is_cell(cell):
        raise Mistake(f"{where} is no result of a study (was a run ended while it wrote?): take the "
                      "line out, and its cell runs again")
    return cell


def read_cells(path):
    """Those of every study in the folder: {key: [cell]}, the last of each name."""
    studies = {}
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        cell = cell_of(line, f"{path}: line {number}")
        studies.setdefault(cell["key"], {})[cell["name"]] = cell
    return {key: list(cells.values()) for key, cells in studies.items()}


def append(path, cell):
    with path.open("a") as file:
        file.write(json.dumps(cell) + "\n")


def print_report(path):
    studies = read_cells(path)
    if not studies:
        raise Mistake(f"--report: there are no results in {path}")
    for key, cells in studies.items():
        if len(studies) > 1:
            print(f"documents and model: {key}\n")
        print(report.table(cells))
