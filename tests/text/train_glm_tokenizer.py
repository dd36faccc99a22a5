#!/usr/bin/env python3
"""Trains a small tokenizer with the pre-tokenizer and the added tokens of GLM-4.5 to GLM-5.

    train_glm_tokenizer.py tokenizer.json.gz TEXT...

No real GLM file is at hand. This one has its shape: byte-level BPE behind the GPT-4 pattern, a
ByteLevel post-processor, role marks that are special and reasoning and tool marks that are not.
"""

import gzip
import json
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import corpus

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
           "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>"]
PLAIN = ["/nothink", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
         "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]


def main():
    target, *sources = sys.argv[1:]
    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True)
    texts = [open(path, encoding="utf-8").read() for path in sources]
    texts += [s for s in corpus.CRAFTED + corpus.random_strings(20000, seed=3) if "<" not in s]
    trainer = trainers.BpeTrainer(vocab_size=9000, show_progress=False, min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in PLAIN])
    spec = json.loads(tokenizer.to_str())
    with gzip.GzipFile(target, "wb", compresslevel=9, mtime=0) as f:
        f.write(json.dumps(spec, ensure_ascii=False).encode())


if __name__ == "__main__":
    main()
