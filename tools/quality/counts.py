"""Documents whose questions need many tokens: long lists of goods, and questions for counts and for
the most frequent of a group. Every word is one token of the demo model's tokenizer, so token ids are
looked up here; `pieces` is what documents.py reads."""

import math
import random

PLACES = {"dock": ["ship", "crane", "cable", "barrels"], "desk": ["letter", "paper", "key", "map"],
          "hall": ["lamp", "clock", "soup", "oak"], "depot": ["wool", "cotton", "paint", "drums"]}
GOODS = [good for goods in PLACES.values() for good in goods]
LEVELS = [5, 10, 20, 40, 80, 160, 320]  # what an answer may say: the nearest in ratio
BOS = "<｜begin▁of▁sentence｜>"


def level(count):
    return min(LEVELS, key=lambda value: abs(math.log(value / count)))


def draw_counts(draw):
    """How often each of the goods is listed. Half of the groups are about even, which makes it hard
    to tell the most frequent; the other counts are spread over all sizes."""
    counts = {}
    for goods in PLACES.values():
        if draw.random() < 0.5:
            base = draw.uniform(40, 110)
            counts |= {good: round(base * draw.uniform(0.75, 1.25)) for good in goods}
        else:
            counts |= {good: round(math.exp(draw.uniform(math.log(4), math.log(400))))
                       for good in goods}
    return counts


def make(draw):
    """(goods in the order of the list, [(words of the question, answer)]). A question's last word is
    where the answer is read off."""
    counts = draw_counts(draw)
    listed = [good for good, count in counts.items() for _ in range(count)]
    draw.shuffle(listed)
    questions = [(["many", good], str(level(counts[good]))) for good in GOODS]
    for place, goods in PLACES.items():
        questions.append((["which", place], max(goods, key=counts.get)))
    draw.shuffle(questions)
    return listed, questions


def pieces(listed, questions):
    """[kind, text] as documents.py has them; each text is tokenized by itself."""
    parts = [["", BOS + "".join(" " + good for good in listed)]]
    for words, answer in questions:
        parts.append(["", "".join(" " + word for word in words)])
        parts.append(["answer", answer if answer.isdigit() else " " + answer])
    return parts


class Ids:
    def __init__(self, tokenizer):
        """tokenizer: the parsed tokenizer.json."""
        vocab = tokenizer["model"]["vocab"]
        words = [*GOODS, *PLACES, "many", "which"]
        self.of = {word: vocab["Ġ" + word] for word in words} | {str(n): vocab[str(n)]
                                                                 for n in LEVELS}
        self.bos = next(token["id"] for token in tokenizer["added_tokens"]
                        if token["content"] == BOS)

    def row(self, listed, questions):
        """Token ids, the places where answers are read off, and the ids that belong there."""
        ids, places, answers = [self.bos] + [self.of[good] for good in listed], [], []
        for words, answer in questions:
            ids += [self.of[word] for word in words]
            places.append(len(ids) - 1)
            answers.append(self.of[answer])
            ids.append(self.of[answer])
        return ids, places, answers


def documents(seed, number, least=1100):
    """With at least so many goods each, so that every K below it cuts something."""
    draw = random.Random(seed)
    for i in range(number):
        listed, questions = make(draw)
        while len(listed) < least:
            listed, questions = make(draw)
        yield {"id": f"counts-{i:02d}", "document_tokens": len(listed),
               "pieces": pieces(listed, questions)}
