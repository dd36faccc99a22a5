"""Documents with questions as the engine reads them: token ids of the whole conversation, and where
the answers lie in it."""

import hashlib
import json
import pathlib
import subprocess

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


def load(path, program, model):
    """[{ids, answers: [(begin, end)]}] of every line of the file, and the file's digest."""
    raw = pathlib.Path(path).read_bytes()
    examples = [json.loads(line) for line in raw.splitlines() if line.strip()]
    texts = [list(pieces(example)) for example in examples]
    lines = "".join(json.dumps(text) + "\n" for parts in texts for _, text in parts)
    result = subprocess.run([program, "--model", model], input=lines, text=True, check=True,
                            stdout=subprocess.PIPE)
    tokens = iter(result.stdout.splitlines())
    conversations = []
    for parts in texts:
        ids, answers = [], []
        for kind, _ in parts:
            begin = len(ids)
            ids += json.loads(next(tokens))
            if kind == "answer":
                answers.append((begin, len(ids)))
        conversations.append({"ids": ids, "answers": answers})
    return conversations, hashlib.sha256(raw).hexdigest()[:16]
