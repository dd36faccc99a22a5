"""Logits that weft-engine --capture wrote, and divergences between two such files."""

import json
import math
import mmap
import struct
from array import array


class Logits:
    """tensors 'logits.S.T' of a capture; S counts requests from 1, T is a position."""

    def __init__(self, path):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self.tensors = json.loads(file.read(length))
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.begin = 8 + length
        metadata = self.tensors.pop("__metadata__")
        if metadata["format"] != "weft-capture-1" or metadata["complete"] != "true":
            raise ValueError(f"{path} is not a complete capture")

    def row(self, request, position):
        begin, end = self.tensors[f"logits.{request}.{position}"]["data_offsets"]
        values = array("f")
        values.frombytes(self.data[self.begin + begin:self.begin + end])
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
