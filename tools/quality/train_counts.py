#!/usr/bin/env python3
"""Trains a small DSA model for questions that need many tokens (counts.py), and writes it as a
Hugging Face folder that weft-engine runs, with documents.jsonl for quality.py.

Needs torch and safetensors; some ten minutes on one core. The same seed and torch give the same
model. One layer is enough: the last word of a question finds its kind in the list. Dense attention
first, with the indexer learning to predict it (KL, as in DeepSeek-V3.2's report); then attention over
the indexer's top-k alone, with a K drawn for each step."""

import argparse
import json
import math
import pathlib
import random
import shutil
import time

import counts
from mistakes import Parser, number, numbers, run

try:
    import torch
    import torch.nn.functional as F
    from safetensors.torch import save_file
    from torch import nn
except ImportError as error:
    raise SystemExit(f"train_counts.py: {error.name} is missing: pip install torch safetensors")

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONFIG = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "torch_dtype": "bfloat16",
    "vocab_size": 4096, "hidden_size": 64, "num_hidden_layers": 1, "num_nextn_predict_layers": 0,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "index_n_heads": 4,
    "index_head_dim": 32, "index_topk": 256, "intermediate_size": 256, "first_k_dense_replace": 1,
    "moe_intermediate_size": 64, "n_routed_experts": 1, "num_experts_per_tok": 1,
    "routed_scaling_factor": 1.0, "rms_norm_eps": 1e-6, "rope_theta": 500000.0,
    "max_position_embeddings": 16384, "hidden_act": "silu", "scoring_func": "sigmoid",
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "tie_word_embeddings": False}
PAD = 2
# D hidden, H heads, dn and dr parts of a head without and with RoPE, dv of a value, c latent; Hi and
# di of the indexer.
D, H, DN, DR, DV, C, HI, DI = (CONFIG[key] for key in (
    "hidden_size", "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "kv_lora_rank", "index_n_heads", "index_head_dim"))


def angles(positions):
    """[..., dr/2]"""
    inverse = CONFIG["rope_theta"] ** (-torch.arange(0, DR, 2) / DR)
    return positions.unsqueeze(-1) * inverse


def rope_pairs(x, angle):
    """Of neighbouring pairs, as in latent attention. x [..., dr]"""
    a, b = x[..., 0::2], x[..., 1::2]
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def rope_halves(x, angle):
    """Of the two halves, as in the indexer. x [..., dr]"""
    a, b = x.chunk(2, -1)
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def norm(width):
    return nn.RMSNorm(width, eps=1e-6)


class Indexer(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq_b, self.wk = linear(CONFIG["q_lora_rank"], HI * DI), linear(D, DI)
        self.k_norm, self.weights_proj = nn.LayerNorm(DI, eps=1e-6), linear(D, HI)

    def forward(self, x, x_asked, q_lora, angle, angle_asked):
        """Scores [B, Q, N]."""
        q = self.wq_b(q_lora).unflatten(-1, (HI, DI))
        q = torch.cat([rope_halves(q[..., :DR], angle_asked.unsqueeze(-2)), q[..., DR:]], -1)
        k = self.k_norm(self.wk(x))
        k = torch.cat([rope_halves(k[..., :DR], angle), k[..., DR:]], -1)
        w = self.weights_proj(x_asked) * (HI * DI) ** -0.5
        return torch.einsum("bqhn,bqh->bqn", torch.einsum("bqhd,bnd->bqhn", q, k).relu(), w)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_a_proj, self.q_a_layernorm = linear(D, CONFIG["q_lora_rank"]), norm(CONFIG["q_lora_rank"])
        self.q_b_proj = linear(CONFIG["q_lora_rank"], H * (DN + DR))
        self.kv_a_proj_with_mqa, self.kv_a_layernorm = linear(D, C + DR), norm(C)
        self.kv_b_proj, self.o_proj = linear(C, H * (DN + DV)), linear(H * DV, D)
        self.indexer = Indexer()

    def forward(self, x, asked, top_k):
        """x [B, N, D]; asked [B, Q] positions of queries. Their outputs [B, Q, D], and the KL of the
        indexer's distribution from that of attention."""
        x_asked = x.gather(1, asked.unsqueeze(-1).expand(-1, -1, D))
        angle, angle_asked = angles(torch.arange(x.shape[1])), angles(asked)
        q_lora = self.q_a_layernorm(self.q_a_proj(x_asked))
        q = self.q_b_proj(q_lora).unflatten(-1, (H, DN + DR))
        c, k_rope = self.kv_a_proj_with_mqa(x).split([C, DR], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).unflatten(-1, (H, DN + DV))
        scores = torch.einsum("bqhd,bnhd->bhqn", q[..., :DN], kv[..., :DN]) + torch.einsum(
            "bqhd,bnd->bhqn", rope_pairs(q[..., DN:], angle_asked.unsqueeze(-2)),
            rope_pairs(k_rope, angle))
        scores = scores * (DN + DR) ** -0.5
        index = self.indexer(x.detach(), x_asked.detach(), q_lora.detach(), angle, angle_asked)
        hidden = torch.arange(x.shape[1]) > asked.unsqueeze(-1)
        if top_k and top_k < x.shape[1]:
            cut = index.masked_fill(hidden, -math.inf).topk(top_k, -1).values[..., -1:]
            hidden = hidden | (index < cut)
        weights = scores.masked_fill(hidden.unsqueeze(1), -math.inf).softmax(-1)
        out = torch.einsum("bhqn,bnhd->bqhd", weights, kv[..., DN:]).flatten(-2)
        wanted = weights.mean(1).detach()
        told = index.masked_fill(hidden, -1e9).log_softmax(-1)
        kl = (wanted * (wanted.clamp_min(1e-12).log() - told)).sum(-1).mean()
        return x_asked, self.o_proj(out), kl


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        width = CONFIG["intermediate_size"]
        self.gate_proj, self.up_proj = linear(D, width), linear(D, width)
        self.down_proj = linear(width, D)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = norm(D), norm(D)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, x, asked, top_k):
        _, out, kl = self.self_attn(self.input_layernorm(x), asked, top_k)
        x = x.gather(1, asked.unsqueeze(-1).expand(-1, -1, D)) + out
        return x + self.mlp(self.post_attention_layernorm(x)), kl


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], D)
        self.layers, self.norm = nn.ModuleList([Layer()]), norm(D)


class Model(nn.Module):
    """Parameters have the names that they have in a checkpoint."""

    def __init__(self):
        super().__init__()
        self.model, self.lm_head = Inner(), linear(D, CONFIG["vocab_size"])
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)

    def forward(self, ids, asked, top_k):
        """ids [B, N]; logits [B, Q, vocabulary] at the positions asked, and the indexer's loss."""
        x, kl = self.model.layers[0](self.model.embed_tokens(ids), asked, top_k)
        return self.lm_head(self.model.norm(x)), kl


def batch(draw, ids, size):
    rows = [ids.row(*counts.make(draw)) for _ in range(size)]
    longest = max(len(row[0]) for row in rows)
    return (torch.tensor([row[0] + [PAD] * (longest - len(row[0])) for row in rows]),
            torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows]))


def right(model, ids, top_k, rows=64):
    """Shares of right answers to questions for a count, and for the most frequent."""
    draw, good, asked_for = random.Random(10**6), [0, 0], [0, 0]
    numbers = torch.tensor([ids.of[str(n)] for n in counts.LEVELS])
    for _ in range(rows // 8):
        tokens, asked, answers = batch(draw, ids, 8)
        with torch.no_grad():
            told = model(tokens, asked, top_k)[0].argmax(-1)
        kind = torch.isin(answers, numbers)
        for i, which in enumerate((kind, ~kind)):
            good[i] += int(((told == answers) & which).sum())
            asked_for[i] += int(which.sum())
    return [g / n for g, n in zip(good, asked_for)]


def train(args, ids):
    model, draw, begin = Model(), random.Random(args.seed), time.time()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.98),
                                  weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 100) *
        (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * step / args.steps))))
    for step in range(args.steps):
        tokens, asked, answers = batch(draw, ids, args.batch)
        top_k = 0
        if step >= args.dense_share * args.steps:
            several = len(args.sparse_top_k) > 1
            top_k = draw.choice(args.sparse_top_k) if several else args.sparse_top_k[0]
        logits, kl = model(tokens, asked, top_k)
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        (loss + kl).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}, indexer {kl.item():.3f}, "
                  f"{'top-k' if top_k else 'dense'}, {time.time() - begin:.0f} s", flush=True)
    return model


def write(model, args, tokenizer_folder):
    tensors = {name: value.bfloat16().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, args.out / "model.safetensors", {"format": "pt"})
    (args.out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer_folder / name, args.out / name)
    with (args.out / "documents.jsonl").open("w") as file:
        for document in counts.documents(args.seed + 1, args.documents):
            file.write(json.dumps(document, ensure_ascii=False) + "\n")


def parse():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--steps", type=number(int, 1, 10**6), default=3000,
                        help="steps of training (default 3000)")
    parser.add_argument("--batch", type=number(int, 1, 1024), default=8,
                        help="documents a step (default 8)")
    parser.add_argument("--rate", type=number(float, 0, 1, open_low=True), default=2e-3,
                        help="greatest learning rate (default 2e-3)")
    parser.add_argument("--dense-share", type=number(float, 0, 1), default=0.6,
                        help="share of the steps with dense attention (default 0.6)")
    parser.add_argument("--sparse-top-k", default="64,128,256,512,1024",
                        type=numbers(int, 1, CONFIG["max_position_embeddings"]),
                        help="K of the other steps, drawn for each (default 64,128,256,512,1024); "
                        "with one value the model learns to need just that")
    parser.add_argument("--documents", type=number(int, 1, 10**4), default=24,
                        help="documents to ask about (default 24)")
    parser.add_argument("--seed", type=number(int, 0, 2**32 - 1), default=1,
                        help="the same seed and torch give the same model (default 1)")
    return parser.parse_args()


def main():
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)  # before minutes of training
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    folder = ROOT / "deploy/models/demo"
    ids = counts.Ids(json.loads((folder / "tokenizer.json").read_text()))
    model = train(args, ids)
    write(model, args, folder)
    for top_k in (0, 1024, 512, 256, 128, 64, 32):
        of_count, of_most = right(model, ids, top_k)
        print(f"K = {top_k or 'all'}: right {of_count:.3f} of counts, {of_most:.3f} of the most "
              "frequent")


if __name__ == "__main__":
    run(main)
