"""Logits that weft-engine --capture wrote, and divergences between two such files."""

import json
import math
import mmap
import struct
from array import array

from mistakes import Mistake


class Logits:
    """tensors 'logits.S.T' of a capture; S counts requests from 1, T is a position."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, "rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                self.tensors = json.loads(file.read(length))
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            metadata = self.tensors.pop("__metadata__")
        except (ValueError, TypeError, KeyError, AttributeError, struct.error, OverflowError,
                MemoryError) as e:
            raise Mistake(f"{path} is no capture of weft-engine") from e
        self.begin = 8 + length
        if metadata.get("format") != "weft-capture-1" or metadata.get("complete") != "true":
            raise Mistake(f"{path} is not a complete capture")

    def row(self, request, position):
        name = f"logits.{request}.{position}"
        if name not in self.tensors:
            raise Mistake(f"{self.path} has no tensor {name}: it is of other documents")
        begin, end = self.tensors[name]["data_offsets"]
        values = array("f")
        values.frombytes(self.data[self.begin + begin:self.begin + end])
        if not all(map(math.isfinite, values)):
            raise Mistake(f"{self.path}: tensor {name} holds what is no finite number")
        return values


def normalised(row):
    """exp(x - max) and log sum exp."""
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return weights, top + math.log(math.fsum(weights))


def divergence(want, got):
    """KL(want || got) in nats: sum of p (log p - log q)."""
    weights, lse_want = normalised(want)
    _, lse_got = normalised(got)
    total = math.fsum(weights)
    shift = lse_got - lse_want
    return math.fsum(w * (x - y + shift) for w, x, y in zip(weights, want, got)) / total


def answer_divergences(want_path, got_path, conversations):
    """For each document and answer, the sum of KL over the answer's tokens."""
    want, got = Logits(want_path), Logits(got_path)
    return [[sum(divergence(want.row(request, t - 1), got.row(request, t - 1))
                 for t in range(begin, end))
             for begin, end in conversation["answers"]]
            for request, conversation in enumerate(conversations, start=1)]
