"""Documents with questions as the engine reads them: token ids of the whole conversation, and where
the answers lie in it."""

import hashlib
import json
import pathlib

from mistakes import Mistake, run_program

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜></think>"


def pieces(example):
    """Texts of the conversation, each tokenized by itself: ('', ...) or ('answer', ...). A document
    may give them as they are (counts.py)."""
    if "pieces" in example:
        yield from example["pieces"]
        return
    yield "", BOS
    for i, turn in enumerate(example["turns"]):
        question = turn["question"] if i else example["document"] + "\n\n" + turn["question"]
        yield "", USER + question + ASSISTANT
        yield "answer", turn["answer"] + EOS


def wrong(example):
    """What is wrong with a line of the file; "" for nothing."""
    if not isinstance(example, dict):
        return "must be a JSON object"
    if "pieces" in example:
        parts = example["pieces"]
        if not isinstance(parts, list) or not all(
                isinstance(p, list) and len(p) == 2 and p[0] in ("", "answer") for p in parts):
            return "must have pieces as lists of '' or 'answer' and a text"
        texts = [p[1] for p in parts]
    else:
        turns = example.get("turns")
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            return "must have a list of turns with question and answer (or pieces)"
        texts = [example.get("document")] + [turn.get(key) for turn in turns
                                             for key in ("question", "answer")]
    for text in texts:
        if not isinstance(text, str):
            return "must have texts as document, question and answer of every turn, or in pieces"
        try:
            text.encode()
        except UnicodeEncodeError:
            return "holds half of a surrogate pair, which is no text"
    kinds = [kind for kind, text in pieces(example) if text]
    return "" if "answer" in kinds[1:] else "must have an answer with something before it"


def read(path):
    """The examples of a file, a JSON line each, and its digest."""
    raw = pathlib.Path(path).read_bytes()
    examples = []
    for number, line in enumerate(raw.splitlines(), 1):
        if not line.strip():
            continue
        try:
            examples.append(json.loads(line))
            said = wrong(examples[-1])
        except (ValueError, RecursionError) as error:
            said = f"must be JSON: {error}"
        if said:
            raise Mistake(f"{path}: line {number} {said}")
    if not examples:
        raise Mistake(f"{path} holds no document")
    return examples, hashlib.sha256(raw).hexdigest()[:16]


def load(path, program, model):
    """[{ids, answers: [(begin, end)]}] of every line of the file, and the file's digest."""
    examples, digest = read(path)
    texts = [list(pieces(example)) for example in examples]
    lines = "".join(json.dumps(text) + "\n" for parts in texts for _, text in parts)
    tokens = iter(run_program([program, "--model", model], lines).splitlines())
    conversations = []
    for parts in texts:
        ids, answers = [], []
        for kind, _ in parts:
            begin = len(ids)
            ids += json.loads(next(tokens))
            if kind == "answer":
                answers.append((begin, len(ids)))
        conversations.append({"ids": ids, "answers": answers})
    return conversations, digest
