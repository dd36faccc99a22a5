#!/usr/bin/env python3
"""Writes the golden files of tokenizer_test.cc with Hugging Face `tokenizers` (0.23.3 was used).

    make_golden.py tokenizer.json[.gz] golden.json

A golden is {"encode": [{"text", "ids"}...], "decode": [{"ids", "text", "text_with_special"}...]}.
"""

import gzip
import json
import random
import sys

import tokenizers

import corpus


def main():
    source, target = sys.argv[1:3]
    opener = gzip.open if source.endswith(".gz") else open
    with opener(source, "rt", encoding="utf-8") as f:
        tokenizer = tokenizers.Tokenizer.from_str(f.read())
    strings = corpus.CRAFTED + corpus.random_strings(220, seed=20)
    encode = [{"text": s, "ids": tokenizer.encode(s, add_special_tokens=False).ids} for s in strings]

    # Random ids give what no text does: halves of characters, in any order.
    rng = random.Random(21)
    vocabulary = tokenizer.get_vocab()
    low = [i for i in range(3, 300) if i in set(vocabulary.values())]
    decode = []
    for _ in range(80):
        ids = [rng.choice(low) if rng.random() < 0.7 else rng.choice(list(vocabulary.values()))
               for _ in range(rng.randint(1, 20))]
        if rng.random() < 0.3:
            ids.insert(rng.randrange(len(ids) + 1), 1)
        decode.append({"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=True),
                       "text_with_special": tokenizer.decode(ids, skip_special_tokens=False)})
    with open(target, "w", encoding="utf-8") as f:
        for key, rows in (("encode", encode), ("decode", decode)):
            f.write(("{" if key == "encode" else ",") + f'"{key}": [\n')
            f.write(",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]")
        f.write("}\n")


if __name__ == "__main__":
    main()
